/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fiber.c - the scheduler of fibers.
 *
 * No locks: a scheduler and its fibers belong to one thread at a time. A live fiber has one of three states:
 *   RUNNABLE  in `ready`, in the order of becoming runnable, or in its group's `held` while the group is frozen;
 *   RUNNING   the current one;
 *   PARKED    in no list; in the heap of deadlines if it has one.
 * An ended fiber goes to `spare` with its stack, for the next spawn. An abandoned one is in no list and no heap until
 * destroy; if it abandoned its own group it runs until it yields.
 *
 * Equal inputs give equal orders: fibers with equal deadlines wake in the order of parking, and addresses are never
 * compared.
 */
#include "sim/fiber.h"

#include "base/alloc.h"
#include "base/list.h"
#include "base/map.h"
#include "sim/context.h"

#include <assert.h>
#include <stdlib.h>

#define STACK_MIN ((size_t)16 << 10)
#define NOT_IN_HEAP SIZE_MAX

typedef struct group {
    size_t live;
    bool frozen;
    wfi_list held; /* runnable fibers of a frozen group */
} group;

typedef enum fiber_state { RUNNABLE, RUNNING, PARKED, ENDED } fiber_state;

typedef struct sim_fiber {
    wfi_fiber seen;
    wfi_list link; /* ready, held or spare */
    wfi_list all;
    wfi_fibers *fibers;
    group *home;
    fiber_state state;
    bool abandoned, woken;
    uint64_t deadline_ns, order; /* of parking */
    size_t heap_index;
    void (*run)(void *arg);
    void *arg;
    wfi_ucontext context;
    wfi_stack stack;
} sim_fiber;

struct wfi_fibers {
    const wfi_clock *clock;
    size_t stack_bytes;
    wfi_list ready, spare, all;
    wfi_map groups;
    size_t live, made;
    sim_fiber **heap; /* parked with a deadline, earliest first; has room for every fiber */
    size_t heap_size, heap_capacity;
    uint64_t parkings;
    wfi_ucontext loop; /* of the caller of wfi_fibers_run */
};

/* The running fiber of this thread. Read through a function that is never inlined: after a switch the loop may run on
 * another thread, so a kept address of the thread-local would be wrong. */
static _Thread_local sim_fiber *running;

static __attribute__((noinline)) sim_fiber *current(void)
{
    return running;
}

wfi_fiber *wfi_fiber_running(void)
{
    sim_fiber *fiber = current();
    return fiber ? &fiber->seen : NULL;
}

/* ---- The heap of deadlines ---- */

static bool earlier(const sim_fiber *a, const sim_fiber *b)
{
    return a->deadline_ns != b->deadline_ns ? a->deadline_ns < b->deadline_ns : a->order < b->order;
}

static void heap_set(wfi_fibers *fibers, size_t index, sim_fiber *fiber)
{
    fibers->heap[index] = fiber;
    fiber->heap_index = index;
}

/* Puts `fiber` at its place in the heap, up or down from `index`. */
static void heap_sift(wfi_fibers *fibers, size_t index, sim_fiber *fiber)
{
    while (index > 0 && earlier(fiber, fibers->heap[(index - 1) / 2])) {
        heap_set(fibers, index, fibers->heap[(index - 1) / 2]);
        index = (index - 1) / 2;
    }
    for (;;) {
        size_t child = 2 * index + 1;
        if (child + 1 < fibers->heap_size && earlier(fibers->heap[child + 1], fibers->heap[child]))
            child++;
        if (child >= fibers->heap_size || !earlier(fibers->heap[child], fiber))
            break;
        heap_set(fibers, index, fibers->heap[child]);
        index = child;
    }
    heap_set(fibers, index, fiber);
}

static void heap_add(wfi_fibers *fibers, sim_fiber *fiber)
{
    assert(fibers->heap_size < fibers->heap_capacity);
    fibers->heap_size++;
    heap_sift(fibers, fibers->heap_size - 1, fiber);
}

static void heap_remove(wfi_fibers *fibers, sim_fiber *fiber)
{
    size_t index = fiber->heap_index;
    sim_fiber *last;
    if (index == NOT_IN_HEAP)
        return;
    last = fibers->heap[--fibers->heap_size];
    if (last != fiber)
        heap_sift(fibers, index, last);
    fiber->heap_index = NOT_IN_HEAP;
}

