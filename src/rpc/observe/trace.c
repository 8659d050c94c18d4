/* SPDX-License-Identifier: Apache-2.0 */
/*
 * trace.c - the buffer of spans, and the thread that writes it: see trace.h.
 *
 * Chunks of records wait in a list of limited length for the thread, which takes them all. It sleeps until there are
 * records, then waits a little, so that it writes many at once. If the process dies, the file contains only whole
 * lines.
 */
#include "base/alloc.h"
#include "base/nosignal.h"
#include "rpc/observe/trace_internal.h"

#include "base/text/log.h"
#include "base/thread.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <time.h>

#define LINGER_NS 50000000
#define WAKE_AT 2048              /* with this many records the thread does not wait longer */
#define LOG_EVERY_NS 10000000000u /* interval of log lines about dropped records */
#define LOOK_AT_TRACKS 64         /* free tracks that are checked before a new one is made */

static int64_t realtime_offset_of(const wfi_clock *clock)
{
    struct timespec now;
    if (clock != &wfi_clock_real)
        return 0; /* all workers of a simulation share one clock */
    uint64_t before = wfi_now(clock);
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t after = wfi_now(clock);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec - (int64_t)(before + (after - before) / 2);
}

weft_status wfi_trace_create(const wfi_clock *clock, bool threaded, wfi_trace **out)
{
    pthread_condattr_t monotonic;
    wfi_trace *trace = wfi_calloc(1, sizeof(*trace));
    if (!trace)
        return WEFT_ERR_MEMORY;
    trace->clock = clock;
    trace->threaded = threaded;
    trace->realtime_offset_ns = realtime_offset_of(clock);
    pthread_mutex_init(&trace->lock, NULL);
    pthread_mutex_init(&trace->file_lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&trace->some, &monotonic);
    pthread_condattr_destroy(&monotonic);
    *out = trace;
    return WEFT_OK;
}

int64_t wfi_trace_realtime_offset_ns(const wfi_trace *trace)
{
    return trace->realtime_offset_ns;
}

/* ---- Tracks ------------------------------------------------------------------------------------------------------ */

static bool make_track_room(wfi_trace_tracks *tracks)
{
    uint32_t room = tracks->room ? tracks->room * 2 : 64;
    if (tracks->made < tracks->room)
        return true;
    if (room > WFI_TRACE_TRACKS)
        return false;
    uint64_t *ends = realloc(tracks->ends, room * sizeof(*ends));
    tracks->ends = ends ? ends : tracks->ends;
    uint32_t *spare = realloc(tracks->free, room * sizeof(*spare));
    tracks->free = spare ? spare : tracks->free;
    if (!ends || !spare)
        return false;
    tracks->room = room;
    return true;
}

uint32_t wfi_trace_take_track(wfi_trace *trace, wfi_trace_side side, uint64_t begun_ns)
{
    wfi_trace_tracks *tracks = &trace->tracks[side];
    uint32_t least = tracks->made < WFI_TRACE_TRACKS && tracks->free_count > LOOK_AT_TRACKS
                         ? tracks->free_count - LOOK_AT_TRACKS
                         : 0;
    for (uint32_t i = tracks->free_count; i-- > least;) {
        uint32_t track = tracks->free[i];
        if (tracks->ends[track] > begun_ns)
            continue;
        tracks->free[i] = tracks->free[--tracks->free_count];
        return track + 1;
    }
    return make_track_room(tracks) ? ++tracks->made : 0;
}

void wfi_trace_free_track(wfi_trace *trace, wfi_trace_side side, uint32_t track, uint64_t end_ns)
{
    wfi_trace_tracks *tracks = &trace->tracks[side];
    if (!track)
        return;
    tracks->ends[track - 1] = end_ns;
    tracks->free[tracks->free_count++] = track - 1;
}

/* ---- The buffer -------------------------------------------------------------------------------------------------- */

/* The place of the next record; NULL: the buffer is full, or memory is out. `lock` is held. */
static wfi_trace_record *next_record(wfi_trace *trace)
{
    wfi_trace_chunk *chunk = trace->last;
    if (trace->count >= WFI_TRACE_ROOM)
        return NULL;
    if (!chunk || chunk->count == WFI_TRACE_CHUNK) {
        chunk = trace->spare ? trace->spare : malloc(sizeof(*chunk));
        trace->spare = NULL;
        if (!chunk)
            return NULL;
        chunk->next = NULL;
        chunk->count = 0;
        if (trace->last)
            trace->last->next = chunk;
        else
            trace->first = chunk;
        trace->last = chunk;
    }
    trace->count++;
    trace->queued++;
    return &chunk->records[chunk->count++];
}

bool wfi_trace_add(wfi_trace *trace, const wfi_trace_record *record)
{
    pthread_mutex_lock(&trace->lock);
    wfi_trace_record *to = record->span.track ? next_record(trace) : NULL;
    if (to)
        *to = *record;
    else
        trace->dropped++;
    if (trace->threaded && (trace->queued == 1 || trace->queued == WAKE_AT))
        pthread_cond_signal(&trace->some);
    bool due = !trace->threaded && trace->queued >= WAKE_AT;
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
    wfi_log_in(&(wfi_log_context){.rank = trace->rank}, WEFT_LOG_ERROR, "the trace ends here: %s",
               wfi_nosignal_strerror(errno));
    fclose(trace->file);
    trace->file = NULL;
    pthread_mutex_lock(&trace->lock);
    trace->dropped_logged = UINT64_MAX; /* no more lines about dropped records: nothing is written from now on */
    pthread_mutex_unlock(&trace->lock);
}

