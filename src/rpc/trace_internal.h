/* SPDX-License-Identifier: Apache-2.0 */
/* trace_internal.h - what trace.c (buffer, thread) and trace_text.c (events as text) share. */
#ifndef WFI_TRACE_INTERNAL_H
#define WFI_TRACE_INTERNAL_H

#include "rpc/trace.h"

#include <pthread.h>
#include <stdio.h>

#define WFI_TRACE_LANES 1024 /* of one side: as many calls at once have a place in the picture */
#define WFI_TRACE_ROOM 4096  /* records in one of the two buffers */

struct wfi_trace {
    /* Constant once begun. */
    const wfi_clock *clock;
    bool threaded, running; /* running: its thread is there */
    int64_t anchor_ns;
    int rank;
    char interface[64];
    pthread_t thread;

    uint64_t lane_ends[2]
                      [WFI_TRACE_LANES]; /* when the last span of a lane ended; WFI_NEVER: in use. The agent's lock */

    pthread_mutex_t lock; /* a leaf; guards what follows */
    pthread_cond_t some;
    wfi_trace_record *filling;
    size_t count;
    uint64_t dropped;
    bool ending;

    pthread_mutex_t file_lock; /* above `lock`; guards what follows: whoever writes */
    wfi_trace_record *writing;
    FILE *file;        /* NULL: not begun, or it failed */
    uint32_t named[2]; /* lanes whose names are in the file */
};

/* All with file_lock. */
void wfi_trace_write_head(wfi_trace *trace, const wfi_trace_who *who);
void wfi_trace_write_record(wfi_trace *trace, const wfi_trace_record *record);
void wfi_trace_write_end(wfi_trace *trace, uint64_t dropped);

#endif
