/* SPDX-License-Identifier: Apache-2.0 */
/* memory_pair.c - see memory_pair.h. Orders go to the other process through a socket, as in raw_pair.c. */
#include "perf/memory_pair.h"

#include "perf/helper.h"
#include "perf/pair.h"

#include <errno.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define MESSAGE_MOST 4096
#define SPINS 4096 /* looks at the page before the core is offered to others */

typedef struct direction {
    _Alignas(64) _Atomic uint32_t count; /* messages so far */
    _Alignas(64) uint8_t message[MESSAGE_MOST];
} direction;

typedef struct page {
    direction there, back;
} page;

typedef struct instruction {
    uint32_t trips;
    uint32_t bytes;
} instruction;

typedef struct hello { /* of the other process */
    pid_t pid;
    uint8_t *memory;
} hello;

struct memory_pair {
    pair pair;
    page *shared;
    hello far;
    uint8_t *near;
    size_t most;
};

/* Polls until the direction has more than `count` messages. */
static void await(const direction *d, uint32_t count)
{
    for (unsigned spins = 1; atomic_load_explicit(&d->count, memory_order_acquire) == count; spins++)
        if (spins % SPINS == 0)
            sched_yield();
}

static void send_message(direction *d, const uint8_t *from, size_t bytes)
{
    memcpy(d->message, from, bytes);
    atomic_fetch_add_explicit(&d->count, 1, memory_order_release);
}

/* The other process. */
static int serve(const pair *to, void *arg)
{
    const memory_pair *p = arg;
    static uint8_t message[MESSAGE_MOST];
    hello h = {.pid = getpid(), .memory = malloc(p->most)};
    if (!h.memory)
        return 1;
    memset(h.memory, 1, p->most);
    instruction next;
    bool ok = write(to->control, &h, sizeof(h)) == sizeof(h);
    while (ok && read(to->control, &next, sizeof(next)) == sizeof(next))
        for (uint32_t i = 0; i < next.trips; i++) {
            await(&p->shared->there, atomic_load(&p->shared->back.count));
            send_message(&p->shared->back, message, next.bytes);
        }
    return 1;
}

bool memory_pair_open(size_t most, memory_pair **out)
{
    memory_pair *p = calloc(1, sizeof(*p));
    if (!p)
        return helper_say("no memory");
    p->most = most;
    p->near = malloc(most);
    p->shared = mmap(NULL, sizeof(*p->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!p->near || p->shared == MAP_FAILED)
        return helper_say("no memory for %zu bytes", most);
    memset(p->near, 2, most);
    if (!pair_split(&p->pair, serve, p))
        return false;
    if (read(p->pair.control, &p->far, sizeof(p->far)) != sizeof(p->far))
        return helper_say("the other process of the pair ended");
    *out = p;
    return memory_pair_read(p, 8, 1, 1, &(series){0});
}

bool memory_pair_trips(memory_pair *p, size_t bytes, unsigned count, series *out)
{
    instruction next = {count, (uint32_t)bytes};
    if (write(p->pair.control, &next, sizeof(next)) != sizeof(next))
        return helper_say("the other process of the pair ended");
    for (unsigned i = 0; i < count; i++) {
        double start = measure_now_us();
        uint32_t before = atomic_load(&p->shared->back.count);
        send_message(&p->shared->there, p->near, bytes);
        await(&p->shared->back, before);
        series_add(out, measure_now_us() - start);
    }
    return true;
}

bool memory_pair_read(memory_pair *p, size_t bytes, int times, unsigned count, series *out)
{
    for (unsigned i = 0; i < count; i++) {
        double start = measure_now_us();
        for (int k = 0; k < times; k++)
            for (size_t at = 0; at < bytes;) {
                struct iovec near = {p->near + at, bytes - at}, far = {p->far.memory + at, bytes - at};
                ssize_t got = process_vm_readv(p->far.pid, &near, 1, &far, 1, 0);
                if (got <= 0)
                    return helper_say("process_vm_readv: %s", strerror(errno));
                at += (size_t)got;
            }
        series_add(out, measure_now_us() - start);
    }
    return true;
}
