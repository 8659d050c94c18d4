/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.h - copies between devices and page-locked memory, for which no thread waits.
 *
 *     wfi_copies_begin(&copies, ended);
 *     status = wfi_copies_add(&copies, pinned, 0, device, 0, size);     any number of them
 *     wfi_copies_end(&copies);                                          in any case; `ended` tells when all are done
 *     wfi_copies_fini(&copies);                                         after `ended`
 *
 * STREAMS. Each device has two copy streams, one for each direction, made at first use. Each has one of the device's
 * numbers for streams (stream.h). A copy to the host waits by an event for the stream that wrote the device memory. A
 * copy to the device waits for all streams that use it. Afterwards the copy stream counts as a user of the device
 * memory, or as its writer, so later work on other streams waits for the copy by an event. The host waits for nothing.
 * Only if the driver has no memory for an event, wfi_copies_end waits for the copies.
 *
 * The copy streams do not wait for CUDA's legacy stream, nor it for them: a training step there would hold up each
 * copy. But another library may use memory that it shares with weft (DLPack) on the legacy stream. So copies of such
 * memory (wfi_storage_lend) are ordered with weft's common stream, and that one with the legacy stream. If the library
 * uses other streams, the program must wait itself.
 *
 * THE END. A host function behind the copies tells when they are done. CUDA calls none after an error of the device.
 * So somebody calls wfi_copies_poll at least every 100 ms while copies are out.
 *
 * LOCK. Several threads may call at once, each for another wfi_copies. All functions but wfi_copies_fini call the
 * driver, so they are called without the agent's lock. The lock of copies.c is held while `ended` runs, and never while
 * the driver is called.
 * LIFETIME. The page-locked storage and the wfi_copies must live until `ended`. The device storage may be released as
 * soon as the copy is added: the next user of the memory waits for the copy by an event. But keep one that is
 * borrowed from the program (wfi_storage_wrap): its last unref waits for the device.
 * FORK. A child of fork() must not call these functions: the driver does not work there.
 */
#ifndef WFI_MEM_COPIES_H
#define WFI_MEM_COPIES_H

#include "mem/mem.h"

typedef struct wfi_copies {
    /*
     * Called once, after or within wfi_copies_end, when all copies have ended; `status` is the first failure. It
     * runs on any thread: one of the driver's, the one that polls, or the caller of wfi_copies_end. It must not call
     * the driver, these functions, or what takes the agent's lock: it sets a flag and wakes somebody.
     */
    void (*ended)(struct wfi_copies *copies, weft_status status);
    uint64_t used[2]; /* by direction: a bit for each device on whose stream there are copies */
    unsigned out; /* number of streams whose copies have not ended; one more before wfi_copies_end [lock of copies.c] */
    weft_status status; /* the first failure [lock of copies.c, after wfi_copies_end] */
} wfi_copies;

void wfi_copies_begin(wfi_copies *copies, void (*ended)(wfi_copies *copies, weft_status status));
/*
 * Queues one copy. One of the two storages is device memory, the other is page-locked. The copy
 * runs later: the host may change neither side until `ended`. A failure is also the status of
 * `ended`, and leaves the earlier copies queued: WEFT_ERR_INVALID (kinds, ranges), WEFT_ERR_STATE (the device has no
 * number for the copy stream), WEFT_ERR_MEMORY, WEFT_ERR_UNSUPPORTED, WEFT_ERR_SYSTEM.
 */
weft_status wfi_copies_add(wfi_copies *copies, wfi_storage *to, size_t to_offset, wfi_storage *from, size_t from_offset,
                           size_t size);
/* No copy is added after it. */
void wfi_copies_end(wfi_copies *copies);
/* Asks the driver which copies of the process are done, and ends these, and those whose device has failed
 * (WEFT_ERR_SYSTEM). Returns how many wfi_copies are still out. */
size_t wfi_copies_poll(void);
/* Waits for a call of `ended` in progress. Call it after `ended`, or if no copy was added. */
void wfi_copies_fini(wfi_copies *copies);

/* The copy stream to the device. If a thread sets it (wfi_stream_set) and then creates the storage for data that
 * arrive, the copy does not wait for the work of the common stream. Borrowed; lives until the process ends. Errors
 * as wfi_copies_add. */
weft_status wfi_copies_stream(int device, weft_stream **out);

#endif
