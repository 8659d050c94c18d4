/* SPDX-License-Identifier: Apache-2.0 */
/* worker.c - this process as one worker of a job. */
#include "worker.h"

#include <weft/job.h>

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_MS 5000 /* for the ends of processes after a successful job */
#define HURRY_MS 500     /* the same after a failure */

static char who[96] = "worker", interrupted[128];
static const char *other_name;
static int64_t others; /* to start */
static weft_job *job;

/* Only async-signal-safe calls. The processes that weft_job_open started die with this one. */
static void on_signal(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, interrupted, strlen(interrupted));
    _exit(130);
}

/* Also replaces handlers of libfabric, which would call exit() in the middle of any function. */
static void catch_signals(int rank)
{
    struct sigaction action = {.sa_handler = rank == 0 ? on_signal : SIG_DFL};
    snprintf(interrupted, sizeof(interrupted), "%s: interrupted\n", who);
    sigfillset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int worker_begin(const cli *program, const char *first, const char *other, int least, int *rank, int64_t *size)
{
    int given = 0;
    bool launched = weft_job_is_launched(rank, &given);
    if (launched && (*rank < 0 || given < 0))
        return cli_error(program, "RANK and WORLD_SIZE: expected two numbers, or neither");
    if (launched) {
        *size = given;
    } else {
        *rank = 0;
        others = *size - 1;
    }
    if (*size < least)
        return cli_error(program, "WORLD_SIZE is '%d': expected at least %d workers", given, least);
    if (*rank == 0)
        snprintf(who, sizeof(who), "%s: %s", program->program, first);
    else
        snprintf(who, sizeof(who), "%s: %s %d", program->program, other, *rank);
    other_name = other;
    catch_signals(*rank);
    return -1;
}

static void on_event(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    (void)arg;
    if (event == WEFT_MEMBER_DEAD && weft_agent_rank(agent) == 0)
        worker_note("%s %d is dead: %s", other_name, rank, why);
    if (event != WEFT_MEMBER_SELF_EVICTED && event != WEFT_MEMBER_STORE_LOST)
        return;
    worker_note(event == WEFT_MEMBER_STORE_LOST ? "rank 0 is gone: %s" : "declared dead, and out of the job: %s", why);
    _exit(1); /* the main thread may be computing */
}

weft_status worker_open(weft_agent_options options, weft_agent **out)
{
    weft_status status = others ? weft_job_open(&(weft_job_options){.count = (int)others}, &job, NULL) : WEFT_OK;
    options.job = job;
    if (!options.on_membership)
        options.on_membership = on_event;
    if (!status)
        status = weft_agent_open(&options, out, NULL);
    for (int rank = 1; !status && weft_agent_rank(*out) == 0 && rank < weft_agent_world_size(*out); rank++)
        (void)!weft_agent_watch(*out, rank); /* if it fails, the worker is gone, and on_membership learns that */
    return status;
}

int worker_end(weft_agent *agent, weft_status status, weft_error *error)
{
    int code = error ? 1 : weft_report(status);
    if (error)
        worker_note("%s", weft_error_message(error));
    weft_error_unref(error);
    if (status)
        weft_agent_stop(agent);
    else
        code = weft_report(weft_agent_close(agent, WEFT_FOREVER));
    (void)!weft_job_close(job, code ? HURRY_MS : PATIENCE_MS, NULL); /* a death that mattered has been reported */
    if (fflush(stdout) == 0 && !ferror(stdout))
        return code;
    worker_note("standard output cannot be written");
    return 1;
}

/* Writes the line in one piece, because workers share a terminal. */
void worker_note(const char *format, ...)
{
    char what[768], line[896];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof(what), format, args);
    va_end(args);
    int length = snprintf(line, sizeof(line), "%s: %s\n", who, what);
    (void)!write(STDERR_FILENO, line, (size_t)length);
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

void worker_serve_on(weft_device device)
{
    char maps[64];
    snprintf(maps, sizeof(maps), "worker0/cpu=cuda:%d", device.index);
    if (device.kind == WEFT_DEVICE_CUDA)
        setenv("WEFT_DEVICE_MAPS", maps, 0);
}
