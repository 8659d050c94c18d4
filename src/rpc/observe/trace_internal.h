/* SPDX-License-Identifier: Apache-2.0 */
/* trace_internal.h - the struct of a trace, for trace.c (buffer, thread) and trace_text.c (events as text). */
#ifndef WFI_TRACE_INTERNAL_H
#define WFI_TRACE_INTERNAL_H

#include "rpc/observe/trace.h"

#include <pthread.h>
#include <stdio.h>

/* weft/metrics.h documents both limits. */
#define WFI_TRACE_TRACKS 16384 /* tracks of one side: the number of simultaneous calls that are shown */
#define WFI_TRACE_ROOM 131072  /* records that wait to be written */
#define WFI_TRACE_CHUNK 512

typedef struct wfi_trace_chunk {
    struct wfi_trace_chunk *next;
    size_t count;
    wfi_trace_record records[WFI_TRACE_CHUNK];
} wfi_trace_chunk;

/* The tracks of one side. */
typedef struct wfi_trace_tracks {
    uint64_t *ends; /* when the last span of a track ended */
    uint32_t *free; /* a stack of the free tracks */
    uint32_t free_count, made, room;
} wfi_trace_tracks;

struct wfi_trace {
    /* Constant after wfi_trace_begin. */
    const wfi_clock *clock;
    bool threaded, running; /* running: its thread was started */
    int64_t realtime_offset_ns;
    int rank;
    char interface[64];
    pthread_t thread;

    wfi_trace_tracks tracks[WFI_TRACE_SIDES]; /* guarded by the agent's lock */

    pthread_mutex_t lock; /* a leaf; guards the fields up to file_lock */
    pthread_cond_t some;
    wfi_trace_chunk *first, *last; /* to be written */
    wfi_trace_chunk *spare;
    size_t queued; /* records in the list */
    size_t count;  /* `queued`, plus those that are being written */
    uint64_t dropped;
    uint64_t dropped_logged, logged_ns; /* the number of dropped records that was last logged, and when */
    bool ending;

    pthread_mutex_t file_lock;       /* taken before `lock`; guards the fields below. Held while writing */
    FILE *file;                      /* NULL: not begun, or writing has failed */
    uint32_t named[WFI_TRACE_SIDES]; /* tracks whose names are in the file */
};

/* All with file_lock held. */
void wfi_trace_write_head(wfi_trace *trace, const wfi_trace_who *who);
void wfi_trace_write_record(wfi_trace *trace, const wfi_trace_record *record);
void wfi_trace_write_end(wfi_trace *trace, uint64_t dropped);

#endif
