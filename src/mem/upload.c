/* SPDX-License-Identifier: Apache-2.0 */
/* upload.c - see upload.h. */
#include "mem/upload.h"

#include "mem/cuda.h"
#include "mem/slab.h"

#include <pthread.h>
#include <string.h>

#define PIECE_BYTES ((size_t)256 << 10)
#define PIECES 32
#define ALIGNMENT ((size_t)64)

/* LOCK. `lock` guards the other fields. It is held while the bytes are copied. */
typedef struct ring {
    pthread_mutex_t lock;
    void *memory;         /* of all pieces; NULL: not yet taken */
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

int wfi_upload(int device, uint64_t to, const void *from, size_t size, void *stream)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    ring *r = &rings[device];
    int error = 0;
    pthread_mutex_lock(&r->lock);
    if (!r->memory) { /* the pool frees idle memory if there is none, and says what is short */
        wfi_slab *slab;
        weft_status status = wfi_slab_alloc(WFI_MEMORY_PINNED, device, PIECES * PIECE_BYTES, 0, &slab);
        if (status == WEFT_OK)
            r->memory = slab->data;
        else
            error = WFI_CUDA_OUT_OF_MEMORY;
    }
    for (size_t done = 0; done < size && error == 0;) {
        size_t part = size - done < PIECE_BYTES ? size - done : PIECE_BYTES;
        if (!r->events[r->piece] || r->stream != stream || part > PIECE_BYTES - r->used)
            error = next_piece(driver, r, stream);
        if (error != 0)
            break;
        char *at = (char *)r->memory + r->piece * PIECE_BYTES + r->used;
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
