/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker_start.c - prepares a process before the constructors of libraries run. Those of libfabric take 0.2 s, install
 * signal handlers, and open descriptors.
 *
 *   - SIGINT and SIGTERM are blocked until worker_begin, which knows the message to print.
 *   - Standard input, output and error are opened on /dev/null if they are closed. Otherwise a socket would get the
 *     number, and receive what is printed.
 *
 * This file is linked into programs that call worker_begin, and only into those.
 */
#include "worker.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sigset_t mask_at_start;
static char news[128];

/* All descriptors below `fd` are open, so open() returns `fd`. */
static void fill_standard_descriptors(void)
{
    static const char why[] = "standard input, output or error is closed, and /dev/null cannot be opened\n";
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 || open("/dev/null", O_RDWR) == fd)
            continue;
        (void)!write(STDERR_FILENO, why, sizeof why - 1);
        _exit(1);
    }
}

static void begin(int argc, char **argv, char **variables)
{
    (void)argc, (void)argv, (void)variables;
    sigset_t both;
    fill_standard_descriptors();
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, &mask_at_start);
}

__attribute__((section(".preinit_array"), used)) static void (*first_of_all)(int, char **, char **) = begin;

/* Only async-signal-safe calls. */
static void on_early_signal(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, news, strlen(news));
    _exit(130);
}

void worker_begin(const char *program, const char *first, const char *other, int rank)
{
    struct sigaction action = {.sa_handler = on_early_signal};
    worker_name(program, first, other, rank);
    snprintf(news, sizeof news, "%s: %s: interrupted\n", program, first);
    sigfillset(&action.sa_mask); /* the ends of children by the same signal are not reported */
    if (rank > 0)                /* handlers of libfabric would call exit() in the middle of any function */
        action.sa_handler = SIG_DFL;
    sigaction(SIGTERM, &action, NULL);
    if (rank > 0 && getenv("WEFT_SPAWNED")) /* Ctrl-C reaches all processes: rank 0 reports it and ends its children */
        action.sa_handler = SIG_IGN;
    sigaction(SIGINT, &action, NULL);
    sigprocmask(SIG_SETMASK, &mask_at_start, NULL);
}
