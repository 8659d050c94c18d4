/* SPDX-License-Identifier: Apache-2.0 */
/* cli.h - command line options from a table, and the help text from the same table. */
#ifndef EXAMPLES_CLI_H
#define EXAMPLES_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum cli_kind {
    CLI_FLAG,   /* bool *; takes no value */
    CLI_INT,    /* int64_t *, within low..high */
    CLI_NUMBER, /* double *, within low..high */
    CLI_TEXT,   /* const char **, not empty; points into argv */
    CLI_CHOICE, /* int *: index into choices */
} cli_kind;

typedef struct cli_option {
    const char *name; /* without the dashes; a name of one letter has one dash */
    cli_kind kind;
    void *value; /* of the type that `kind` names; not changed if the option is not given */
    double low, high;
    const char *const *choices; /* ends with NULL */
    const char *shown;          /* what --help calls the value: "N", "DIR" */
    const char *help;           /* one line, without the default */
    const char *fallback;       /* the default as --help shows it; NULL: none */
} cli_option;

typedef struct cli {
    const char *program;
    const char *purpose; /* one line */
    const char *example; /* one command line */
    const cli_option *options;
    size_t count;
    const char *notes;    /* lines that --help prints after the options; NULL: none */
    const char *operands; /* what follows the options: "PROGRAM [ARGUMENTS...]"; NULL: nothing */
    int *first;           /* with operands: receives the index in argv of the first one, argc if there is none */
    /* Pairs: a word with its dashes, as other programs call an option, and the name of that option. Ends with NULL;
     * NULL: none. --help does not list them. */
    const char *const *aliases;
} cli;

/*
 * Reads "--name value" and "--name=value", and "-n4" where the name is one letter. With operands, the options end at
 * "--" or at the first word that does not begin with a dash. Returns -1 to continue, or the exit code to end with: 0
 * after --help; 2 after an error, whose message names the option and the value.
 */
int cli_parse(const cli *program, int argc, char **argv);

/* Reports an error found later, such as two options that exclude each other. Prints one line; returns 2. */
int cli_error(const cli *program, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* For the end of a program: checks that all output was written. If not, prints a line and returns 1 in place of 0.
 * Otherwise returns `code`. */
int cli_flush(const char *program, int code);

#endif
