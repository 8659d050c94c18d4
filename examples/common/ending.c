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
    vsnprintf(what, sizeof what, format, args);
    int length = snprintf(line, sizeof line, "batch_parameter_server: %s: %s\n", who, what);
    (void)!write(STDERR_FILENO, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

static void say_once(const char *format, va_list args)
{
    if (!atomic_flag_test_and_set(&said))
        say(format, args);
}

int ending_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say_once(format, args);
    va_end(args);
    return 1;
}

int ending_error(weft_status status, weft_error *error)
{
    ending_fail("%s", error ? weft_error_message(error) : weft_status_text(status));
    weft_error_unref(error);
    return 1;
}

void ending_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

void ending_exit(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say_once(format, args);
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

static void on_child(int number)
{
    (void)number;
    static const char news[] = "batch_parameter_server: server: a trainer ended before the job began\n";
    (void)!write(STDERR_FILENO, news, sizeof news - 1);
    _exit(1);
}

void ending_with_children(bool on)
{
    struct sigaction action = {.sa_handler = on ? on_child : SIG_DFL, .sa_flags = SA_NOCLDSTOP};
    sigaction(SIGCHLD, &action, NULL);
}

void ending_outlive_parent(void)
{
    prctl(PR_SET_PDEATHSIG, 0);
}
