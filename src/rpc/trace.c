/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - the buffer of spans and who writes it out: see trace.h.
 *
 * Two buffers: calls fill one while the other is written. The thread sleeps until there is something, then lingers a little
 * so that it writes many at once; what is in the file is whole lines, whenever the process dies.
 */
#include "rpc/trace_internal.h"

#include "base/log.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <time.h>

#define LINGER_NS 50000000

static int64_t anchor_of(const wfi_clock *clock)
{
    struct timespec now;
    if (clock != &wfi_clock_real)
        return 0; /* all of a simulation share one clock */
    uint64_t before = wfi_now(clock);
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t after = wfi_now(clock);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - (int64_t)(before + (after - before) / 2);
}

weft_status wfi_trace_create(const wfi_clock *clock, bool threaded, wfi_trace **out)
{
    pthread_condattr_t monotonic;
    wfi_trace *trace = calloc(1, sizeof *trace);
    if (!trace)
        return WEFT_ERR_MEMORY;
    trace->filling = malloc(WFI_TRACE_ROOM * sizeof *trace->filling);
    trace->writing = malloc(WFI_TRACE_ROOM * sizeof *trace->writing);
    if (!trace->filling || !trace->writing) {
        free(trace->filling);
        free(trace->writing);
        free(trace);
        return WEFT_ERR_MEMORY;
    }
    trace->clock = clock;
    trace->threaded = threaded;
    trace->anchor_ns = anchor_of(clock);
    pthread_mutex_init(&trace->lock, NULL);
    pthread_mutex_init(&trace->file_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&trace->some, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = trace;
    return WEFT_OK;
}

int64_t wfi_trace_anchor_ns(const wfi_trace *trace)
{
    return trace->anchor_ns;
}

/* ---- Lanes ----------------------------------------------------------------------------------------------------------- */

uint32_t wfi_trace_take_lane(wfi_trace *trace, weft_metric_side side, uint64_t begun_ns)
{
    uint64_t *ends = trace->lane_ends[side];
    for (uint32_t lane = 0; lane < WFI_TRACE_LANES; lane++) {
        if (ends[lane] <= begun_ns) {
            ends[lane] = WFI_NEVER;
            return lane + 1;
        }
    }
    return 0;
}

void wfi_trace_free_lane(wfi_trace *trace, weft_metric_side side, uint32_t lane, uint64_t end_ns)
{
    if (lane)
        trace->lane_ends[side][lane - 1] = end_ns;
}

/* ---- The buffer ------------------------------------------------------------------------------------------------------- */

bool wfi_trace_add(wfi_trace *trace, const wfi_trace_record *record)
{
    pthread_mutex_lock(&trace->lock);
    bool fits = record->span.lane && trace->count < WFI_TRACE_ROOM;
    if (fits)
        trace->filling[trace->count++] = *record;
    else
        trace->dropped++;
    bool wake = trace->threaded && (trace->count == 1 || trace->count == WFI_TRACE_ROOM / 2);
    bool due = !trace->threaded && trace->count >= WFI_TRACE_ROOM / 2;
    if (wake)
        pthread_cond_signal(&trace->some);
    pthread_mutex_unlock(&trace->lock);
    return due;
}

uint64_t wfi_trace_dropped(wfi_trace *trace)
{
    pthread_mutex_lock(&trace->lock);
    uint64_t dropped = trace->dropped;
    pthread_mutex_unlock(&trace->lock);
    return dropped;
}

static void check_file(wfi_trace *trace)
{
    if (!trace->file || (!fflush(trace->file) && !ferror(trace->file)))
        return;
    wfi_log_in(&(wfi_log_context){.rank = trace->rank}, WEFT_LOG_ERROR, "the trace ends here: %s", strerror(errno));
    fclose(trace->file);
    trace->file = NULL;
}

void wfi_trace_flush(wfi_trace *trace)
{
    pthread_mutex_lock(&trace->file_lock);
    pthread_mutex_lock(&trace->lock);
    wfi_trace_record *records = trace->filling;
    size_t count = trace->count;
    trace->filling = trace->writing;
    trace->writing = records;
    trace->count = 0;
    if (!trace->file)
        trace->dropped += count;
    pthread_mutex_unlock(&trace->lock);
    for (size_t i = 0; i < count && trace->file; i++)
        wfi_trace_write_record(trace, &records[i]);
    check_file(trace);
    pthread_mutex_unlock(&trace->file_lock);
}

/* ---- The thread ------------------------------------------------------------------------------------------------------- */

static bool await_records(wfi_trace *trace)
{
    struct timespec until;
    pthread_mutex_lock(&trace->lock);
    while (!trace->count && !trace->ending)
        pthread_cond_wait(&trace->some, &trace->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LINGER_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int rc = 0;
    while (trace->count < WFI_TRACE_ROOM / 2 && !trace->ending && !rc)
        rc = pthread_cond_timedwait(&trace->some, &trace->lock, &until);
    bool ending = trace->ending;
    pthread_mutex_unlock(&trace->lock);
    return !ending;
}

static void *run_writer(void *arg)
{
    wfi_trace *trace = arg;
    while (await_records(trace))
        wfi_trace_flush(trace);
    return NULL;
}

static weft_status start_thread(wfi_trace *trace, weft_error **error)
{
    sigset_t all, before;
    if (!trace->threaded)
        return WEFT_OK;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&trace->thread, NULL, run_writer, trace);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    trace->running = rc == 0;
    if (!rc) {
        (void)pthread_setname_np(trace->thread, "weft-trace");
        return WEFT_OK;
    }
    *error = weft_error_create(WEFT_ERR_SYSTEM, "no thread for the trace: %s", strerror(rc));
    return WEFT_ERR_SYSTEM;
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------------ */

/* "%r" becomes the rank, "%p" the process; false if it gets too long. */
static bool expand(const char *path, int rank, char *out, size_t room)
{
    size_t at = 0;
    while (*path && at + 12 < room) {
        if (path[0] == '%' && (path[1] == 'r' || path[1] == 'p')) {
            at += (size_t)snprintf(out + at, room - at, "%d", path[1] == 'r' ? rank : (int)getpid());
            path += 2;
        } else {
            out[at++] = *path++;
        }
    }
    out[at] = '\0';
    return !*path;
}

weft_status wfi_trace_begin(wfi_trace *trace, const char *path, const wfi_trace_who *who, weft_error **error)
{
    char name[PATH_MAX];
    trace->rank = who->rank;
    snprintf(trace->interface, sizeof trace->interface, "%s", who->interface);
    if (!expand(path, who->rank, name, sizeof name)) {
        *error = weft_error_create(WEFT_ERR_INVALID, "the path of the trace file is too long");
        return WEFT_ERR_INVALID;
    }
    pthread_mutex_lock(&trace->file_lock);
    trace->file = fopen(name, "we");
    if (!trace->file)
        *error = weft_error_create(WEFT_ERR_IO, "the trace file \"%s\" cannot be written: %s", name, strerror(errno));
    else
        wfi_trace_write_head(trace, who);
    bool open = trace->file != NULL;
    pthread_mutex_unlock(&trace->file_lock);
    return open ? start_thread(trace, error) : WEFT_ERR_IO;
}

void wfi_trace_destroy(wfi_trace *trace)
{
    if (!trace)
        return;
    pthread_mutex_lock(&trace->lock);
    trace->ending = true;
    pthread_cond_signal(&trace->some);
    pthread_mutex_unlock(&trace->lock);
    if (trace->running)
        pthread_join(trace->thread, NULL);
    wfi_trace_flush(trace);
    if (trace->file) {
        wfi_trace_write_end(trace, trace->dropped);
        check_file(trace);
    }
    if (trace->file)
        fclose(trace->file);
    pthread_cond_destroy(&trace->some);
    pthread_mutex_destroy(&trace->lock);
    pthread_mutex_destroy(&trace->file_lock);
    free(trace->filling);
    free(trace->writing);
    free(trace);
}
