/* SPDX-License-Identifier: Apache-2.0 */
/*
 * copies.c - see copies.h.
 *
 * The host functions are on a stream of their own, which waits for an event behind the copies. A stream that waits
 * for a copy, and the next copy, thus never wait for a thread of the host.
 *
 * Ends are numbered on each stream: if one has come, so have those with smaller numbers. A host function gets its
 * stream and its number, and no pointer, which could be gone if the poller was faster. The event that the poller
 * asks for may meanwhile be recorded again, for a later end: if that one has come, so has the earlier one.
 */
#include "mem/copies.h"

#include "base/alloc.h"
#include "base/list.h"
#include "base/text/log.h"
#include "mem/cuda.h"
#include "mem/storage.h"
#include "mem/stream.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

enum { TO_HOST, TO_DEVICE, DIRECTIONS };
enum { LANE_BITS = 7, LANES = WFI_CUDA_DEVICES_MAX * DIRECTIONS };
enum { NO_WAIT_FOR_LEGACY = 1, NO_TIMING = 2 }; /* CU_STREAM_NON_BLOCKING, CU_EVENT_DISABLE_TIMING */

/* The end of a wfi_copies on one stream. */
typedef struct mark {
    wfi_list link; /* in `out` or `idle` of its lane */
    wfi_copies *copies;
    uint64_t number;
    void *event;
} mark;

/* The copies of a device in one direction. */
typedef struct lane {
    pthread_mutex_t submitting;    /* held while an end is queued, so that the numbers are in the order of the stream */
    _Atomic(weft_stream *) stream; /* NULL: not made yet */
    void *teller;                  /* the driver's stream of the host functions */
    uint64_t last;                 /* number [submitting] */
    wfi_list out, idle;            /* marks: by number; done, with events that can be recorded again [lock] */
} lane;

static lane lanes[LANES] = {[0 ... LANES - 1] = {.submitting = PTHREAD_MUTEX_INITIALIZER}};

/* `lock` guards the lists of marks, and the fields of each wfi_copies. The driver is not called with it. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static size_t sets_out; /* wfi_copies that were ended and are not done [lock] */

static int device_of(const lane *l)
{
    return (int)(l - lanes) / DIRECTIONS;
}

/* ---- Streams ---- */

static weft_status make_streams(lane *l)
{
    weft_stream *stream = NULL;
    weft_status status = wfi_stream_create(device_of(l), &stream);
    if (status == WEFT_ERR_STATE)
        wfi_log(WEFT_LOG_ERROR, "cuda:%d has %d streams already, and none is left to copy: drop some", device_of(l),
                WFI_STREAMS_MOST - 1);
    if (status == WEFT_OK)
        status = wfi_cuda_enter(device_of(l));
    if (status == WEFT_OK) {
        int error = wfi_cuda_driver_get()->stream_create(&l->teller, NO_WAIT_FOR_LEGACY);
        status = wfi_cuda_status(error, "creating a stream");
        wfi_cuda_leave();
    }
    if (status != WEFT_OK) {
        wfi_stream_unref(stream);
        return status;
    }
    wfi_list_init(&l->out);
    wfi_list_init(&l->idle);
    atomic_store_explicit(&l->stream, stream, memory_order_release);
    return WEFT_OK;
}

static weft_status find_lane(int device, int direction, lane **out)
{
    if (!wfi_cuda_is_number(device))
        return WEFT_ERR_INVALID;
    lane *l = *out = &lanes[device * DIRECTIONS + direction];
    weft_status status = WEFT_OK;
    if (atomic_load_explicit(&l->stream, memory_order_acquire))
        return WEFT_OK;
    pthread_mutex_lock(&l->submitting);
    if (!atomic_load_explicit(&l->stream, memory_order_relaxed))
        status = make_streams(l);
    pthread_mutex_unlock(&l->submitting);
    return status;
}

weft_status wfi_copies_stream(int device, weft_stream **out)
{
    lane *l;
    weft_status status = find_lane(device, TO_DEVICE, &l);
    if (status == WEFT_OK)
        *out = atomic_load_explicit(&l->stream, memory_order_relaxed);
    return status;
}

/* ---- Copies ---- */

