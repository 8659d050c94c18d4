/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.h - streams of CUDA devices, and the order of work on different streams.
 *
 * Work is queued on the stream that the calling thread has set, otherwise on the common stream of the device. The
 * common stream is weft's own, and in order with CUDA's legacy default stream. Work on the legacy stream itself
 * would be in order with all blocking streams of the program, and would break its capture of a graph. A storage has
 * a set of the streams that have used it since its last write (`uses`, storage.h). If another stream uses the
 * storage (wfi_storage_use), the other stream first waits for an event, which is recorded at that time on each
 * stream of the set that it must follow. Within one stream there are no events.
 *
 * REUSE. A freed slab keeps the set. So memory is reused while streams still use it, and the stream that writes it
 * next waits for them first (storage.c, take_slab).
 *
 * Each stream of a device has a number. A new stream takes the number of a destroyed one. All work of a destroyed
 * stream is done. A storage may still have its number in the set: then it waits for the new stream, without a need.
 *
 * LOCK. Any thread may call. One lock guards the numbers of all streams. wfi_stream_set changes only the calling
 * thread. LIFETIME. A stream that is set must live until it is replaced. The common streams exist until the process
 * ends.
 */
#ifndef WFI_MEM_STREAM_H
#define WFI_MEM_STREAM_H

#include "base/handle.h"

#include <weft/stream.h>

#define WFI_STREAMS_MOST 56 /* of a device, with its common stream */

struct weft_stream {
    wfi_handle handle;
    _Atomic uint32_t refs;
    int device, number;
    uint64_t id;                              /* never used twice */
    void *driver;                             /* the driver's stream; NULL: the legacy one */
    bool owned;                               /* created by weft */
    void *event;                              /* made at the first crossing; guarded by the lock */
    _Atomic uint64_t waits_begun, waits_done; /* tickets of wfi_stream_wait: the last one begun; the last one done */
};

/* The stream that the thread has set if it is of that device, otherwise the common stream. Borrowed. */
weft_stream *wfi_stream_now(int device);
weft_stream *wfi_stream_common(int device);
/* Sets the stream of the calling thread; NULL: the common streams. Returns the stream that was set before. */
weft_stream *wfi_stream_set(weft_stream *stream);

/* A new stream that does not wait for the legacy stream; or one over the driver's stream `driver` (NULL: the legacy
 * one). One reference. WEFT_ERR_MEMORY, WEFT_ERR_UNSUPPORTED, WEFT_ERR_SYSTEM; WEFT_ERR_STATE: the device has too
 * many streams. WEFT_ERR_INVALID: `driver` is not of the device's primary context, or is CU_STREAM_PER_THREAD. */
weft_status wfi_stream_create(int device, weft_stream **out);
weft_status wfi_stream_wrap(int device, void *driver, weft_stream **out);
/* Drops a reference. The last one waits for the stream's work, and destroys a stream that weft created. */
void wfi_stream_unref(weft_stream *stream);

weft_status wfi_stream_wait(weft_stream *stream);
/* Waits for the work that the streams in the set `numbers` (a bit for each number) have now. WEFT_ERR_TIMEOUT: not
 * all of it is done at the deadline (WFI_NEVER; otherwise by wfi_park_clock). */
weft_status wfi_stream_wait_all(int device, uint64_t numbers, uint64_t deadline_ns);
/* Copies to the host on the stream with this number, and waits for it. If the stream is gone, on the current one. */
weft_status wfi_stream_copy_to_host(int device, int number, void *to, const void *from, size_t size);
/* Work that is queued on `stream` from now on runs after the work that the streams in the set `others` (a bit for
 * each number) have now. */
weft_status wfi_stream_follow(weft_stream *stream, uint64_t others);
/* The same for one stream of another device. */
weft_status wfi_stream_follow_peer(weft_stream *stream, weft_stream *other);

/* A mark for the work that is on the stream now. wfi_stream_passed: a thread has waited for the stream since, or the
 * stream is gone, so that this work is done. Neither function waits. A mark does not keep the stream. */
typedef struct wfi_stream_mark {
    int device, number;
    uint64_t id, waits;
} wfi_stream_mark;
wfi_stream_mark wfi_stream_mark_now(const weft_stream *stream);
bool wfi_stream_passed(const wfi_stream_mark *mark);
/* The stream that has this number now, with a reference; NULL: none has it, or it is being destroyed. */
weft_stream *wfi_stream_find(int device, int number);

#endif
