/* SPDX-License-Identifier: Apache-2.0 */
/* cli.c - command line options. */
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMN 30

int cli_error(const cli *program, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    fprintf(stderr, "%s: %s (--help lists the options)\n", program->program, what);
    return 2;
}

int cli_flush(const char *program, int code)
{
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    fprintf(stderr, "%s: standard output cannot be written%s%s\n", program, errno ? ": " : "",
            errno ? strerror(errno) : "");
    return code ? code : 1;
}

/* ---- Help ------------------------------------------------------------------------------------------------------- */

static void print_choices(const cli_option *option, char *out, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; option->choices[i] && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%s", i ? "|" : "", option->choices[i]);
}

static const char *dashes(const cli_option *option)
{
    return option->name[1] ? "--" : "-";
}

static void print_option(const cli_option *option)
{
    char value[128] = "", left[192];
    if (option->kind == CLI_CHOICE)
        print_choices(option, value, sizeof(value));
    else if (option->kind != CLI_FLAG)
        snprintf(value, sizeof(value), "%s", option->shown);
    snprintf(left, sizeof(left), "  %s%s%s%s", dashes(option), option->name, *value ? " " : "", value);
    printf("%-*s%s%s", HELP_COLUMN, left, strlen(left) < HELP_COLUMN ? "" : "  ", option->help);
    if (option->fallback)
        printf(" (default: %s)", option->fallback);
    putchar('\n');
}

static void print_help(const cli *program)
{
    printf("%s - %s\n\nusage: %s [options]%s%s\n", program->program, program->purpose, program->program,
           program->operands ? " " : "", program->operands ? program->operands : "");
    for (size_t i = 0; i < program->count; i++)
        print_option(&program->options[i]);
    printf("%-*s%s\n\n", HELP_COLUMN, "  -h, --help", "this text");
    if (program->notes)
        printf("%s\n", program->notes);
    printf("example: %s\n", program->example);
}

/* ---- Values ----------------------------------------------------------------------------------------------------- */

static int set_int(const cli *program, const cli_option *option, const char *text)
{
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || (double)value < option->low || (double)value > option->high)
        return cli_error(program, "%s%s is '%s': expected a whole number from %.0f to %.0f", dashes(option),
                         option->name, text, option->low, option->high);
    *(int64_t *)option->value = value;
    return -1;
}

static int set_number(const cli *program, const cli_option *option, const char *text)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < option->low || value > option->high)
        return cli_error(program, "%s%s is '%s': expected a number from %g to %g", dashes(option), option->name, text,
                         option->low, option->high);
    *(double *)option->value = value;
    return -1;
}

static int set_text(const cli *program, const cli_option *option, const char *text)
{
    if (!*text)
        return cli_error(program, "%s%s is '': expected %s", dashes(option), option->name, option->shown);
    *(const char **)option->value = text;
    return -1;
}

static int set_choice(const cli *program, const cli_option *option, const char *text)
{
    char choices[128] = "";
    for (int i = 0; option->choices[i]; i++) {
        if (strcmp(option->choices[i], text) == 0) {
            *(int *)option->value = i;
            return -1;
        }
    }
    print_choices(option, choices, sizeof(choices));
    return cli_error(program, "%s%s is '%s': expected %s", dashes(option), option->name, text, choices);
}

static int set_value(const cli *program, const cli_option *option, const char *text)
{
    switch (option->kind) {
    case CLI_INT:
        return set_int(program, option, text);
    case CLI_NUMBER:
        return set_number(program, option, text);
    case CLI_TEXT:
        return set_text(program, option, text);
    case CLI_CHOICE:
        return set_choice(program, option, text);
    case CLI_FLAG:
        break;
    }
    *(bool *)option->value = true;
    return -1;
}

/* ---- Parsing ---------------------------------------------------------------------------------------------------- */

static const cli_option *find(const cli *program, const char *name, size_t length)
{
    for (size_t i = 0; i < program->count; i++)
        if (strlen(program->options[i].name) == length && strncmp(program->options[i].name, name, length) == 0)
            return &program->options[i];
    return NULL;
}

/* The option that the first `length` bytes of a word name. NULL: none. */
static const cli_option *find_word(const cli *program, const char *word, size_t length)
{
    size_t dash_count = strncmp(word, "--", 2) == 0 ? 2 : 1;
    const cli_option *option = find(program, word + dash_count, length - dash_count);
    if (option && strlen(dashes(option)) == dash_count)
        return option;
    for (const char *const *each = program->aliases; each && *each; each += 2)
        if (strlen(each[0]) == length && strncmp(each[0], word, length) == 0)
            return find(program, each[1], strlen(each[1]));
    return NULL;
}

/* "-n4": the option of one letter whose value stands in the same word. */
static const cli_option *find_letter(const cli *program, const char *word)
{
    const cli_option *option = word[1] && word[2] >= '0' && word[2] <= '9' ? find(program, word + 1, 1) : NULL;
    return option && option->kind != CLI_FLAG ? option : NULL;
}

/* Takes argv[*at], and the next word if that is its value. */
static int take(const cli *program, int argc, char **argv, int *at)
{
    const char *word = argv[*at], *equals = strchr(word, '=');
    if (*word != '-')
        return cli_error(program, "'%s' is no option", word);
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    const cli_option *option = find_word(program, word, length);
    if (!option && word[1] != '-' && (option = find_letter(program, word)))
        return set_value(program, option, word + 2);
    if (!option)
        return cli_error(program, word[1] == '-' ? "unknown option '%.*s'" : "'%.*s' is no option", (int)length, word);
    if (option->kind == CLI_FLAG)
        return equals
                   ? cli_error(program, "%s%s takes no value, and '%s' gives one", dashes(option), option->name, word)
                   : set_value(program, option, "");
    if (equals)
        return set_value(program, option, equals + 1);
    if (*at + 1 == argc)
        return cli_error(program, "%s%s needs a value: %s", dashes(option), option->name,
                         option->shown ? option->shown : "one word");
    return set_value(program, option, argv[++*at]);
}

int cli_parse(const cli *program, int argc, char **argv)
{
    int at;
    for (at = 1; at < argc; at++) {
        if (program->operands && (argv[at][0] != '-' || !argv[at][1]))
            break;
        if (program->operands && strcmp(argv[at], "--") == 0) {
            at++;
            break;
        }
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            print_help(program);
            return cli_flush(program->program, 0);
        }
        int code = take(program, argc, argv, &at);
        if (code >= 0)
            return code;
    }
    if (program->operands)
        *program->first = at;
    return -1;
}
