/* SPDX-License-Identifier: Apache-2.0 */
/*
 * command.h - finds other programs, runs them with a time limit, and reads their output. The programs die with this
 * process.
 */
#ifndef WEFT_PERF_COMMAND_H
#define WEFT_PERF_COMMAND_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Whether the program is in PATH. */
bool command_exists(const char *program);
/* Runs a command to its end; `argv` ends with NULL. False: it failed, or took longer. `out` gets its output, cut to
 * `room`; what it writes to stderr is dropped. */
bool command_run(const char *const *argv, double limit_s, char *out, size_t room);

/* A program that answers each line of its input with a line. It is stopped while it has no line to answer. Zeroed: none
 * runs. */
typedef struct session {
    pid_t pid;
    int to, from; /* its input, its output */
} session;
bool session_open(session *s, const char *const *argv);
/* Writes a line, and reads the answer to `out`, without its end. False: there is none in time; the program is ended. */
bool session_ask(session *s, const char *line, double limit_s, char *out, size_t room);
void session_close(session *s);

/* Writes the path of `relative`, seen from the folder of this executable, to `out`. False: there is no such file. */
bool command_own_file(const char *relative, char *out, size_t room);

#endif
