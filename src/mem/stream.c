/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c - see stream.h. */
#include "mem/stream.h"

#include "base/alloc.h"
#include "base/parker.h"
#include "mem/cuda.h"

#include <pthread.h>
#include <stdlib.h>

/* CU_STREAM_DEFAULT: in order with the legacy stream. CU_STREAM_NON_BLOCKING. CU_EVENT_DISABLE_TIMING. */
enum { WAITS_FOR_LEGACY = 0, NO_WAIT_FOR_LEGACY = 1, NO_TIMING = 2 };

/* LOCK. `lock` guards the table, and the event of each stream. A stream of the table is not destroyed meanwhile. */
static struct streams {
    pthread_mutex_t lock;
    uint64_t last_id;
    weft_stream *of[WFI_CUDA_DEVICES_MAX][WFI_STREAMS_MOST];
    weft_stream common[WFI_CUDA_DEVICES_MAX]; /* zeroed until the first use */
    _Atomic bool has_common[WFI_CUDA_DEVICES_MAX];
} streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

static __thread weft_stream *current;

weft_stream *wfi_stream_common(int device)
{
    weft_stream *common = &streams.common[device];
    if (atomic_load_explicit(&streams.has_common[device], memory_order_acquire))
        return common;
    void *made = NULL; /* it stays NULL, the legacy stream, if the driver makes none */
    if (wfi_cuda_enter(device) == WEFT_OK) {
        (void)wfi_cuda_status(wfi_cuda_driver_get()->stream_create(&made, WAITS_FOR_LEGACY), "creating a stream");
        wfi_cuda_leave();
    }
    pthread_mutex_lock(&streams.lock);
    if (!streams.of[device][0]) {
        WFI_HANDLE_INIT(common);
        atomic_init(&common->refs, 1);
        common->device = device;
        common->driver = made;
        made = NULL;
        common->id = ++streams.last_id;
        streams.of[device][0] = common;
        atomic_store_explicit(&streams.has_common[device], true, memory_order_release);
    }
    pthread_mutex_unlock(&streams.lock);
    if (made && wfi_cuda_enter(device) == WEFT_OK) { /* another thread was faster */
        (void)wfi_cuda_driver_get()->stream_destroy(made);
        wfi_cuda_leave();
    }
    return common;
}

weft_stream *wfi_stream_now(int device)
{
    return current && current->device == device ? current : wfi_stream_common(device);
}

weft_stream *wfi_stream_set(weft_stream *stream)
{
    weft_stream *before = current;
    current = stream;
    return before;
}

/* Puts it into the table, under the first number that is free. */
static weft_status add(weft_stream *stream)
{
    int number = 1;
    pthread_mutex_lock(&streams.lock);
    while (number < WFI_STREAMS_MOST && streams.of[stream->device][number])
        number++;
    if (number < WFI_STREAMS_MOST) {
        stream->number = number;
        stream->id = ++streams.last_id;
        streams.of[stream->device][number] = stream;
    }
    pthread_mutex_unlock(&streams.lock);
    return number < WFI_STREAMS_MOST ? WEFT_OK : WEFT_ERR_STATE;
}

static weft_status open_stream(int device, void *driver_stream, bool owned, weft_stream **out)
{
    weft_stream *stream = wfi_calloc(1, sizeof(*stream));
    if (!stream)
        return WEFT_ERR_MEMORY;
    WFI_HANDLE_INIT(stream);
    atomic_init(&stream->refs, 1);
    stream->device = device;
    stream->driver = driver_stream;
    stream->owned = owned;
    weft_status status = add(stream);
    if (status == WEFT_OK)
        *out = stream;
    else
        wfi_handle_free(stream);
    return status;
}

weft_status wfi_stream_create(int device, weft_stream **out)
{
    void *made = NULL;
    weft_status status = wfi_cuda_enter(device);
    if (status != WEFT_OK)
        return status;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    status = wfi_cuda_status(driver->stream_create(&made, NO_WAIT_FOR_LEGACY), "creating a stream");
    if (status == WEFT_OK) {
        status = open_stream(device, made, true, out);
        if (status != WEFT_OK)
            (void)driver->stream_destroy(made);
    }
    wfi_cuda_leave();
    return status;
}

