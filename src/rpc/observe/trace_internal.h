/* SPDX-License-Identifier: Apache-2.0 */
/* trace_internal.h - what trace.c (buffer, thread) and trace_text.c (events as text) share. */
#ifndef WFI_TRACE_INTERNAL_H
#define WFI_TRACE_INTERNAL_H

#include "rpc/observe/trace.h"

#include <pthread.h>
#include <stdio.h>

/* weft/metrics.h states both bounds. */
#define WFI_TRACE_TRACKS 16384 /* of one side: as many calls at once have a place in the picture */
#define WFI_TRACE_ROOM 131072  /* records that wait to be written */
#define WFI_TRACE_CHUNK 512

typedef struct wfi_trace_chunk {
    struct wfi_trace_chunk *next;
    size_t count;
    wfi_trace_record records[WFI_TRACE_CHUNK];
} wfi_trace_chunk;

/* Of one side. */
typedef struct wfi_trace_tracks {
    uint64_t *ends; /* when the last span of a track ended */
    uint32_t *free; /* those in no use, the last one freed on top */
    uint32_t free_count, made, room;
} wfi_trace_tracks;

struct wfi_trace {
    /* Constant once begun. */
    const wfi_clock *clock;
    bool threaded, running; /* running: its thread is there */
    int64_t anchor_ns;
    int rank;
    char interface[64];
    pthread_t thread;

    wfi_trace_tracks tracks[WFI_TRACE_SIDES]; /* the agent's lock */

    pthread_mutex_t lock; /* a leaf; guards what follows */
    pthread_cond_t some;
    wfi_trace_chunk *first, *last; /* to be written */
    wfi_trace_chunk *spare;
    size_t queued; /* records in them */
    size_t count;  /* and with those that are being written */
    uint64_t dropped;
    uint64_t dropped_told, told_ns; /* what the log knows of it, and since when */
    bool ending;

    pthread_mutex_t file_lock;       /* above `lock`; guards what follows: whoever writes */
    FILE *file;                      /* NULL: not begun, or it failed */
    uint32_t named[WFI_TRACE_SIDES]; /* tracks whose names are in the file */
};

/* All with file_lock. */
void wfi_trace_write_head(wfi_trace *trace, const wfi_trace_who *who);
void wfi_trace_write_record(wfi_trace *trace, const wfi_trace_record *record);
void wfi_trace_write_end(wfi_trace *trace, uint64_t dropped);

#endif
