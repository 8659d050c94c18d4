/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_remapped.c - memory of the caller that is unmapped as soon as it is released, and mapped again at the same
 * address with other pages and another size: no cached registration and no late read or write uses what was there.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <sys/mman.h>

enum { PLACES = 4, ROUNDS = 60, MAX = 1 << 22 };

/* An address range of MAX bytes, of which the first `size` bytes are mapped while something refers to them. */
typedef struct place {
    char *address;
    size_t size;
    atomic_bool taken;
} place;

static place places[PLACES];

static void *reserve(void *at)
{
    void *got = mmap(at, MAX, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (at ? MAP_FIXED : 0), -1, 0);
    MUST(got != MAP_FAILED);
    return got;
}

static void leave(void *arg)
{
    place *p = arg;
    reserve(p->address); /* its pages go at once; who touches them now is killed */
    atomic_store(&p->taken, false);
}

static weft_tensor *take(world *w, int64_t count, uint32_t value)
{
    for (int i = 0;; i++) {
        place *p = &places[i % PLACES];
        if (atomic_exchange(&p->taken, true)) {
            if (i >= PLACES)
                world_sleep_ms(w, 1); /* the last calls' arguments may be released a little later */
            continue;
        }
        p->size = (size_t)count * sizeof(uint32_t);
        void *got = mmap(p->address, p->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        MUST(got == p->address);
        for (int64_t k = 0; k < count; k++)
            ((uint32_t *)got)[k] = value + (uint32_t)k;
        weft_tensor *tensor = tensor_wrap(WEFT_SHAPE(count), WEFT_DTYPE_INT32, got, NULL, leave, p);
        MUST(tensor);
        return tensor;
    }
}

static void memory_is_mapped_again(weft_agent *agent, void *arg)
{
    weft_tensor *land[2], *x[2];
    weft_future *futures[2];
    for (uint32_t round = 0; weft_agent_rank(agent) == 1 && round < ROUNDS; round++) {
        const int64_t count = 1 + (int64_t)(round * UINT32_C(2654435761) >> (12 + round % 8));
        for (uint32_t i = 0; i < 2; i++) {
            x[i] = take(arg, count, round * 2 + i);
            land[i] = take(arg, count, 0);
            weft_rpc_options options = {.land = {&land[i], 1}};
            MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x[i])), &options,
                                   &futures[i]));
            weft_tensor_unref(x[i]);
        }
        for (uint32_t i = 0; i < 2; i++) {
            MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
            weft_future_unref(futures[i]);
            const uint32_t *got = weft_tensor_data(land[i]);
            for (int64_t k = 0; k < count; k++)
                MUST(got[k] == round * 2 + i + (uint32_t)k);
            weft_tensor_unref(land[i]);
        }
    }
}

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo}};

static void begin(world *w)
{
    for (int i = 0; i < PLACES; i++)
        places[i].address = reserve(NULL);
}

static void end(world *w)
{
    for (int i = 0; i < PLACES; i++) {
        MUST(!atomic_load(&places[i].taken));
        MUST(munmap(places[i].address, MAX) == 0);
    }
}

WORLD_TEST(memory_is_mapped_again, 2, 1, .size = 2, WORLD_FUNCTIONS(functions), .begin = begin, .end = end)

UNIT_MAIN(test_memory_is_mapped_again)
