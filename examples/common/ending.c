/* SPDX-License-Identifier: Apache-2.0 */
/* ending.c - how a worker ends. */
#include "ending.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <unistd.h>

static char who[32] = "worker";
static atomic_flag said = ATOMIC_FLAG_INIT;
static volatile sig_atomic_t interrupted;

void ending_name(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(who, sizeof who, format, args);
    va_end(args);
}

/* In one piece, as workers share a terminal. */
static void say(const char *format, va_list args)
{
    char what[768], line[832];
    if (atomic_flag_test_and_set(&said))
        return;
    vsnprintf(what, sizeof what, format, args);
    int length = snprintf(line, sizeof line, "batch_parameter_server: %s: %s\n", who, what);
    (void)!write(STDERR_FILENO, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

int ending_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    return 1;
}

void ending_exit(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    _exit(1);
}

static void on_signal(int number)
{
    (void)number;
    interrupted = 1;
}

void ending_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool ending_interrupted(void)
{
    return interrupted;
}

void ending_outlive_parent(void)
{
    prctl(PR_SET_PDEATHSIG, 0);
}