weft_status wfi_stream_wrap(int device, void *driver_stream, weft_stream **out)
{
    enum { LEGACY = 1, PER_THREAD = 2 }; /* CU_STREAM_LEGACY; CU_STREAM_PER_THREAD: another stream on each thread */
    uintptr_t handle = (uintptr_t)driver_stream;
    void *theirs = NULL;
    if (handle == PER_THREAD)
        return WEFT_ERR_INVALID;
    weft_status status = wfi_cuda_enter(device);
    if (status != WEFT_OK)
        return status;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    int error = handle > PER_THREAD ? driver->stream_context(driver_stream, &theirs) : 0;
    wfi_cuda_leave();
    status = wfi_cuda_status(error, "looking up a stream's context");
    if (status == WEFT_OK && handle > PER_THREAD && theirs != wfi_cuda_context(device))
        status = WEFT_ERR_INVALID;
    return status == WEFT_OK ? open_stream(device, handle == LEGACY ? NULL : driver_stream, false, out) : status;
}

void wfi_stream_unref(weft_stream *stream)
{
    if (!stream || !WFI_HANDLE_IS_LAST(stream, atomic_fetch_sub_explicit(&stream->refs, 1, memory_order_acq_rel)))
        return;
    (void)wfi_stream_wait(stream);
    pthread_mutex_lock(&streams.lock); /* now, after the wait, its number and its marks count as done */
    streams.of[stream->device][stream->number] = NULL;
    pthread_mutex_unlock(&streams.lock);
    if (wfi_cuda_enter(stream->device) == WEFT_OK) {
        if (stream->event)
            (void)wfi_cuda_driver_get()->event_destroy(stream->event);
        if (stream->owned)
            (void)wfi_cuda_driver_get()->stream_destroy(stream->driver);
        wfi_cuda_leave();
    }
    wfi_handle_free(stream);
}

weft_status wfi_stream_wait(weft_stream *stream)
{
    uint64_t ticket = atomic_fetch_add_explicit(&stream->waits_begun, 1, memory_order_acq_rel) + 1;
    weft_status status = wfi_cuda_enter(stream->device);
    if (status != WEFT_OK)
        return status;
    status = wfi_cuda_status(wfi_cuda_driver_get()->stream_wait(stream->driver), "waiting for a stream");
    wfi_cuda_leave();
    uint64_t done = atomic_load_explicit(&stream->waits_done, memory_order_relaxed);
    while (status == WEFT_OK && done < ticket &&
           !atomic_compare_exchange_weak_explicit(&stream->waits_done, &done, ticket, memory_order_release,
                                                  memory_order_relaxed))
        continue;
    return status;
}

wfi_stream_mark wfi_stream_mark_now(const weft_stream *stream)
{
    uint64_t waits = atomic_load_explicit(&stream->waits_begun, memory_order_acquire);
    return (wfi_stream_mark){stream->device, stream->number, stream->id, waits};
}

bool wfi_stream_passed(const wfi_stream_mark *mark)
{
    pthread_mutex_lock(&streams.lock);
    const weft_stream *stream = streams.of[mark->device][mark->number];
    bool passed = !stream || stream->id != mark->id ||
                  atomic_load_explicit(&stream->waits_done, memory_order_acquire) > mark->waits;
    pthread_mutex_unlock(&streams.lock);
    return passed;
}

weft_stream *wfi_stream_find(int device, int number)
{
    pthread_mutex_lock(&streams.lock);
    weft_stream *found = streams.of[device][number];
    uint32_t refs = !found ? 0 : atomic_load_explicit(&found->refs, memory_order_relaxed);
    while (refs > 0 && !atomic_compare_exchange_weak_explicit(&found->refs, &refs, refs + 1, memory_order_acq_rel,
                                                              memory_order_relaxed))
        continue;
    pthread_mutex_unlock(&streams.lock);
    return refs > 0 ? found : NULL; /* 0: another thread destroys it, after waiting for its work */
}

weft_status wfi_stream_copy_to_host(int device, int number, void *to, const void *from, size_t size)
{
    weft_stream *writer = number == 0 ? NULL : wfi_stream_find(device, number);
    weft_stream *stream = writer ? writer : number == 0 ? wfi_stream_common(device) : wfi_stream_now(device);
    weft_status status = wfi_cuda_enter(device);
    if (status == WEFT_OK) {
        int error = wfi_cuda_driver_get()->copy_to_host(to, (uint64_t)(uintptr_t)from, size, stream->driver);
        status = wfi_cuda_status(error, "copying device memory");
        wfi_cuda_leave();
    }
    if (status == WEFT_OK)
        status = wfi_stream_wait(stream);
    wfi_stream_unref(writer);
    return status;
}

/* Records the event of the stream, behind its work of now. The context of its device is current. [lock] */
static int record(const wfi_cuda_driver *driver, weft_stream *stream)
{
    int error = !stream->event ? driver->event_create(&stream->event, NO_TIMING) : 0;
    return error != 0 ? error : driver->event_record(stream->event, stream->driver);
}

