/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launch.c - runs kernels: block by block, each thread of a block on a stack of its own from the first barrier on.
 *
 * Blocks run in a random order, one at a time. The threads of a block run in a random order until all wait at a barrier
 * or have ended. Threads of a warp wait for each other at a shuffle. A kernel without barriers runs on one stack.
 */
#include "gpu.h"

#include "../prng.h"
#include "sim/context.h"
#include "emulated_kernel.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MOST = 1024, WARP = 32, STACK_BYTES = 64 << 10 };
enum thread_state { THREAD_NEW, THREAD_RUNS, THREAD_AT_BLOCK, THREAD_AT_WARP, THREAD_DONE };

emulated_dim emulated_thread, emulated_block, emulated_block_size, emulated_grid_size;

/* A stack, with the thread that runs or waits on it. */
typedef struct fiber {
    wfi_ucontext context;
    wfi_stack stack;
    unsigned thread;
    enum thread_state state; /* of that thread; THREAD_DONE: the stack is free */
} fiber;

static struct launcher {
    fiber *fibers[THREADS_MOST + 1];
    fiber *now;
    wfi_ucontext scheduler;
    enum thread_state states[THREADS_MOST];
    uint64_t slots[THREADS_MOST]; /* what each thread gives to a shuffle */
    unsigned order[THREADS_MOST], next, threads;
    fiber *on[THREADS_MOST];  /* by thread: the stack on which it runs or waits */
    unsigned at_block, ended; /* threads that wait for the block, that are done */
    uint32_t touched, ready;  /* warps of which a thread has waited or ended since the last release; can go on */
    unsigned favourite;       /* the number of a warp */
    const gpu_kernel *kernel;
    const void *args;
    uint64_t random;
} launcher;

static gpu_kernel *kernels;
uint64_t emulated_block_number; /* counts blocks of all launches: shared memory is poisoned once in each */

void emulated_register(gpu_kernel *kernel)
{
    kernel->next = kernels;
    kernels = kernel;
}

const gpu_kernel *gpu_kernel_find(const char *name)
{
    const gpu_kernel *kernel = kernels;
    while (kernel && strcmp(kernel->name, name) != 0)
        kernel = kernel->next;
    return kernel;
}

void gpu_launch_seed(uint64_t seed)
{
    launcher.random = seed;
}

static unsigned draw(unsigned end)
{
    return (unsigned)prng_below(&launcher.random, end);
}

unsigned gpu_launch_draw(unsigned end)
{
    return draw(end);
}

static void shuffle(unsigned *order, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        order[i] = i;
    for (unsigned i = count; i > 1; i--) {
        unsigned j = draw(i), moved = order[i - 1];
        order[i - 1] = order[j];
        order[j] = moved;
    }
}

const char *gpu_launch_where(void)
{
    static char text[160];
    if (!launcher.kernel)
        return NULL;
    snprintf(text, sizeof(text), "kernel %s, block %u of %u, thread %u", launcher.kernel->name, emulated_block.x,
             emulated_grid_size.x, emulated_thread.x);
    return text;
}

static void set_thread(unsigned thread)
{
    emulated_thread.x = thread % emulated_block_size.x;
    emulated_thread.y = thread / emulated_block_size.x;
}

/* Runs one thread after the other until one of them waits; then another stack goes on. */
static void fiber_main(void)
{
    wfi_ucontext_entered(&launcher.scheduler);
    for (;;) {
        fiber *me = launcher.now;
        while (launcher.next < launcher.threads) {
            me->thread = launcher.order[launcher.next++];
            me->state = launcher.states[me->thread] = THREAD_RUNS;
            launcher.on[me->thread] = me;
            set_thread(me->thread);
            launcher.kernel->run(launcher.args);
            launcher.states[me->thread] = THREAD_DONE;
            launcher.touched |= UINT32_C(1) << me->thread / WARP;
            launcher.ended++;
        }
        me->state = THREAD_DONE;
        wfi_ucontext_switch(&me->context, &launcher.scheduler, false);
    }
}

static void resume(fiber *next)
{
    launcher.now = next;
    set_thread(next->thread);
    if (next->state != THREAD_DONE)
        next->state = launcher.states[next->thread] = THREAD_RUNS;
    wfi_ucontext_switch(&launcher.scheduler, &next->context, false);
}

static void wait_as(enum thread_state state)
{
    fiber *me = launcher.now;
    me->state = launcher.states[me->thread] = state;
    launcher.touched |= UINT32_C(1) << me->thread / WARP;
    launcher.at_block += state == THREAD_AT_BLOCK;
    wfi_ucontext_switch(&me->context, &launcher.scheduler, false);
}

void emulated_syncthreads(void)
{
    wait_as(THREAD_AT_BLOCK);
}

void emulated_syncwarp(void)
{
    wait_as(THREAD_AT_WARP);
}

uint64_t emulated_exchange(uint64_t mine, unsigned from_lane)
{
    unsigned me = launcher.now->thread, warp = me / WARP * WARP;
    launcher.slots[me] = mine;
    wait_as(THREAD_AT_WARP);
    uint64_t got = warp + from_lane < launcher.threads ? launcher.slots[warp + from_lane] : mine;
    wait_as(THREAD_AT_WARP);
    return got;
}

