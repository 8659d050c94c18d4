/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_chosen.c - a member chooses its numbers so that they all fall into one place of a table whose hash is
 * known: ids of calls, names of values, numbers of forks, shapes. Nobody knows the hash, so no lookup passes more
 * than a few.
 *
 * The numbers are chosen against the hash that tables without a key have, which anybody can read in src/base/map.c. The
 * simulation makes keys of its seed, so that the same slots are looked at in every run.
 */
#include "base/map.h"
#include "rpc/inside.h"
#include "rpc/world.h"
#include "tensors.h"

#define MANY 500
#define MASK 4095 /* of more slots than a table of MANY has */
#define PROBES 60 /* at most three quarters are full: by chance it is hardly ever half of this */

static weft_call *kept[MANY];
static int kept_count;
static bool done;

/* As src/base/map.c mixes where there is no key. */
static uint64_t mix(uint64_t key)
{
    key = (key ^ (key >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    key = (key ^ (key >> 27)) * UINT64_C(0x94d049bb133111eb);
    return key ^ (key >> 31);
}

static weft_status run_keep(weft_call *call, void *user)
{
    MUST(kept_count < MANY);
    kept[kept_count++] = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static weft_status run_batch(weft_batch *batch, void *user)
{
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "keep", .run = run_keep, .flags = WEFT_FUNCTION_INLINE},
    {.name = "shapes",
     .takes = {WEFT_TYPE_TENSOR},
     .run_batch = run_batch,
     .batch = {.size = WEFT_MAX_BATCH, .wait_us = 3600000000}},
};

/* ---- Ids, names and forks ---------------------------------------------------------------------------------------- */

static uint64_t next_id(uint64_t id)
{
    while (mix(++id) & MASK) {}
    return id;
}

static uint64_t next_fork(uint64_t fork)
{
    while (mix(UINT64_C(1) << 48 | ++fork) & MASK) {}
    return fork;
}

/* The hash of names was FNV-1a over these words. */
static uint64_t next_number(uint64_t number, uint64_t ranks, uint64_t incarnations)
{
    for (;;) {
        uint64_t words[3] = {ranks, incarnations, ++number};
        if (!(mix(wfi_hash_bytes(words, sizeof(words))) & MASK))
            return number;
    }
}

static void call_so(weft_agent *agent, uint64_t id, uint64_t number, uint64_t fork)
{
    uint8_t bytes[256];
    wfi_writer w;
    wfi_writer_init(&w, bytes, sizeof(bytes));
    wfi_write_u64(&w, id);
    wfi_write_u8(&w, INSIDE_CALL_REMOTE);
    wfi_write_u64(&w, UINT64_MAX);
    wfi_write_u8(&w, 4);
    wfi_write_bytes(&w, "keep", 4);
    wfi_write_blob(&w, "", 0);
    inside_write_name(&w, &(inside_name){.creator = 1,
                                         .owner_incarnation = weft_agent_worker(agent, 0).incarnation,
                                         .creator_incarnation = weft_agent_worker(agent, 1).incarnation,
                                         .number = number});
    wfi_write_u64(&w, fork);
    inside_write_body(&w, WEFT_NO_VALUES, NULL);
    MUST_OK(inside_send(agent, 0, INSIDE_CALL, false, bytes, w.size));
}

static void choose_ids(weft_agent *agent)
{
    uint64_t id = 0, number = 0, fork = 0;
    uint64_t incarnations =
        (uint64_t)weft_agent_worker(agent, 0).incarnation << 32 | weft_agent_worker(agent, 1).incarnation;
    for (int i = 0; i < MANY; i++) {
        id = next_id(id);
        number = next_number(number, 1, incarnations);
        fork = next_fork(fork);
        call_so(agent, id, number, fork);
    }
}

static void must_be_spread(inside_table table)
{
    MUST(table.count == MANY && table.probes < PROBES);
}

static void play_ids(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 1)
        choose_ids(agent);
    while (weft_agent_rank(agent) == 1 ? !done : kept_count < MANY)
        world_sleep_ms(w, 1);
    if (weft_agent_rank(agent) == 1)
        return;
    must_be_spread(inside_calls_served(agent, 1));
    must_be_spread(inside_values(agent));
    must_be_spread(inside_forks(agent));
    for (int i = 0; i < MANY; i++)
        weft_call_finish(kept[i], WEFT_OK);
    done = true;
}

static void chosen_ids_names_and_forks_do_not_meet(void **s)
{
    world w = {.seed = 1, .size = 2, WORLD_FUNCTIONS(functions), .program = play_ids, .stop = true};
    w.arg = &w;
    kept_count = 0;
    done = false;
    world_run(&w);
    assert_int_equal(kept_count, MANY);
}

/* ---- Shapes ------------------------------------------------------------------------------------------------------ */

/* As weft once hashed one empty float32 tensor of two dimensions, before it had a key. */
static uint64_t hash_of_shape(uint64_t size)
{
    const uint64_t prime = UINT64_C(0x9E3779B97F4A7C15);
    uint64_t hash = (1 ^ (uint64_t)WEFT_DTYPE_FLOAT32 ^ 2u << 8) * prime;
    hash = (hash ^ hash >> 32) * prime;
    return (hash ^ hash >> 32 ^ size) * prime;
}

static void choose_shapes(weft_agent *agent, weft_future *futures[MANY])
{
    uint64_t size = 0;
    for (int i = 0; i < MANY; i++) {
        while (mix(hash_of_shape(++size)) & MASK) {}
        weft_tensor *empty = tensor_empty(WEFT_SHAPE(0, (int64_t)size), WEFT_DTYPE_FLOAT32);
        MUST_OK(
            weft_rpc_async(agent, weft_to_rank(0), "shapes", WEFT_VALUES(weft_of_tensor(empty)), NULL, &futures[i]));
        weft_tensor_unref(empty);
    }
}

static void play_shapes(weft_agent *agent, void *arg)
{
    world *w = arg;
    weft_future *futures[MANY] = {NULL};
    if (weft_agent_rank(agent) == 1)
        choose_shapes(agent, futures);
    while (weft_agent_rank(agent) == 1 ? !done : inside_shapes(agent, "shapes").count < MANY)
        world_sleep_ms(w, 1);
    if (weft_agent_rank(agent) == 0) {
        must_be_spread(inside_shapes(agent, "shapes"));
        done = true;
        return;
    }
    for (int i = 0; i < MANY; i++)
        weft_future_unref(futures[i]);
}

static void chosen_shapes_do_not_meet(void **s)
{
    world w = {.seed = 1, .size = 2, WORLD_FUNCTIONS(functions), .program = play_shapes, .stop = true};
    w.arg = &w;
    done = false;
    world_run(&w);
}

UNIT_MAIN(chosen_ids_names_and_forks_do_not_meet, chosen_shapes_do_not_meet)
