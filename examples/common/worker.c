/* SPDX-License-Identifier: Apache-2.0 */
/* worker.c - this process as one worker of a job. */
#include "worker.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#define MOST_THREADS 256 /* limit of WEFT_CPU_THREADS */

static const char *const deaths[] = {"stop", "continue", NULL};

size_t worker_list_options(worker_options *job, cli_option out[WORKER_OPTIONS])
{
    const cli_option options[WORKER_OPTIONS] = {
        {"rank", CLI_INT, &job->rank, 0, 65535, NULL, "N", "run only this worker; the others are started separately",
         "RANK, if set"},
        {"master-addr", CLI_TEXT, &job->master_addr, 0, 0, NULL, "HOST", "the host of rank 0",
         "MASTER_ADDR, or 127.0.0.1"},
        {"master-port", CLI_INT, &job->master_port, 1, 65535, NULL, "PORT", "port of rank 0, where workers join",
         "MASTER_PORT"},
        {"fabric", CLI_TEXT, &job->fabric, 0, 0, NULL, "LIST",
         "fabrics in the order of preference: host, verbs and tcp, or auto", "WEFT_FABRIC, or auto"},
        {"threads", CLI_INT, &job->threads, 1, MOST_THREADS, NULL, "N", "compute threads per worker",
         "OMP_NUM_THREADS, or an equal share of the cores"},
        {"death-timeout", CLI_INT, &job->death_timeout_ms, 100, 3600000, NULL, "MS",
         "silence after which a worker is declared dead", "WEFT_DEATH_MS, or 1500"},
        {"on-death", CLI_CHOICE, &job->on_death, 0, 0, deaths, NULL,
         "if a worker other than rank 0 dies: end the job, or continue without it", "stop"},
    };
    memcpy(out, options, sizeof options);
    return WORKER_OPTIONS;
}

static int take_variable(const cli *program, const char *name, int64_t low, int64_t high, int64_t *out)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return cli_error(program, "%s is not set: it goes with the worker's rank", name);
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || value < low || value > high)
        return cli_error(program, "%s is '%s': expected a whole number from %lld to %lld", name, text, (long long)low,
                         (long long)high);
    *out = value;
    return -1;
}

int worker_find(const cli *program, worker_options *job, bool starts)
{
    int rank, size;
    const char *by_hand = getenv("RANK"), *all = getenv("WORLD_SIZE");
    if (job->rank >= 0)
        return -1;
    if (by_hand && *by_hand) {
        int code = take_variable(program, "RANK", 0, 65535, &job->rank);
        return code < 0 ? take_variable(program, "WORLD_SIZE", 2, 65536, &job->world_size) : code;
    }
    if (starts || !weft_job_is_launched(&rank, &size))
        return -1;
    if (all && *all)
        return cli_error(program,
                         "WORLD_SIZE is '%s', and RANK is not set: a worker of a job started by hand needs both", all);
    if (size < 2)
        return cli_error(program,
                         "a launcher started this process, but the environment names no job of 2 workers or more: "
                         "start it with weft-run -n N, mpirun or srun");
    job->rank = rank;
    job->world_size = size;
    return -1;
}

int worker_settle(const cli *program, worker_options *job, int64_t world_size)
{
    job->spawn = job->rank < 0;
    if (job->spawn && (job->master_addr || job->master_port))
        return cli_error(program, "--master-addr and --master-port need a --rank (or RANK)");
    if (job->spawn) {
        job->rank = 0;
        job->world_size = world_size;
    }
    if (job->rank >= job->world_size)
        return cli_error(program, "rank %d: expected less than the world size, %d", (int)job->rank,
                         (int)job->world_size);
    if (!job->death_timeout_ms && !getenv("WEFT_DEATH_MS"))
        job->death_timeout_ms = 1500; /* so a job with a stopped worker ends within two seconds */
    return -1;
}

