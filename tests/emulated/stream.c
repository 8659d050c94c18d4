/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream.c - work that is queued on streams, and runs as late as the rules of CUDA allow: when something waits for it,
 * and then only the work that the waiter depends on. So a program that forgets to wait sees old or poisoned bytes. And
 * race.c names the work that nothing orders.
 *
 * The rules: work of one stream runs in order. Work of the legacy stream (NULL) runs after all work that was queued
 * before it on the blocking streams of its device, and before all work that is queued on them later. An event is done
 * when the work that was queued on its stream before it is done.
 */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

#define PENDING_MOST 65536 /* then the oldest runs, as the queues of a GPU are finite too */

struct gpu_stream {
    int device;
    bool blocking;
    int timeline;
};

struct gpu_event {
    uint64_t work; /* the number of the work that it waits for; 0: none */
    gpu_clock *clock;
    int device;
    unsigned questions; /* how many more are answered with "not ready" before the work runs */
};

typedef struct work {
    gpu_item item;
    gpu_stream *stream;            /* NULL: the legacy one */
    void (*run)(const void *args); /* NULL: waits for an event */
    void *args;
    void (*host)(void *argument); /* a host function */
    void *host_argument;
    bool is_called; /* now */
    uint64_t after; /* number of further work that must run first; 0: none */
    bool needed;
} work;

static work *queue; /* by number */
static size_t count, room;
static uint64_t last_number;
static int checks_each = -1; /* the patterns are checked after each kernel, not only when a device becomes idle */

static bool is_blocking(const work *w)
{
    return !w->stream || w->stream->blocking;
}

/* Whether the walk back from `later` need not go beyond `earlier`, which orders everything that came before. */
static bool orders_all(const work *later, const work *earlier)
{
    if (!later->stream || !is_blocking(later))
        return earlier->stream == later->stream;
    return !earlier->stream || earlier->stream == later->stream;
}

static bool follows(const work *later, const work *earlier)
{
    if (later->item.device != earlier->item.device)
        return false;
    if (later->stream == earlier->stream)
        return true;
    return is_blocking(later) && is_blocking(earlier) && (!later->stream || !earlier->stream);
}

static size_t index_of(uint64_t number)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (queue[middle].item.number < number)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && queue[low].item.number == number ? low : count;
}

static void need_dependencies(size_t i)
{
    for (size_t j = i; j-- > 0;) {
        if (!follows(&queue[i], &queue[j]))
            continue;
        queue[j].needed = true;
        if (orders_all(&queue[i], &queue[j]))
            break;
    }
    size_t after = queue[i].after == 0 ? count : index_of(queue[i].after);
    if (after < i)
        queue[after].needed = true;
}

static void run_one(const work *w)
{
    if (!w->run)
        return;
    gpu_race_before(&w->item);
    w->run(w->args);
    gpu_race_after(&w->item);
    if (checks_each < 0)
        checks_each = getenv("EMULATED_GPU_CHECK_EACH") != NULL;
    if (checks_each)
        gpu_memory_check(w->item.name);
}

static void close_device(int device, const char *last)
{
    gpu_memory_check(last);
    gpu_memory_close(device);
}

static void forget(work *w)
{
    free(w->item.clock);
    free(w->item.operands);
    free(w->args);
}

/* Runs and removes the needed work before item `end`, which is no host function. */
static void run_before(size_t end)
{
    size_t kept = 0;
    int opened = -1;
    const char *last = "";
    for (size_t i = 0; i < count; i++) {
        if (!queue[i].needed || i >= end) {
            queue[kept++] = queue[i];
            continue;
        }
        if (opened != queue[i].item.device) {
            if (opened >= 0)
                close_device(opened, last);
            opened = queue[i].item.device;
            gpu_memory_open(opened);
        }
        run_one(&queue[i]);
        if (queue[i].run)
            last = queue[i].item.name;
        forget(&queue[i]);
    }
    if (opened >= 0)
        close_device(opened, last);
    count = kept;
}