/* Poisons shared memory, whose contents are undefined at the beginning of a block. */
void emulated_shared(void *at, size_t size, uint64_t *poisoned_in)
{
    if (*poisoned_in == emulated_block_number)
        return;
    *poisoned_in = emulated_block_number;
    memset(at, 0xff, size);
}

static fiber *fiber_at(unsigned i)
{
    if (launcher.fibers[i])
        return launcher.fibers[i];
    fiber *made = calloc(1, sizeof(*made));
    if (!made || !wfi_stack_map(&made->stack, STACK_BYTES))
        abort();
    made->state = THREAD_DONE;
    wfi_ucontext_init(&made->context, &made->stack, fiber_main);
    launcher.fibers[i] = made;
    return made;
}

static bool all_wait(unsigned from, unsigned to, enum thread_state state)
{
    for (unsigned t = from; t < to; t++)
        if (launcher.states[t] != state && launcher.states[t] != THREAD_DONE)
            return false;
    return true;
}

static bool any_waits(unsigned from, unsigned to, enum thread_state state)
{
    for (unsigned t = from; t < to; t++)
        if (launcher.states[t] == state)
            return true;
    return false;
}

static void make_ready(unsigned from, unsigned to, enum thread_state state)
{
    for (unsigned t = from; t < to; t++) {
        if (launcher.states[t] != state)
            continue;
        launcher.states[t] = THREAD_RUNS;
        launcher.ready |= UINT32_C(1) << t / WARP;
    }
}

/* Makes the threads ready that wait at a barrier which all others have reached. */
static void release(void)
{
    unsigned threads = launcher.threads;
    for (uint32_t warps = launcher.touched; warps != 0; warps &= warps - 1) {
        unsigned from = (unsigned)__builtin_ctz(warps) * WARP, to = from + WARP < threads ? from + WARP : threads;
        if (any_waits(from, to, THREAD_AT_WARP) && all_wait(from, to, THREAD_AT_WARP))
            make_ready(from, to, THREAD_AT_WARP);
    }
    launcher.touched = 0;
    if (launcher.at_block + launcher.ended == threads && launcher.at_block > 0) {
        launcher.at_block = 0;
        make_ready(0, threads, THREAD_AT_BLOCK);
    }
}

static void run_in_random_order(unsigned from, unsigned to)
{
    unsigned order[THREADS_MOST];
    shuffle(order, to - from);
    for (unsigned i = 0; i < to - from; i++)
        if (launcher.states[from + order[i]] == THREAD_RUNS)
            resume(launcher.on[from + order[i]]);
}

/* The ready threads of one warp go on, or at times those of all warps. A warp is favoured until it waits for others, so
 * that it runs far ahead of them. False: no thread is ready. */
static bool run_ready(void)
{
    enum { TURNS = 32 };
    uint32_t ready = launcher.ready;
    if (ready == 0)
        return false;
    unsigned drawn = draw(TURNS);
    if (drawn == 0 || (ready >> launcher.favourite & 1) == 0) {
        for (unsigned i = draw((unsigned)__builtin_popcount(ready)); i > 0; i--)
            ready &= ready - 1;
        launcher.favourite = (unsigned)__builtin_ctz(ready);
    }
    unsigned from = launcher.favourite * WARP, to = from + WARP < launcher.threads ? from + WARP : launcher.threads;
    launcher.ready &= drawn == 1 ? 0 : ~(UINT32_C(1) << launcher.favourite);
    if (drawn == 1)
        run_in_random_order(0, launcher.threads);
    else
        run_in_random_order(from, to);
    return true;
}

static void run_block(void)
{
    unsigned used = 0;
    shuffle(launcher.order, launcher.threads);
    memset(launcher.states, 0, launcher.threads * sizeof(launcher.states[0]));
    launcher.next = launcher.at_block = launcher.ended = launcher.favourite = 0;
    launcher.touched = launcher.ready = 0;
    while (launcher.next < launcher.threads)
        resume(fiber_at(used++));
    do
        release();
    while (run_ready());
    if (any_waits(0, launcher.threads, THREAD_AT_BLOCK) || any_waits(0, launcher.threads, THREAD_AT_WARP)) {
        gpu_fault("kernel %s, block %u: its threads wait at different barriers: it would hang", launcher.kernel->name,
                  emulated_block.x);
        abort();
    }
}

void gpu_launch_run(const gpu_kernel *kernel, const unsigned grid[3], const unsigned block[3], const void *args)
{
    emulated_grid_size = (emulated_dim){grid[0], grid[1], grid[2]};
    emulated_block_size = (emulated_dim){block[0], block[1], block[2]};
    launcher.threads = block[0] * block[1] * block[2];
    launcher.kernel = kernel;
    launcher.args = args;
    wfi_ucontext_init_thread(&launcher.scheduler);
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2], first = draw(1u << 30) % blocks;
    for (uint64_t i = 0; i < blocks; i++) { /* from the first in a circle, forwards or backwards */
        uint64_t at = first % 2 ? (first + i) % blocks : (first + blocks - i) % blocks;
        emulated_block = (emulated_dim){(unsigned)(at % grid[0]), (unsigned)(at / grid[0] % grid[1]),
                                        (unsigned)(at / grid[0] / grid[1])};
        emulated_block_number++;
        run_block();
    }
    launcher.kernel = NULL;
}