weft_status wfi_stream_follow(weft_stream *stream, uint64_t others)
{
    others &= ~(UINT64_C(1) << stream->number);
    if (others == 0)
        return WEFT_OK;
    weft_status status = wfi_cuda_enter(stream->device);
    if (status != WEFT_OK)
        return status;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    int error = 0;
    pthread_mutex_lock(&streams.lock);
    for (int n = 0; n < WFI_STREAMS_MOST && error == 0; n++) {
        weft_stream *other = (others >> n & 1) != 0 ? streams.of[stream->device][n] : NULL;
        if (other)
            error = record(driver, other);
        if (other && error == 0)
            error = driver->stream_wait_event(stream->driver, other->event, 0);
    }
    pthread_mutex_unlock(&streams.lock);
    wfi_cuda_leave();
    return wfi_cuda_status(error, "ordering two streams");
}

weft_status wfi_stream_follow_peer(weft_stream *stream, weft_stream *other)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    weft_status status = wfi_cuda_enter(other->device);
    if (status != WEFT_OK)
        return status;
    pthread_mutex_lock(&streams.lock);
    int error = record(driver, other);
    wfi_cuda_leave();
    status = wfi_cuda_enter(stream->device);
    if (status == WEFT_OK) {
        if (error == 0)
            error = driver->stream_wait_event(stream->driver, other->event, 0);
        wfi_cuda_leave();
    }
    pthread_mutex_unlock(&streams.lock);
    return status == WEFT_OK ? wfi_cuda_status(error, "ordering the streams of two devices") : status;
}

/* Asks whether the stream is idle. If not, makes an event, and from then on asks for that one, because more work may
 * follow. The context is not current while the caller sleeps: another fiber of this thread may change it. Returns an
 * error of the driver. */
static int ask(weft_stream *stream, void **event)
{
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    if (wfi_cuda_enter(stream->device) != WEFT_OK)
        return WFI_CUDA_DEINITIALIZED;
    int error = *event ? driver->event_query(*event) : driver->stream_query(stream->driver);
    if (error == WFI_CUDA_NOT_READY && !*event) {
        int failed = driver->event_create(event, NO_TIMING);
        if (failed == 0)
            failed = driver->event_record(*event, stream->driver);
        error = failed != 0 ? failed : error;
    }
    wfi_cuda_leave();
    return error;
}

/* Sleeps between the questions: no function of the driver waits with a limit. */
static weft_status wait_until(weft_stream *stream, uint64_t deadline_ns)
{
    enum { PAUSE_MIN_NS = 20000, PAUSE_MAX_NS = 1000000 };
    wfi_parker parker;
    void *event = NULL;
    if (deadline_ns == WFI_NEVER)
        return wfi_stream_wait(stream);
    wfi_parker_init(&parker);
    int error = ask(stream, &event);
    uint64_t now = wfi_now(wfi_park_clock()), pause = PAUSE_MIN_NS;
    while (error == WFI_CUDA_NOT_READY && now < deadline_ns) {
        (void)wfi_park(&parker, deadline_ns - now < pause ? deadline_ns : now + pause);
        pause = pause < PAUSE_MAX_NS ? 2 * pause : pause;
        error = ask(stream, &event);
        now = wfi_now(wfi_park_clock());
    }
    if (event && wfi_cuda_enter(stream->device) == WEFT_OK) {
        (void)wfi_cuda_driver_get()->event_destroy(event);
        wfi_cuda_leave();
    }
    return error == WFI_CUDA_NOT_READY ? WEFT_ERR_TIMEOUT : wfi_cuda_status(error, "waiting for a stream");
}

/* Another thread may be destroying a stream and wait for its work. Such a stream cannot be referenced: the common
 * stream follows it. */
weft_status wfi_stream_wait_all(int device, uint64_t numbers, uint64_t deadline_ns)
{
    weft_status status = WEFT_OK;
    uint64_t ending = 0;
    for (int n = 0; n < WFI_STREAMS_MOST; n++) {
        weft_stream *stream = (numbers >> n & 1) != 0 ? wfi_stream_find(device, n) : NULL;
        if (!stream) {
            ending |= numbers & UINT64_C(1) << n;
            continue;
        }
        weft_status waited = wait_until(stream, deadline_ns);
        status = status == WEFT_OK ? waited : status;
        wfi_stream_unref(stream);
    }
    weft_stream *common = ending != 0 ? wfi_stream_common(device) : NULL;
    if (!common || status != WEFT_OK)
        return status;
    status = wfi_stream_follow(common, ending);
    return status == WEFT_OK ? wait_until(common, deadline_ns) : status;
}