static void remove_at(size_t i)
{
    forget(&queue[i]);
    count--;
    memmove(&queue[i], &queue[i + 1], (count - i) * sizeof(*queue));
}

/* The host function is the first work that is needed. */
static void call_host(size_t i)
{
    bool is_called = queue[i].is_called && !gpu_host_is_ending();
    if (is_called || !gpu_host_calls()) {
        gpu_host_wait();
        return;
    }
    uint64_t number = queue[i].item.number;
    queue[i].is_called = true;
    gpu_clock_host_waited(queue[i].item.clock); /* the host learns that what came before is done */
    gpu_host_call(queue[i].host, queue[i].host_argument);
    i = index_of(number);
    if (i < count)
        remove_at(i);
}

/* Runs the work that is needed, and removes it. Its host functions are called in between, without the lock. */
static void run_needed(void)
{
    for (;;) {
        for (size_t i = count; i-- > 0;)
            if (queue[i].needed)
                need_dependencies(i);
        size_t host = 0;
        while (host < count && !(queue[host].needed && queue[host].host))
            host++;
        bool is_last = host == count;
        uint64_t number = is_last ? 0 : queue[host].item.number;
        run_before(host);
        if (is_last)
            break;
        call_host(index_of(number));
    }
    gpu_counts.pending = count;
    if (count == 0)
        gpu_race_settle();
}

static work *add(int device, gpu_stream *stream)
{
    if (count == PENDING_MOST) {
        queue[0].needed = true;
        run_needed();
    }
    if (count == room) {
        room = room == 0 ? 256 : 2 * room;
        queue = realloc(queue, room * sizeof(*queue));
        if (!queue)
            abort();
    }
    int timeline = !stream ? device : stream->timeline;
    queue[count] = (work){
        .item = {.number = ++last_number, .device = device, .timeline = timeline, .clock = gpu_clock_next(timeline)},
        .stream = stream};
    gpu_counts.pending = count + 1;
    return &queue[count++];
}

static void *copy_of(const void *bytes, size_t size)
{
    void *copy = malloc(size > 0 ? size : 1);
    if (!copy)
        abort();
    if (size > 0)
        memcpy(copy, bytes, size);
    return copy;
}

void gpu_stream_add(int device, gpu_stream *stream, const gpu_work *what)
{
    work *w = add(device, stream);
    w->item.name = what->name;
    w->item.operands = copy_of(what->operands, what->operand_count * sizeof(*what->operands));
    w->item.operand_count = what->operand_count;
    w->run = what->run;
    w->args = copy_of(what->args, what->size);
}

/* The last work that an item queued now on the stream would run after; its number, or 0. */
static uint64_t last_of(int device, const gpu_stream *stream)
{
    for (size_t i = count; i-- > 0;)
        if (queue[i].item.device == device && queue[i].stream == stream)
            return queue[i].item.number;
    return 0;
}

/* Queues an item that does nothing: what it depends on is what must run. */
static work *add_mark(int device, gpu_stream *stream)
{
    work *mark = add(device, stream);
    mark->needed = true;
    return mark;
}

void gpu_stream_wait(int device, gpu_stream *stream)
{
    gpu_clock_host_waited(add_mark(device, stream)->item.clock);
    run_needed();
}

void gpu_stream_wait_device(int device)
{
    for (size_t i = 0; i < count; i++)
        queue[i].needed = queue[i].needed || queue[i].item.device == device;
    gpu_clock_host_waited_for(device, -1);
    run_needed();
}

bool gpu_stream_is_idle(int device, gpu_stream *stream)
{
    bool idle = last_of(device, stream) == 0;
    if (idle)
        gpu_clock_host_waited_for(device, !stream ? device : stream->timeline);
    return idle;
}

