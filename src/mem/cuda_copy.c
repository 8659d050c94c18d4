/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuda_copy.c - copies to a device, from the host or from another device.
 *
 * UPLOADS. The driver promises nothing for a copy from memory that is not page-locked. It may read the bytes before the
 * call returns, or while the stream works ("API synchronization behavior" of the CUDA driver API). But weft lets the
 * caller change the bytes at once, so they are first copied to page-locked memory: 32 pieces of 256 KiB for each
 * device. These are taken at the first copy and kept until the process ends. An event tells when the device has read a
 * piece.
 */
#include "mem/cuda_copy.h"

#include "mem/cuda.h"
#include "mem/slab.h"
#include "mem/stream.h"

#include <pthread.h>
#include <string.h>

static uint64_t address_of(const void *at)
{
    return (uint64_t)(uintptr_t)at;
}

/* ---- From the host ----------------------------------------------------------------------------------------------- */

#define PIECE_BYTES ((size_t)256 << 10)
#define PIECES 32
#define ALIGNMENT ((size_t)64)

/* LOCK. `lock` guards the other fields. It is held while the bytes are copied. */
typedef struct ring {
    pthread_mutex_t lock;
    wfi_slab *memory;     /* of all pieces; NULL: not yet taken */
    void *events[PIECES]; /* recorded behind the last copy from the piece; NULL: there was none */
    unsigned piece;       /* the piece that copies use now; the next one is the oldest */
    size_t used;          /* bytes of it */
    void *stream;         /* of its copies */
} ring;

static ring rings[WFI_CUDA_DEVICES_MAX] = {[0 ... WFI_CUDA_DEVICES_MAX - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

/* Goes to the next piece, once the device has read it. [lock] */
static int next_piece(const wfi_cuda_driver *driver, ring *r, void *stream)
{
    enum { BLOCKING = 1, NO_TIMING = 2 }; /* CU_EVENT_BLOCKING_SYNC: a waiting thread sleeps; CU_EVENT_DISABLE_TIMING */
    unsigned next = (r->piece + 1) % PIECES;
    void **event = &r->events[next];
    int error = !*event ? driver->event_create(event, BLOCKING | NO_TIMING) : driver->event_query(*event);
    if (error == WFI_CUDA_NOT_READY)
        error = driver->event_wait(*event);
    if (error != 0)
        return error;
    r->piece = next;
    r->used = 0;
    r->stream = stream;
    return 0;
}

/* Queues the copy on the driver's stream `stream` of `device`, whose context is current. `from` may be changed when it
 * returns. It waits only for pieces that the device has not read yet; other copies to the same device then wait too.
 * Returns an error of the driver. */
static int upload(int device, uint64_t to, const void *from, size_t size, void *stream)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    ring *r = &rings[device];
    int error = 0;
    pthread_mutex_lock(&r->lock);
    if (!r->memory && wfi_slab_alloc(WFI_MEMORY_PINNED, device, PIECES * PIECE_BYTES, 0, &r->memory) != WEFT_OK)
        error = WFI_CUDA_OUT_OF_MEMORY; /* the pool has freed idle memory, and has said what is short */
    for (size_t done = 0; done < size && error == 0;) {
        size_t part = size - done < PIECE_BYTES ? size - done : PIECE_BYTES;
        if (!r->events[r->piece] || r->stream != stream || part > PIECE_BYTES - r->used)
            error = next_piece(driver, r, stream);
        if (error != 0)
            break;
        char *at = (char *)r->memory->data + r->piece * PIECE_BYTES + r->used;
        memcpy(at, (const char *)from + done, part);
        error = driver->copy_to_device(to + done, at, part, stream);
        if (error == 0)
            error = driver->event_record(r->events[r->piece], stream);
        r->used += (part + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        done += part;
    }
    pthread_mutex_unlock(&r->lock);
    return error;
}

/* ---- From another device ----------------------------------------------------------------------------------------- */

/* Lets each of two devices use the other's memory, if the machine can. Otherwise the driver copies through the host. */
static void enable_peers(const wfi_cuda_driver *driver, int one, int other)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `tried` */
    static bool tried[WFI_CUDA_DEVICES_MAX][WFI_CUDA_DEVICES_MAX];
    const int devices[] = {one, other};
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 2 && !tried[one][other]; i++) {
        int handle = 0, peer = 0, possible = 0;
        if (wfi_cuda_enter(devices[i]) != WEFT_OK)
            continue;
        if (driver->device_get(&handle, devices[i]) == 0 && driver->device_get(&peer, devices[1 - i]) == 0 &&
            driver->peer_possible(&possible, handle, peer) == 0 && possible) {
            int error = driver->peer_enable(wfi_cuda_context(devices[1 - i]), 0);
            if (error != WFI_CUDA_PEER_ALREADY_ENABLED) /* by another library: as well */
                (void)wfi_cuda_status(error, "letting a GPU use the memory of another");
        }
        wfi_cuda_leave();
    }
    tried[one][other] = tried[other][one] = true;
    pthread_mutex_unlock(&lock);
}

/*
 * The source's stream copies. A storage knows only streams of its own device, and the destination counts as written by
 * its own stream: so the source's stream first waits for that one, which waits for the copy. The host waits for none.
 */
static weft_status copy_between(int to_device, void *to, int from_device, const void *from, size_t size)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    weft_stream *reader = wfi_stream_now(from_device), *writer = wfi_stream_now(to_device);
    weft_status status = wfi_stream_follow_peer(reader, writer);
    if (status == WEFT_OK)
        status = wfi_cuda_enter(from_device);
    if (status != WEFT_OK)
        return status;
    enable_peers(driver, from_device, to_device);
    int error = driver->copy_peer(address_of(to), wfi_cuda_context(to_device), address_of(from),
                                  wfi_cuda_context(from_device), size, reader->driver);
    wfi_cuda_leave();
    status = wfi_cuda_status(error, "copying between devices");
    if (status == WEFT_OK)
        status = wfi_stream_follow_peer(writer, reader);
    if (status != WEFT_OK)
        (void)wfi_stream_wait(reader); /* the caller frees the destination: the copy must not run later */
    return status;
}

weft_status wfi_cuda_copy(int to_device, void *to, wfi_memory_kind from_kind, int from_device, const void *from,
                          size_t size)
{
    if (from_kind == WFI_MEMORY_CUDA && from_device != to_device)
        return copy_between(to_device, to, from_device, from, size);
    weft_status status = wfi_cuda_enter(to_device);
    if (status != WEFT_OK)
        return status;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    void *stream = wfi_stream_now(to_device)->driver;
    int error;
    if (from_kind == WFI_MEMORY_HOST) {
        error = upload(to_device, address_of(to), from, size, stream);
    } else if (from_kind == WFI_MEMORY_PINNED) { /* the device reads it later, and the caller may change it at once */
        error = driver->copy_to_device(address_of(to), from, size, stream);
        if (error == 0)
            error = driver->stream_wait(stream);
    } else {
        error = driver->copy_within(address_of(to), address_of(from), size, stream);
    }
    status = wfi_cuda_status(error, "copying device memory");
    wfi_cuda_leave();
    return status;
}