static weft_status heap_reserve(wfi_fibers *fibers, size_t count)
{
    size_t capacity = fibers->heap_capacity == 0 ? 16 : fibers->heap_capacity * 2;
    sim_fiber **heap;
    if (count <= fibers->heap_capacity)
        return WEFT_OK;
    heap = realloc(fibers->heap, capacity * sizeof(*heap));
    if (!heap)
        return WEFT_ERR_MEMORY;
    fibers->heap = heap;
    fibers->heap_capacity = capacity;
    return WEFT_OK;
}

/* ---- Groups ---- */

static group *find_group(const wfi_fibers *fibers, int id)
{
    return wfi_map_get(&fibers->groups, (uint32_t)id);
}

static group *make_group(wfi_fibers *fibers, int id)
{
    group *made = find_group(fibers, id);
    if (made)
        return made;
    made = wfi_calloc(1, sizeof(*made));
    if (!made)
        return NULL;
    wfi_list_init(&made->held);
    if (wfi_map_put(&fibers->groups, (uint32_t)id, made) != WEFT_OK) {
        free(made);
        return NULL;
    }
    return made;
}

/* ---- Fibers ---- */

static void fiber_main(void)
{
    sim_fiber *self = current();
    wfi_ucontext_entered(&self->fibers->loop);
    self->run(self->arg);
    self->state = ENDED;
    wfi_ucontext_switch(&self->context, &self->fibers->loop, true);
    abort(); /* nothing switches to an ended fiber */
}

/* A fiber with a stack, only in the list `all`; NULL: no memory. */
static sim_fiber *make_fiber(wfi_fibers *fibers)
{
    wfi_list *spare = wfi_list_pop_front(&fibers->spare);
    sim_fiber *fiber;
    if (spare)
        return wfi_container_of(spare, sim_fiber, link);
    if (heap_reserve(fibers, fibers->made + 1) != WEFT_OK)
        return NULL;
    fiber = wfi_calloc(1, sizeof(*fiber));
    if (!fiber)
        return NULL;
    if (!wfi_stack_map(&fiber->stack, fibers->stack_bytes)) {
        free(fiber);
        return NULL;
    }
    fibers->made++;
    fiber->fibers = fibers;
    fiber->heap_index = NOT_IN_HEAP;
    wfi_list_init(&fiber->link);
    wfi_list_push_back(&fibers->all, &fiber->all);
    return fiber;
}

weft_status wfi_fiber_spawn(wfi_fibers *fibers, int group_id, void (*run)(void *arg), void *arg)
{
    group *home = make_group(fibers, group_id);
    sim_fiber *fiber = home ? make_fiber(fibers) : NULL;
    if (!fiber)
        return WEFT_ERR_MEMORY;
    fiber->home = home;
    fiber->abandoned = false;
    fiber->run = run;
    fiber->arg = arg;
    fiber->seen = (wfi_fiber){.clock = fibers->clock, .group = group_id};
    fiber->state = RUNNABLE;
    wfi_ucontext_init(&fiber->context, &fiber->stack, fiber_main);
    home->live++;
    fibers->live++;
    wfi_list_push_back(&fibers->ready, &fiber->link);
    return WEFT_OK;
}

/* The fiber is no longer counted; it may still be running. */
static void leave(sim_fiber *fiber)
{
    assert(fiber->home->live > 0 && fiber->fibers->live > 0);
    fiber->home->live--;
    fiber->fibers->live--;
}

static void give_turn(wfi_fibers *fibers, sim_fiber *fiber)
{
    assert(!current() && "no loop inside a fiber");
    fiber->state = RUNNING;
    running = fiber;
    wfi_ucontext_switch(&fibers->loop, &fiber->context, false);
    running = NULL;
    if (fiber->state != ENDED)
        return;
    wfi_ucontext_fini(&fiber->context);
    if (!fiber->abandoned)
        leave(fiber);
    wfi_list_push_front(&fibers->spare, &fiber->link); /* the stack used last is first */
}

size_t wfi_fibers_run(wfi_fibers *fibers)
{
    size_t turns = 0;
    wfi_list *link;
    while ((link = wfi_list_pop_front(&fibers->ready))) {
        sim_fiber *fiber = wfi_container_of(link, sim_fiber, link);
        if (fiber->home->frozen) {
            wfi_list_push_back(&fiber->home->held, &fiber->link);
            continue;
        }
        give_turn(fibers, fiber);
        turns++;
    }
    return turns;
}

