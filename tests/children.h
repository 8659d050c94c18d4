/* SPDX-License-Identifier: Apache-2.0 */
/*
 * children.h - the processes that a test starts: copies of itself that go on in a function, or this program again with
 * other arguments.
 *
 * A child is killed when the thread that started it ends, so that it never outlives its test program. A parent waits
 * for a child for at most two minutes. Parent and child talk over a line (a pair of sockets). Failures name the child.
 * In the parent they fail the test.
 */
#ifndef TESTS_CHILDREN_H
#define TESTS_CHILDREN_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct child {
    pid_t pid; /* 0: it has ended */
    int line;
    char name[40];
} child;

/* ---- What the parent does ---- */

child child_fork(const char *name); /* returns in the child, too: there pid is 0 */
/* This program again. It inherits the descriptors 0, 1, 2 and the line. */
child child_exec(const char *name, const char *const *argv);
/* The same, with RANK, WORLD_SIZE, MASTER_PORT; the role is argv[1]. */
child child_start(int rank, int world_size, int port, const char *role);
void child_start_three(child children[3], int port, const char *zero, const char *one, const char *two);

void child_hear(const child *from, char what);
void child_receive(const child *from, void *data, size_t size);
void child_order(const child *to, char what);
void child_write_line(const child *to, const char *line); /* the line ends with \n */
void child_dismiss(const child *one);                     /* its next child_read_line returns false */

/* A stop returns when the child stands still: until then its other threads may go on. */
void child_signal(const child *to, int signal_number);
bool child_has_ended(child *one, int *status); /* does not wait; true once */
int child_end(child *one);                     /* waits; returns how it ended, as waitpid says */
void child_kill(child *one);                   /* kills it and waits; it must not have ended before */
void child_must_end_well(child *children, int count);

/*
 * Memory that all children share, those of child_exec and their children, too: they get it by the same call. At first
 * it is zero.
 */
void *child_memory(size_t bytes);
double child_now_s(void);

/* ---- What a child does ---- */

_Noreturn void child_become(const char *const *argv); /* the rest of child_exec */
void child_say(char what);
void child_tell(const void *data, size_t size);
void child_await_order(char what);
/* Reads a line of orders, without its end. False: the parent has dismissed this child, or is gone. */
bool child_read_line(char *line, size_t room);

typedef struct child_role {
    const char *name;
    int (*run)(void); /* returns the exit code */
} child_role;
/* If argv[1] names one of the roles: runs it and returns its exit code. Otherwise -1: this is the parent. */
int child_play(int argc, char **argv, const child_role *roles, size_t count);

#endif
