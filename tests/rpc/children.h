/* SPDX-License-Identifier: Apache-2.0 */
/*
 * children.h - a test that is its own workers: the program starts itself once for each, told by argv[1] what to be; parent and
 * child talk in single letters over two pipes.
 */
#ifndef TESTS_RPC_CHILDREN_H
#define TESTS_RPC_CHILDREN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* ---- What a child does ---- */

void child_say(char what);
void child_await_order(char what);
/* Reads a line of orders, without its end. False: the parent has closed its end. The child's alarm begins anew. */
bool child_read_line(char *line, size_t room);

typedef struct child_role {
    const char *name;
    int (*run)(void); /* returns the exit code */
} child_role;
/* What main returns if argv[1] names one of them; -1: it does not, this is the parent. */
int child_play(int argc, char **argv, const child_role *roles, size_t count);

/* ---- What the parent does; these fail the test ---- */

typedef struct child {
    pid_t pid;
    int report, order;
} child;

/* With RANK, WORLD_SIZE, MASTER_PORT and what else the environment has. It dies by an alarm after a minute. */
child child_start(int rank, int world_size, int port, const char *role);
/* A job of three on a free port. */
void child_start_three(child children[3], const char *zero, const char *one, const char *two);
void child_hear(const child *from, char what);
void child_order(const child *to, char what);
void child_write_line(const child *to, const char *line); /* the line ends with \n */
void child_dismiss(child *one);                           /* its next child_read_line returns false */
/* Returns when it stands still, if that is what the signal does: until then its other threads may go on. */
void child_signal(const child *to, int signal_number);
int child_end(child *one); /* how it ended, as waitpid says */
void child_must_end_well(child *children, int count);
double child_now_s(void);

#endif