int worker_check_output(const cli *program, const char *option, const char *path)
{
    char folder[PATH_MAX];
    struct stat found;
    if (!path)
        return -1;
    bool exists = stat(path, &found) == 0;
    if (exists && S_ISDIR(found.st_mode))
        return cli_error(program, "%s is '%s': that is a folder", option, path);
    if (exists ? access(path, W_OK) != 0 : errno != ENOENT)
        return cli_error(program, "%s is '%s', which cannot be written: %s", option, path, strerror(errno));
    if (exists && !S_ISREG(found.st_mode))
        return -1; /* a pipe or a device: no file is made beside it */
    if (!exists || !realpath(path, folder))
        snprintf(folder, sizeof folder, "%s", path);
    char *slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0;
    if (access(slash ? folder : ".", W_OK | X_OK) == 0)
        return -1;
    return cli_error(program, "%s is '%s': its folder cannot be written: %s", option, path, strerror(errno));
}

int worker_choose_device(const cli *program, const char *text, weft_device *out)
{
    weft_error *error = NULL;
    if (!text || !weft_device_choose(text, -1, out, &error))
        return -1;
    int code = cli_error(program, "--device is '%s': %s", text, weft_error_message(error));
    weft_error_unref(error);
    return code;
}

/* The workers of a job share the cores of this machine. Settings of the launcher or the user take precedence. */
void worker_share_cores(const worker_options *job)
{
    char threads[24];
    long others = job->world_size - 1, cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (!job->threads && (!job->spawn || getenv("WEFT_CPU_THREADS") || getenv("OMP_NUM_THREADS")))
        return;
    long share = cores / others > 1 ? cores / others : 1;
    snprintf(threads, sizeof threads, "%ld", job->threads ? (long)job->threads : share);
    setenv("WEFT_CPU_THREADS", threads, 1);
}

weft_agent_options worker_agent_options(const worker_options *job)
{
    return (weft_agent_options){
        .has_rank = !job->spawn,
        .rank = (int)job->rank,
        .world_size = (int)job->world_size,
        .master_addr = job->master_addr,
        .master_port = (int)job->master_port,
        .fabric = job->fabric,
        .death_timeout_ms = job->death_timeout_ms,
    };
}

/* ---- Messages --------------------------------------------------------------------------------------------------- */

static char program[32] = "program", first[32] = "first", other[32] = "worker", who[48] = "worker";
static char child_news[160]; /* the beginning of the message, before the rank */
static atomic_flag said = ATOMIC_FLAG_INIT;
static volatile sig_atomic_t interrupted;

void worker_name(const char *name, const char *first_one, const char *other_ones, int rank)
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

/* Writes the line in one piece, because workers share a terminal. */
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

int worker_fail(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say_once(format, args);
    va_end(args);
    return 1;
}

int worker_error(weft_status status, weft_error *error)
{
    worker_fail("%s", error ? weft_error_message(error) : weft_status_text(status));
    weft_error_unref(error);
    return 1;
}

void worker_note(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

void worker_exit(const char *format, ...)
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

void worker_catch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool worker_interrupted(void)
{
    return interrupted;
}

int worker_flush(int code)
{
    bool taken = fflush(stdout) == 0 && !ferror(stdout);
    return taken || code ? code : worker_fail("standard output cannot be written");
}

static const weft_job *_Atomic watched; /* NULL while the children are being started */

/* A signal handler that may run at any moment of the rendezvous: only async-signal-safe calls. */
static void on_child(int number, siginfo_t *info, void *context)
{
    static const char end[] = "ended before the job began\n";
    char line[sizeof child_news + sizeof end + 6], digits[6]; /* a rank has at most five digits, followed by a space */
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

void worker_watch_children(bool on, const weft_job *job)
{
    struct sigaction action = {.sa_flags = SA_NOCLDSTOP | SA_SIGINFO};
    watched = job;
    if (on)
        action.sa_sigaction = on_child;
    else
        action.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &action, NULL);
}

void worker_outlive_parent(void)
{
    prctl(PR_SET_PDEATHSIG, 0);
}