static void make_runnable(sim_fiber *fiber, bool woken)
{
    heap_remove(fiber->fibers, fiber);
    fiber->woken = woken;
    fiber->state = RUNNABLE;
    wfi_list_push_back(&fiber->fibers->ready, &fiber->link);
}

bool wfi_fiber_wait(wfi_fiber *seen, uint64_t deadline_ns)
{
    sim_fiber *fiber = wfi_container_of(seen, sim_fiber, seen);
    wfi_fibers *fibers = fiber->fibers;
    assert(fiber == current() && fiber->state == RUNNING);
    fiber->state = PARKED;
    fiber->woken = false;
    fiber->deadline_ns = deadline_ns;
    fiber->order = fibers->parkings++;
    if (deadline_ns != WFI_NEVER && !fiber->abandoned)
        heap_add(fibers, fiber);
    wfi_ucontext_switch(&fiber->context, &fibers->loop, false);
    return fiber->woken;
}

void wfi_fiber_wake(wfi_fiber *seen)
{
    sim_fiber *fiber = wfi_container_of(seen, sim_fiber, seen);
    if (fiber->state == PARKED && !fiber->abandoned)
        make_runnable(fiber, true);
}

uint64_t wfi_fibers_next_deadline(wfi_fibers *fibers)
{
    return fibers->heap_size > 0 ? fibers->heap[0]->deadline_ns : WFI_NEVER;
}

void wfi_fibers_expire(wfi_fibers *fibers)
{
    uint64_t now = wfi_now(fibers->clock);
    while (fibers->heap_size > 0 && fibers->heap[0]->deadline_ns <= now)
        make_runnable(fibers->heap[0], false);
}

size_t wfi_fibers_live(const wfi_fibers *fibers, int group_id)
{
    const group *one;
    if (group_id == -1)
        return fibers->live;
    one = find_group(fibers, group_id);
    return one ? one->live : 0;
}

weft_status wfi_fibers_freeze(wfi_fibers *fibers, int group_id)
{
    group *one = make_group(fibers, group_id);
    if (!one)
        return WEFT_ERR_MEMORY;
    one->frozen = true;
    return WEFT_OK;
}

void wfi_fibers_thaw(wfi_fibers *fibers, int group_id)
{
    group *one = find_group(fibers, group_id);
    if (!one)
        return;
    one->frozen = false;
    wfi_list_splice(&fibers->ready, &one->held);
}

void wfi_fibers_abandon(wfi_fibers *fibers, int group_id)
{
    const group *one = find_group(fibers, group_id);
    wfi_list *link;
    if (!one)
        return;
    for (link = fibers->all.next; link != &fibers->all; link = link->next) {
        sim_fiber *fiber = wfi_container_of(link, sim_fiber, all);
        if (fiber->home != one || fiber->state == ENDED || fiber->abandoned)
            continue;
        fiber->abandoned = true;
        if (fiber->state == RUNNABLE)
            wfi_list_remove(&fiber->link);
        heap_remove(fibers, fiber);
        leave(fiber);
    }
}

wfi_fibers *wfi_fibers_create(const wfi_clock *clock, size_t stack_bytes)
{
    wfi_fibers *fibers = wfi_calloc(1, sizeof(*fibers));
    if (!fibers)
        return NULL;
    fibers->clock = clock;
    fibers->stack_bytes = stack_bytes < STACK_MIN ? STACK_MIN : stack_bytes;
    wfi_list_init(&fibers->ready);
    wfi_list_init(&fibers->spare);
    wfi_list_init(&fibers->all);
    wfi_map_init(&fibers->groups);
    wfi_ucontext_init_thread(&fibers->loop);
    return fibers;
}

void wfi_fibers_destroy(wfi_fibers *fibers)
{
    size_t cursor = 0;
    wfi_list *link;
    group *one;
    if (!fibers)
        return;
    assert((!current() || current()->fibers != fibers) && "not from a fiber of its own");
    while ((link = wfi_list_pop_front(&fibers->all))) {
        sim_fiber *fiber = wfi_container_of(link, sim_fiber, all);
        if (fiber->state == ENDED) {
            wfi_stack_unmap(&fiber->stack);
        } else {
            wfi_ucontext_fini(&fiber->context);
            wfi_stack_drop(&fiber->stack);
        }
        free(fiber);
    }
    while ((one = wfi_map_next(&fibers->groups, &cursor, NULL)))
        free(one);
    wfi_map_fini(&fibers->groups);
    free(fibers->heap);
    free(fibers);
}