void wfi_copies_begin(wfi_copies *copies, void (*ended)(wfi_copies *copies, weft_status status))
{
    *copies = (wfi_copies){.ended = ended, .out = 1, .status = WEFT_OK};
}

/* Queues the copy on `stream`, in order with other users of the device's memory. */
static weft_status queue_copy(weft_stream *stream, wfi_storage *to, char *at, wfi_storage *from, const char *source,
                              size_t size)
{
    bool to_device = to->kind == WFI_MEMORY_CUDA;
    wfi_storage *memory = to_device ? to : from; /* the device's */
    bool is_lent = atomic_load_explicit(&memory->is_lent, memory_order_acquire);
    weft_stream *common = wfi_stream_common(memory->device), *before = wfi_stream_set(stream);
    weft_status status = wfi_storage_use(memory, to_device); /* on `stream`, which is set; written if to_device */
    wfi_stream_set(before);
    if (status == WEFT_OK && is_lent)
        status = wfi_stream_follow(stream, UINT64_C(1) << common->number);
    if (status == WEFT_OK)
        status = wfi_cuda_enter(memory->device);
    if (status != WEFT_OK)
        return status;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    int error = to_device ? driver->copy_to_device((uint64_t)(uintptr_t)at, source, size, stream->driver)
                          : driver->copy_to_host(at, (uint64_t)(uintptr_t)source, size, stream->driver);
    wfi_cuda_leave();
    status = wfi_cuda_status(error, "copying device memory");
    if (status == WEFT_OK && is_lent)
        status = wfi_stream_follow(common, UINT64_C(1) << stream->number);
    return status;
}

weft_status wfi_copies_add(wfi_copies *copies, wfi_storage *to, size_t to_offset, wfi_storage *from, size_t from_offset,
                           size_t size)
{
    bool to_device = to->kind == WFI_MEMORY_CUDA;
    int device = to_device ? to->device : from->device, direction = to_device ? TO_DEVICE : TO_HOST;
    wfi_memory_kind host_kind = to_device ? from->kind : to->kind;
    bool fits = to_offset <= to->size && size <= to->size - to_offset && from_offset <= from->size &&
                size <= from->size - from_offset;
    bool has_device = to_device || from->kind == WFI_MEMORY_CUDA;
    weft_status status = fits && has_device && host_kind == WFI_MEMORY_PINNED ? WEFT_OK : WEFT_ERR_INVALID;
    lane *l = NULL;
    if (status == WEFT_OK && size > 0)
        status = find_lane(device, direction, &l);
    if (l && status == WEFT_OK) {
        copies->used[direction] |= UINT64_C(1) << device;
        status = queue_copy(atomic_load_explicit(&l->stream, memory_order_relaxed), to, (char *)to->data + to_offset,
                            from, (const char *)from->data + from_offset, size);
    }
    copies->status = copies->status == WEFT_OK ? status : copies->status;
    return status;
}

/* ---- The end ---- */

/* [lock] */
static void drop(wfi_copies *copies, weft_status status)
{
    copies->status = copies->status == WEFT_OK ? status : copies->status;
    if (--copies->out > 0)
        return;
    sets_out--;
    copies->ended(copies, copies->status); /* and then the struct may be gone */
}

/* All ends of the stream up to this number have come. [lock] */
static void finish(lane *l, uint64_t number, weft_status status)
{
    while (!wfi_list_empty(&l->out)) {
        mark *m = wfi_container_of(l->out.next, mark, link);
        if (m->number > number)
            return;
        wfi_list_remove(&m->link);
        wfi_list_push_front(&l->idle, &m->link);
        drop(m->copies, status);
    }
}

/* Runs on a thread of the driver. */
static void host_function(void *word)
{
    uintptr_t number = (uintptr_t)word >> LANE_BITS;
    pthread_mutex_lock(&lock);
    finish(&lanes[(uintptr_t)word % (1u << LANE_BITS)], number, WEFT_OK);
    pthread_mutex_unlock(&lock);
}

