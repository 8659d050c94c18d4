/* SPDX-License-Identifier: Apache-2.0 */
/* ending.c - how a worker ends. */
#include "ending.h"

#include <string.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <unistd.h>

static char program[32] = "program", first[32] = "first", other[32] = "worker", who[48] = "worker";
static char child_news[160]; /* before the rank */
static atomic_flag said = ATOMIC_FLAG_INIT;
static volatile sig_atomic_t interrupted;

void ending_name(const char *name, const char *first_one, const char *other_ones, int rank)
{
    snprintf(program, sizeof program, "%s", name);
    snprintf(first, sizeof first, "%s", first_one);
    snprintf(other, sizeof other, "%s", other_ones);
    if (rank > 0)
        snprintf(who, sizeof who, "%s %d", other, rank);
    else
        snprintf(who, sizeof who, "%s", first);
    snprintf(child_news, sizeof child_news, "%s: %s: %s ", program, first, other);
}

const char *ending_first(void)
{
    return first;
}

const char *ending_other(void)
{
    return other;
}

/* In one piece, as workers share a terminal. */
static WEFT_PRINTF(1, 0) void say(const char *format, va_list args)
{
    char what[768], line[832];
    vsnprintf(what, sizeof what, format, args);
    int length = snprintf(line, sizeof line, "%s: %s: %s\n", program, who, what);
    (void)!write(STDERR_FILENO, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

static WEFT_PRINTF(1, 0) void say_once(const char *format, va_list args)
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

int ending_flush(int code)
{
    bool taken = fflush(stdout) == 0 && !ferror(stdout);
    return taken || code ? code : ending_fail("standard output cannot be written");
}

static const weft_job *_Atomic watched; /* NULL while its children are being started */

/* Only async-signal-safe calls: it may come at any moment of the rendezvous. */
static void on_child(int number, siginfo_t *info, void *context)
{
    static const char end[] = "ended before the job began\n";
    char line[sizeof child_news + sizeof end + 6], digits[6]; /* a rank has five at most, and a space follows */
    size_t first_digit = sizeof digits, length = strlen(child_news);
    (void)number, (void)context;
    for (int rank = 1; weft_job_pid(watched, rank) > 0; rank++) {
        if (weft_job_pid(watched, rank) != info->si_pid)
            continue;
        digits[--first_digit] = ' ';
        for (int left = rank; left > 0; left /= 10)
            digits[--first_digit] = (char)('0' + left % 10);
        break;
    }
    memcpy(line, child_news, length);
    memcpy(line + length, digits + first_digit, sizeof digits - first_digit);
    length += sizeof digits - first_digit;
    memcpy(line + length, end, sizeof end - 1);
    (void)!write(STDERR_FILENO, line, length + sizeof end - 1);
    _exit(1);
}

void ending_with_children(bool on, const weft_job *job)
{
    struct sigaction action = {.sa_flags = SA_NOCLDSTOP | SA_SIGINFO};
    watched = job;
    if (on)
        action.sa_sigaction = on_child;
    else
        action.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &action, NULL);
}

void ending_outlive_parent(void)
{
    prctl(PR_SET_PDEATHSIG, 0);
}