static wfi_trace_chunk *take_chunks(wfi_trace *trace)
{
    pthread_mutex_lock(&trace->lock);
    wfi_trace_chunk *chunks = trace->first;
    trace->first = trace->last = NULL;
    trace->queued = 0;
    pthread_mutex_unlock(&trace->lock);
    return chunks;
}

static void recycle_chunk(wfi_trace *trace, wfi_trace_chunk *chunk)
{
    pthread_mutex_lock(&trace->lock);
    trace->count -= chunk->count;
    if (!trace->file)
        trace->dropped += chunk->count;
    wfi_trace_chunk *unneeded = trace->spare ? chunk : NULL;
    if (!unneeded)
        trace->spare = chunk;
    pthread_mutex_unlock(&trace->lock);
    free(unneeded);
}

/* Logs the number of dropped records: every LOG_EVERY_NS, and at the end. */
static void log_dropped(wfi_trace *trace, bool now_at_least)
{
    uint64_t now = wfi_now(trace->clock);
    pthread_mutex_lock(&trace->lock);
    uint64_t dropped = trace->dropped;
    bool due = dropped > trace->dropped_logged &&
               (now_at_least || !trace->dropped_logged || now - trace->logged_ns >= LOG_EVERY_NS);
    if (due) {
        trace->dropped_logged = dropped;
        trace->logged_ns = now;
    }
    pthread_mutex_unlock(&trace->lock);
    if (due)
        wfi_log_in(&(wfi_log_context){.rank = trace->rank, .clock = trace->clock}, WEFT_LOG_WARN,
                   "the trace has lost %llu spans: more than %d waited to be written, or more than %d calls or passes "
                   "were in progress",
                   (unsigned long long)dropped, WFI_TRACE_ROOM, WFI_TRACE_TRACKS);
}

void wfi_trace_flush(wfi_trace *trace)
{
    wfi_trace_chunk *next;
    wfi_nosignal saved;
    pthread_mutex_lock(&trace->file_lock);
    wfi_nosignal_begin(&saved);
    for (wfi_trace_chunk *chunk = take_chunks(trace); chunk; chunk = next) {
        next = chunk->next;
        for (size_t i = 0; i < chunk->count && trace->file; i++)
            wfi_trace_write_record(trace, &chunk->records[i]);
        recycle_chunk(trace, chunk);
    }
    check_file(trace);
    wfi_nosignal_end(&saved);
    pthread_mutex_unlock(&trace->file_lock);
    log_dropped(trace, false);
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static bool await_records(wfi_trace *trace)
{
    struct timespec until;
    pthread_mutex_lock(&trace->lock);
    while (!trace->queued && !trace->ending)
        pthread_cond_wait(&trace->some, &trace->lock);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LINGER_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int rc = 0;
    while (trace->queued < WAKE_AT && !trace->ending && !rc)
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
    if (!trace->threaded)
        return WEFT_OK;
    int rc = wfi_thread_start(&trace->thread, run_writer, trace, "weft-trace");
    trace->running = rc == 0;
    if (!rc)
        return WEFT_OK;
    *error = weft_error_create(WEFT_ERR_SYSTEM, "no thread for the trace: %s", strerror(rc));
    return WEFT_ERR_SYSTEM;
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------- */

/* The position for the rank if the path has no "%r": before the extension of the file name. */
static size_t rank_place(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    return dot && dot > name ? (size_t)(dot - path) : strlen(path);
}

bool wfi_trace_expand(const char *path, const wfi_trace_who *who, char *out, size_t room)
{
    size_t at = 0, i = 0;
    int rank = who->rank;
    size_t place = who->world_size > 1 && !strstr(path, "%r") ? rank_place(path)
                                                              : SIZE_MAX; /* otherwise all would write to one file */
    while (at + 24 < room) {
        if (i == place)
            at += (size_t)snprintf(out + at, room - at, ".%d", rank);
        if (!path[i])
            break;
        if (path[i] == '%' && (path[i + 1] == 'r' || path[i + 1] == 'p')) {
            at += (size_t)snprintf(out + at, room - at, "%d", path[i + 1] == 'r' ? rank : (int)getpid());
            i += 2;
        } else {
            out[at++] = path[i++];
        }
    }
    out[at] = '\0';
    return !path[i];
}

weft_status wfi_trace_begin(wfi_trace *trace, const char *path, const wfi_trace_who *who, weft_error **error)
{
    char name[PATH_MAX];
    trace->rank = who->rank;
    snprintf(trace->interface, sizeof(trace->interface), "%s", who->interface);
    if (!wfi_trace_expand(path, who, name, sizeof(name))) {
        *error = weft_error_create(WEFT_ERR_INVALID, "the path of the trace file is too long");
        return WEFT_ERR_INVALID;
    }
    wfi_nosignal saved;
    pthread_mutex_lock(&trace->file_lock);
    wfi_nosignal_begin(&saved);
    trace->file = fopen(name, "we");
    if (!trace->file)
        *error = weft_error_create(WEFT_ERR_IO, "the trace file \"%s\" cannot be written: %s", name,
                                   wfi_nosignal_strerror(errno));
    else
        wfi_trace_write_head(trace, who);
    bool open = trace->file != NULL;
    wfi_nosignal_end(&saved);
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
    log_dropped(trace, true);
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    if (trace->file) {
        wfi_trace_write_end(trace, trace->dropped);
        check_file(trace);
    }
    if (trace->file)
        fclose(trace->file);
    wfi_nosignal_end(&saved);
    pthread_cond_destroy(&trace->some);
    pthread_mutex_destroy(&trace->lock);
    pthread_mutex_destroy(&trace->file_lock);
    free(trace->spare);
    for (int side = 0; side < WFI_TRACE_SIDES; side++) {
        free(trace->tracks[side].ends);
        free(trace->tracks[side].free);
    }
    free(trace);
}