/* A mark whose event can be recorded; NULL: no memory. The context of the device is current. */
static mark *take_mark(lane *l)
{
    pthread_mutex_lock(&lock);
    wfi_list *link = wfi_list_pop_front(&l->idle);
    pthread_mutex_unlock(&lock);
    if (link)
        return wfi_container_of(link, mark, link);
    mark *m = wfi_calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    wfi_list_init(&m->link);
    if (wfi_cuda_driver_get()->event_create(&m->event, NO_TIMING) == 0)
        return m;
    free(m);
    return NULL;
}

/* Queues the event and the host function. False: the driver refuses the event. If it refuses only the function, the
 * poller finds the end. [submitting] */
static bool queue_end(lane *l, void *stream, wfi_copies *copies)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    mark *m = take_mark(l);
    bool is_recorded = m && driver->event_record(m->event, stream) == 0;
    if (!m)
        return false;
    pthread_mutex_lock(&lock);
    if (is_recorded) {
        m->number = ++l->last;
        m->copies = copies;
        copies->out++;
    }
    wfi_list_push_back(is_recorded ? &l->out : &l->idle, &m->link);
    void *event = m->event;
    pthread_mutex_unlock(&lock);
    if (is_recorded && driver->stream_wait_event(l->teller, event, 0) == 0) {
        uintptr_t word = (uintptr_t)l->last << LANE_BITS | (uintptr_t)(l - lanes);
        (void)driver->launch_host(l->teller, host_function, (void *)word);
    }
    return is_recorded;
}

static weft_status end_lane(lane *l, wfi_copies *copies)
{
    weft_stream *stream = atomic_load_explicit(&l->stream, memory_order_relaxed);
    weft_status status = wfi_cuda_enter(device_of(l));
    if (status != WEFT_OK)
        return status; /* the device has failed, or the process ends */
    pthread_mutex_lock(&l->submitting);
    bool is_queued = queue_end(l, stream->driver, copies);
    pthread_mutex_unlock(&l->submitting);
    wfi_cuda_leave();
    return is_queued ? WEFT_OK : wfi_stream_wait(stream);
}

void wfi_copies_end(wfi_copies *copies)
{
    weft_status status = WEFT_OK;
    pthread_mutex_lock(&lock);
    sets_out++;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < LANES; i++) {
        if ((copies->used[i % DIRECTIONS] >> i / DIRECTIONS & 1) == 0)
            continue;
        weft_status one = end_lane(&lanes[i], copies);
        status = status == WEFT_OK ? one : status;
    }
    pthread_mutex_lock(&lock);
    drop(copies, status);
    pthread_mutex_unlock(&lock);
}

/* Asks for the first end of the stream, then for the next, until one has not come. */
static void poll_lane(lane *l)
{
    for (int error = 0; error == 0;) {
        pthread_mutex_lock(&lock);
        bool is_out = !wfi_list_empty(&l->out);
        mark first = is_out ? *wfi_container_of(l->out.next, mark, link) : (mark){.event = NULL};
        pthread_mutex_unlock(&lock);
        if (!is_out)
            return;
        bool is_open = wfi_cuda_enter(device_of(l)) == WEFT_OK;
        error = is_open ? wfi_cuda_driver_get()->event_query(first.event) : WFI_CUDA_DEINITIALIZED;
        if (is_open)
            wfi_cuda_leave();
        if (error == WFI_CUDA_NOT_READY)
            return;
        weft_status status = wfi_cuda_status(error, "a copy between a device and the host");
        pthread_mutex_lock(&lock);
        finish(l, error == 0 ? first.number : UINT64_MAX, status == WEFT_OK ? WEFT_OK : WEFT_ERR_SYSTEM);
        pthread_mutex_unlock(&lock);
    }
}

size_t wfi_copies_poll(void)
{
    for (int i = 0; i < LANES; i++)
        if (atomic_load_explicit(&lanes[i].stream, memory_order_acquire))
            poll_lane(&lanes[i]);
    pthread_mutex_lock(&lock);
    size_t out = sets_out;
    pthread_mutex_unlock(&lock);
    return out;
}

void wfi_copies_fini(wfi_copies *copies)
{
    pthread_mutex_lock(&lock);
    assert(copies->out == 0 || (copies->out == 1 && (copies->used[0] | copies->used[1]) == 0));
    (void)copies;
    pthread_mutex_unlock(&lock);
}
