/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_queue.c - queue_limit_bytes: what a worker holds for calls to one that takes nothing is bounded in true
 * memory, whatever the calls are made of; one call larger than the limit still goes; and what waited arrives.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <weft/sim.h>

#include <malloc.h>

enum { LIMIT = 2 << 20, SLACK = 600 << 10, MOST = 20000 };

static struct shared {
    world *w;
    atomic_bool stalled, over;
} shared;

static const weft_function functions[] = {{.name = "take", .takes = {WEFT_TYPE_REST}, .run = world_run_nothing}};

/* On tcp the peer has no threads, and makes no progress while it is stalled. */
static void adjust(weft_agent_options *options, void *arg)
{
    options->queue_limit_bytes = LIMIT;
    options->death_timeout_ms = WEFT_FOREVER;
    options->no_threads = shared.w->fabric == WORLD_TCP && options->rank == 1;
}

static void stall(bool on)
{
    atomic_store(&shared.stalled, on);
    if (shared.w->sim && on)
        weft_sim_pause(shared.w->sim, 1);
    else if (shared.w->sim)
        weft_sim_resume(shared.w->sim, 1);
    else
        world_sleep_ms(shared.w,
                       20); /* it may still be in its last look; nothing depends on that but a tighter measure */
}

static void serve(weft_agent *agent)
{
    while (shared.w->fabric == WORLD_TCP && !atomic_load(&shared.over))
        if (atomic_load(&shared.stalled))
            world_sleep_ms(shared.w, 1);
        else
            weft_agent_progress(agent, 1);
}

/* Sanitizers have an allocator of their own, which says nothing here: 0. */
static size_t heap(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

typedef struct kind {
    weft_args args;
    weft_rpc_options options;
    size_t each;           /* bytes of one that are copied */
    size_t bound;          /* over the growth of all */
    bool multicast, slabs; /* slabs: it is not malloc's memory */
} kind;

static weft_status start(weft_agent *agent, const kind *k, weft_future **out)
{
    weft_target to = weft_to_rank(1);
    if (!k->multicast)
        return weft_rpc_async(agent, to, "take", k->args, &k->options, out);
    MUST_OK(weft_rpc_multicast(agent, &to, 1, "take", k->args, &k->options, out));
    if (weft_future_wait(*out, 1) == WEFT_ERR_TIMEOUT) /* none has ended: it has started */
        return WEFT_OK;
    weft_status status = weft_error_code(weft_future_error(*(weft_future **)weft_future_payload(*out)));
    MUST(status); /* nobody answers */
    weft_future_unref(*out);
    return status;
}

/* Everything that was started is taken in the end. */
static void let_them_through(weft_future **futures, int count)
{
    stall(false);
    for (int i = 0; i < count; i++) {
        MUST_OK(weft_future_wait(futures[i], 60000));
        weft_future_unref(futures[i]);
    }
}

static void fill(weft_agent *agent, const kind *k)
{
    static weft_future *futures[MOST];
    int count = 0;
    weft_status status = WEFT_OK;
    stall(true);
    size_t before = heap();
    while (count < MOST && (status = start(agent, k, &futures[count])) == WEFT_OK)
        count++;
    /* The last one may exceed it; a buffer that grows is up to twice as large as what is in it. */
    size_t grown = heap() - before, most = k->bound + k->bound / 4 + 2 * k->each + SLACK;
    MUST_BE(status, WEFT_ERR_AGAIN);
    MUST(count >= 1 && (size_t)(count - 1) * k->each <= k->bound);
    if (before && !k->slabs && (grown > most || grown + SLACK < k->bound / 2))
        fprintf(stderr, "%d calls with %zu bytes each hold %zu bytes, the bound is %zu\n", count, k->each, grown,
                k->bound);
    MUST(!before || grown <= most);
    MUST(!before || k->slabs || grown + SLACK >= k->bound / 2); /* nor is much more counted than is held */
    let_them_through(futures, count);
}

static void stalled_peer(weft_agent *agent, void *arg)
{
    enum { LARGE = 256 << 10 };
    if (weft_agent_rank(agent) == 1) {
        serve(agent);
        return;
    }
    char *bytes = calloc(1, 2 * LIMIT);
    weft_tensor *base = tensor_zeros(WEFT_SHAPE(64, 1024), WEFT_DTYPE_FLOAT32), *across = tensor_transpose(base, 0, 1);
    weft_args small = WEFT_VALUES(weft_of_bytes(bytes, 3000)), large = WEFT_VALUES(weft_of_bytes(bytes, LARGE)),
              packed = WEFT_VALUES(weft_of_tensor(across)), shares = WEFT_VALUES(weft_of_tensor(base)),
              whole = WEFT_VALUES(weft_of_bytes(bytes, 2 * LIMIT));
    weft_rpc_options forever = {.timeout_ms = WEFT_FOREVER}, again = forever;
    again.retry = (weft_retry){.attempts = 1000000, .pause_ms = 300, .pause_most_ms = 300};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "take", small, &forever, NULL));
    const kind kinds[] = {
        {WEFT_NO_VALUES, forever, 0, LIMIT, false, false},
        {small, forever, 3000, LIMIT, false, false},
        {large, forever, LARGE, LIMIT, false, false},
        {packed, forever, LARGE, LIMIT, false, true},
        {shares, forever, 0, LIMIT, false, false}, /* the tensor itself is not copied, and counts nothing */
        {whole, forever, (size_t)2 * LIMIT, LIMIT, false, false}, /* one goes, though it is larger than all of it */
        {large, forever, LARGE, LIMIT, true, false},
        {large, again, LARGE, (size_t)2 * LIMIT, false, false}, /* as much again waits in pauses */
    };
    for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++)
        fill(agent, &kinds[i]);
    atomic_store(&shared.over, true);
    free(bytes);
    weft_tensor_unref(across);
    weft_tensor_unref(base);
}

static void begin(world *w)
{
    shared.w = w;
    atomic_store(&shared.over, false);
    atomic_store(&shared.stalled, false);
}

WORLD_TEST(stalled_peer, 1, 1, .size = 2, WORLD_FUNCTIONS(functions), .adjust = adjust, .begin = begin)

UNIT_MAIN(test_stalled_peer)