gpu_stream *gpu_stream_open(int device, bool blocking)
{
    gpu_stream *stream = malloc(sizeof(*stream));
    int timeline = !stream ? -1 : gpu_timeline_open(device, blocking);
    if (timeline < 0) {
        free(stream);
        return NULL;
    }
    *stream = (gpu_stream){device, blocking, timeline};
    return stream;
}

void gpu_stream_shut(gpu_stream *stream)
{
    (void)add_mark(stream->device, stream);
    run_needed();
    gpu_timeline_shut(stream->timeline);
    free(stream);
}

int gpu_stream_device(const gpu_stream *stream)
{
    return stream->device;
}

gpu_event *gpu_event_open(int device)
{
    gpu_event *event = calloc(1, sizeof(gpu_event));
    if (event)
        event->device = device;
    return event;
}

int gpu_event_device(const gpu_event *event)
{
    return event->device;
}

void gpu_event_shut(gpu_event *event)
{
    free(event->clock);
    free(event);
}

/* The event itself is an item, so that it is not done before what came earlier. */
void gpu_event_record(int device, gpu_event *event, gpu_stream *stream)
{
    enum { LEAST = 3, MORE = 6 };
    const gpu_item *item = &add(device, stream)->item;
    event->work = item->number;
    event->questions = LEAST + gpu_host_draw(MORE);
    free(event->clock);
    event->clock = copy_of(item->clock, sizeof(*item->clock) + (size_t)item->clock->count * sizeof(uint32_t));
}

void gpu_event_block(int device, gpu_stream *stream, gpu_event *event)
{
    uint64_t after = event->work;
    gpu_clock_follow(!stream ? device : stream->timeline, event->clock);
    if (after != 0 && index_of(after) < count)
        add(device, stream)->after = after;
}

void gpu_event_wait(gpu_event *event)
{
    size_t i = event->work == 0 ? count : index_of(event->work);
    gpu_clock_host_waited(event->clock);
    if (i == count)
        return;
    queue[i].needed = true;
    run_needed();
}

static bool is_done(const gpu_event *event)
{
    return event->work == 0 || index_of(event->work) == count;
}

/* Without a thread: a step of the work that is queued. */
static void step(gpu_event *event)
{
    enum { NOTHING, THE_EVENT, HOST_FUNCTION, CHOICES };
    unsigned chosen = gpu_host_draw(CHOICES);
    bool is_needed;
    unsigned functions = gpu_stream_host_functions(&is_needed);
    if (chosen == HOST_FUNCTION && functions > 0)
        gpu_stream_run_host_function(gpu_host_draw(functions));
    else if (chosen != NOTHING && !is_done(event))
        gpu_event_wait(event);
}

bool gpu_event_is_done(gpu_event *event)
{
    if (gpu_host_is_polled())
        step(event);
    else if (!is_done(event) && event->questions-- == 0)
        gpu_event_wait(event);
    bool done = is_done(event);
    if (done)
        gpu_clock_host_waited(event->clock);
    return done;
}

/* ---- Host functions, and failures ---- */

void gpu_stream_add_host(int device, gpu_stream *stream, void (*function)(void *argument), void *argument)
{
    work *w = add(device, stream);
    w->item.name = "a host function";
    w->host = function;
    w->host_argument = argument;
    gpu_host_changed();
}

unsigned gpu_stream_host_functions(bool *is_needed)
{
    unsigned found = 0;
    *is_needed = false;
    for (size_t i = 0; i < count; i++) {
        bool waits = queue[i].host && !queue[i].is_called;
        found += waits;
        *is_needed = *is_needed || (waits && queue[i].needed);
    }
    return found;
}

void gpu_stream_run_host_function(unsigned which)
{
    for (size_t i = 0; i < count; i++)
        if (queue[i].host && !queue[i].is_called && which-- == 0)
            queue[i].needed = true;
    run_needed();
}

void gpu_stream_drop(int device)
{
    for (size_t i = count; i-- > 0;)
        if (queue[i].item.device == device && !queue[i].is_called)
            remove_at(i);
    gpu_counts.pending = count;
    gpu_host_changed();
}
