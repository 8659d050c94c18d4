/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ending_start.c - signals while a program starts, from before the libraries' constructors, which with libfabric's take 0.2 s and leave
 * handlers of theirs: SIGINT and SIGTERM wait until it is known what to say. Part of the programs that call ending_begin.
 */
#include "ending.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static sigset_t mask_at_start;
static char news[128];

static void hold_signals(int argc, char **argv, char **variables)
{
    (void)argc, (void)argv, (void)variables;
    sigset_t both;
    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigprocmask(SIG_BLOCK, &both, &mask_at_start);
}

__attribute__((section(".preinit_array"), used)) static void (*first_of_all)(int, char **, char **) = hold_signals;

/* Only async-signal-safe calls. */
static void on_early_signal(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, news, strlen(news));
    _exit(130);
}

void ending_begin(const char *program, const char *first, const char *other, int rank)
{
    struct sigaction action = {.sa_handler = on_early_signal};
    ending_name(program, first, other, rank);
    snprintf(news, sizeof news, "%s: %s: interrupted\n", program, first);
    sigfillset(&action.sa_mask); /* children that end of the same signal are no news */
    if (rank <= 0) {
        sigaction(SIGINT, &action, NULL);
        sigaction(SIGTERM, &action, NULL);
    }
    sigprocmask(SIG_SETMASK, &mask_at_start, NULL);
}
