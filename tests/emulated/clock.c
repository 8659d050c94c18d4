/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock.c - which work comes before which, by vector clocks (Fidge, Mattern 1988). See gpu.h.
 *
 * Each stream has a timeline, and each of its items has the next tick of it. The clock of an item has, for each
 * timeline, the last tick that comes before the item. All threads of the host share one clock: what one of them has
 * waited for comes before the items that any of them queues later.
 */
#include "gpu.h"

#include <stdlib.h>
#include <string.h>

enum { TIMELINES_MOST = 256 };

static struct timeline {
    uint32_t ticks[TIMELINES_MOST]; /* what comes before the next item of this stream */
    int device;
    unsigned stream; /* a number for messages; 0: the legacy stream */
    bool blocking, open;
} timelines[TIMELINES_MOST] = {{.blocking = true, .open = true}, {.device = 1, .blocking = true, .open = true}};
static int used = EMULATED_DEVICES; /* the first timelines are those of the legacy streams, by device */
static unsigned last_stream;
static uint32_t host[TIMELINES_MOST];

static void join(uint32_t *into, const uint32_t *from, int count)
{
    for (int i = 0; i < count; i++)
        into[i] = from[i] > into[i] ? from[i] : into[i];
}

int gpu_timeline_open(int device, bool blocking)
{
    int at = EMULATED_DEVICES;
    while (at < TIMELINES_MOST && timelines[at].open)
        at++;
    if (at == TIMELINES_MOST)
        return -1;
    uint32_t own = timelines[at].ticks[at]; /* of a former stream: ticks are not used twice */
    timelines[at] = (struct timeline){.device = device, .stream = ++last_stream, .blocking = blocking, .open = true};
    timelines[at].ticks[at] = own;
    used = at < used ? used : at + 1;
    return at;
}

void gpu_timeline_shut(int timeline)
{
    timelines[timeline].open = false;
}

bool gpu_timeline_is_alone(void)
{
    return last_stream == 0;
}

unsigned gpu_timeline_stream(int timeline)
{
    return timelines[timeline].stream;
}

gpu_clock *gpu_clock_next(int timeline)
{
    struct timeline *mine = &timelines[timeline];
    join(mine->ticks, host, used);
    for (int i = 0; i < used; i++) {
        bool orders = timeline < EMULATED_DEVICES || i < EMULATED_DEVICES; /* one of them is a legacy stream */
        if (i != timeline && orders && mine->blocking && timelines[i].blocking && timelines[i].device == mine->device)
            join(mine->ticks, timelines[i].ticks, used);
    }
    mine->ticks[timeline]++;
    gpu_clock *clock = malloc(sizeof(*clock) + (size_t)used * sizeof(clock->ticks[0]));
    if (!clock)
        abort();
    clock->count = used;
    memcpy(clock->ticks, mine->ticks, (size_t)used * sizeof(clock->ticks[0]));
    return clock;
}

void gpu_clock_follow(int timeline, const gpu_clock *clock)
{
    if (clock)
        join(timelines[timeline].ticks, clock->ticks, clock->count);
}

void gpu_clock_host_waited(const gpu_clock *clock)
{
    if (clock)
        join(host, clock->ticks, clock->count);
}

void gpu_clock_host_waited_for(int device, int timeline)
{
    for (int i = 0; i < used; i++)
        if (timeline < 0 ? timelines[i].device == device : i == timeline)
            join(host, timelines[i].ticks, used);
}

bool gpu_clock_host_knows(int timeline, uint32_t tick)
{
    return tick <= host[timeline];
}
