/* SPDX-License-Identifier: Apache-2.0 */
/* memory_pair.c - see memory_pair.h. Orders go through a socket, as in common/raw_pair.c. */
#include "perf/memory_pair.h"

#include "common/cores.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE_MOST 4096
#define SPINS 4096    /* looks at the page before the core is offered to others */
#define PATIENCE_S 30 /* nothing here takes this long */

typedef struct direction {
    _Alignas(64) _Atomic uint32_t count; /* messages so far */
    _Alignas(64) uint8_t message[MESSAGE_MOST];
} direction;

typedef struct page {
    direction there, back;
} page;

typedef struct order {
    uint32_t trips;
    uint32_t bytes;
} order;

struct memory_pair {
    page *shared;
    uint8_t *far, *near; /* far: an address in the other process */
    size_t most;
    int control;
    pid_t child;
    cores cores;
    bool apart;
};

static int complain(const char *what)
{
    perror(what);
    return -1;
}

/* Polls until the direction has more than `count` messages. */
static int await(const direction *d, uint32_t count)
{
    double limit = 0;
    for (unsigned spins = 1; atomic_load_explicit(&d->count, memory_order_acquire) == count; spins++) {
        if (spins % SPINS)
            continue;
        double now = measure_now_us();
        limit = limit > 0 ? limit : now + PATIENCE_S * 1e6;
        if (now > limit)
            return -1;
        sched_yield();
    }
    return 0;
}

static void send_message(direction *d, const uint8_t *from, size_t bytes)
{
    memcpy(d->message, from, bytes);
    atomic_fetch_add_explicit(&d->count, 1, memory_order_release);
}

/* ---- The other process ------------------------------------------------------------------------------------------ */

static int serve(const memory_pair *p, int control)
{
    static uint8_t message[MESSAGE_MOST];
    uint8_t *memory = malloc(p->most);
    if (!memory)
        return 1;
    memset(memory, 1, p->most);
    order o;
    bool ok = write(control, &memory, sizeof memory) == sizeof memory;
    while (ok && read(control, &o, sizeof o) == sizeof o) {
        for (uint32_t i = 0; ok && i < o.trips; i++) {
            ok = await(&p->shared->there, atomic_load(&p->shared->back.count)) == 0;
            send_message(&p->shared->back, message, o.bytes);
        }
    }
    free(memory);
    return ok ? 0 : 1;
}

/* ---- This process ----------------------------------------------------------------------------------------------- */

int memory_pair_open(size_t most, memory_pair **out)
{
    int fds[2] = {-1, -1};
    memory_pair *p = calloc(1, sizeof *p);
    if (!p || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds)) {
        free(p);
        return complain("memory pair");
    }
    p->most = most;
    p->near = malloc(most);
    p->shared = mmap(NULL, sizeof *p->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    p->apart = cores_find(&p->cores);
    p->control = fds[0];
    if (!p->near || p->shared == MAP_FAILED) {
        close(fds[1]);
        memory_pair_close(p);
        return complain("memory pair");
    }
    memset(p->near, 2, most);
    fflush(NULL);
    pid_t parent = getpid();
    p->child = fork();
    if (p->child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        if (p->apart)
            cores_pin(p->cores.other);
        _exit(getppid() == parent ? serve(p, fds[1]) : 1);
    }
    close(fds[1]);
    series one = {0};
    bool ok = p->child > 0 && read(p->control, &p->far, sizeof p->far) == sizeof p->far &&
              memory_pair_read(p, 8, 1, 1, &one) == 0;
    series_fini(&one);
    if (!ok) {
        memory_pair_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

void memory_pair_close(memory_pair *p)
{
    if (!p)
        return;
    close(p->control); /* ends the other process */
    if (p->child > 0)
        (void)waitpid(p->child, NULL, 0);
    if (p->shared != MAP_FAILED)
        (void)munmap(p->shared, sizeof *p->shared);
    free(p->near);
    free(p);
}

static int trips(memory_pair *p, size_t bytes, unsigned count, series *out)
{
    for (unsigned i = 0; i < count; i++) {
        double start = measure_now_us();
        uint32_t before = atomic_load(&p->shared->back.count);
        send_message(&p->shared->there, p->near, bytes);
        if (await(&p->shared->back, before))
            return -1;
        series_add(out, measure_now_us() - start);
    }
    return 0;
}

int memory_pair_trips(memory_pair *p, size_t bytes, unsigned count, series *out)
{
    order o = {count, (uint32_t)bytes};
    if (write(p->control, &o, sizeof o) != sizeof o)
        return complain("memory pair");
    if (p->apart)
        cores_pin(p->cores.mine);
    int failed = trips(p, bytes, count, out);
    if (p->apart)
        cores_free(&p->cores);
    if (failed)
        fprintf(stderr, "memory pair: the other process does not answer\n");
    return failed;
}

int memory_pair_read(memory_pair *p, size_t bytes, int times, unsigned count, series *out)
{
    for (unsigned i = 0; i < count; i++) {
        double start = measure_now_us();
        for (int k = 0; k < times; k++) {
            for (size_t at = 0; at < bytes;) {
                struct iovec near = {p->near + at, bytes - at}, far = {p->far + at, bytes - at};
                ssize_t got = process_vm_readv(p->child, &near, 1, &far, 1, 0);
                if (got <= 0)
                    return complain("process_vm_readv");
                at += (size_t)got;
            }
        }
        series_add(out, measure_now_us() - start);
    }
    return 0;
}
