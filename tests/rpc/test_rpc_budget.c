/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_budget.c - what others can make a worker hold: calls that do not fit are refused and never stall, what is
 * held is given back, and a caller that takes no answers cannot pile them up.
 */
#include "base/error.h"
#include "rpc/inside.h"
#include "rpc/world.h"
#include "tensors.h"

enum { SERVER = 0, CALLER = 1, SLACK = 1 << 16 };

static struct shared {
    world *w;
    size_t call_bytes, budget;
    int calls, fit; /* to make, and how many the budget has room for */
    _Atomic(weft_call *) held[64];
    atomic_int held_count, most_held, finished;
    weft_tensor *place;
} shared;

static int kept, unknown; /* replies that came: with results to be pulled; with WEFT_ERR_UNKNOWN */

/* With `user` it lets the arguments go: they no longer count. */
static weft_status run_hold(weft_call *call, void *user)
{
    (void)(user ? weft_call_defer(call) : weft_call_defer_keeping(call));
    int held = atomic_fetch_add(&shared.held_count, 1) + 1;
    if (held > atomic_load(&shared.most_held))
        atomic_store(&shared.most_held, held);
    for (int i = 0; i < 64; i++) {
        weft_call *none = NULL;
        if (atomic_compare_exchange_strong(&shared.held[i], &none, call))
            return WEFT_DEFERRED;
    }
    MUST(!"there are places for all");
    return WEFT_DEFERRED;
}

static weft_status run_sum(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_tensor_numel(weft_call_tensor(call, 0)))));
    return WEFT_OK;
}

static weft_status run_make(weft_call *call, void *user)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(weft_call_i64(call, 0)), WEFT_DTYPE_FLOAT32);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor_unref(x);
    return WEFT_OK;
}

static weft_status run_release(weft_call *call, void *user)
{
    for (int i = 0; i < 64; i++) {
        weft_call *held = atomic_exchange(&shared.held[i], NULL);
        if (!held)
            continue;
        atomic_fetch_sub(&shared.held_count, 1);
        weft_call_finish(held, WEFT_OK);
    }
    return WEFT_OK;
}

static weft_tensor *land_there(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    return index ? NULL : weft_tensor_ref(shared.place); /* only the first lands in a place of ours */
}

static const weft_function functions[] = {
    {.name = "hold", .takes = {WEFT_TYPE_REST}, .run = run_hold},
    {.name = "hold_empty", .takes = {WEFT_TYPE_REST}, .run = run_hold, .user = &shared},
    {.name = "sum", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_REST}, .gives = {WEFT_TYPE_I64}, .run = run_sum},
    {.name = "land",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_REST},
     .gives = {WEFT_TYPE_I64},
     .run = run_sum,
     .land = land_there},
    {.name = "make", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_make},
    {.name = "release", .run = run_release},
};

static void await_nothing_held(weft_agent *agent)
{
    for (int i = 0; i < 20000 && world_stats(agent).bytes_held; i++)
        world_sleep_ms(shared.w, 1);
    MUST(world_stats(agent).bytes_held == 0);
}

static void give_budget(weft_agent_options *options, void *arg)
{
    options->memory_budget_bytes = options->rank == SERVER ? shared.budget : 0;
}

/* ---- The issue's: many deferred calls against a server with memory for few ------------------------------------ */

typedef struct attempt {
    weft_future *future;
    bool done;
} attempt;

static void start_hold(weft_agent *agent, attempt *a, weft_tensor *x)
{
    MUST_OK(weft_rpc_async(agent, weft_to_rank(SERVER), "hold", WEFT_VALUES(weft_of_tensor(x)),
                           &(weft_rpc_options){.timeout_ms = WEFT_FOREVER}, &a->future));
}

/* Every refused call is made again; whenever the server is full, or nothing more comes, it lets go of what it holds. */
static void call_until_all_went(weft_agent *agent)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE((int64_t)shared.call_bytes / 4), WEFT_DTYPE_FLOAT32);
    attempt all[64] = {{0}};
    int left = shared.calls;
    for (int i = 0; i < shared.calls; i++)
        start_hold(agent, &all[i], x);
    while (left) {
        for (int i = 0; i < shared.calls; i++) {
            if (all[i].done || !weft_future_done(all[i].future))
                continue;
            const weft_error *error = weft_future_error(all[i].future);
            MUST(!error || weft_error_code(error) == WEFT_ERR_BUSY);
            MUST(!error || strstr(weft_error_message(error), "budget"));
            all[i].done = !error;
            left -= !error;
            weft_future_unref(all[i].future);
            if (error)
                start_hold(agent, &all[i], x);
        }
        world_sleep_ms(shared.w, 2);
        MUST_OK(
            weft_rpc_sync(agent, weft_to_rank(SERVER), "release", WEFT_NO_VALUES, NULL, NULL)); /* small: it gets in */
    }
    weft_tensor_unref(x);
}

static void refused_and_retried(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == CALLER)
        call_until_all_went(agent);
    atomic_fetch_add(&shared.finished, 1);
    while (atomic_load(&shared.finished) < 2)
        world_sleep_ms(shared.w, 1);
    if (weft_agent_rank(agent) != SERVER)
        return;
    MUST(world_stats(agent).calls_refused > 0);
    MUST(atomic_load(&shared.most_held) <= shared.fit);
    await_nothing_held(agent);
}

static void begin(world *w)
{
    shared.w = w;
    atomic_store(&shared.held_count, 0);
    atomic_store(&shared.most_held, 0);
    atomic_store(&shared.finished, 0);
    kept = unknown = 0;
}

static void run(void (*program)(weft_agent *, void *), uint64_t seeds, int on_tcp)
{
    world_play(
        &(world){.size = 2, WORLD_FUNCTIONS(functions), .program = program, .adjust = give_budget, .begin = begin},
        seeds, on_tcp);
}

static void test_64_calls_memory_for_8(void **state)
{
    shared = (struct shared){.call_bytes = (size_t)1 << 20, .calls = 64, .fit = 8};
    shared.budget = 8 * shared.call_bytes + SLACK;
    run(refused_and_retried, 10, 1);
}

/* As the issue has it. One tensor serves all callers, so it takes half a gigabyte and a little. */
#ifdef __SANITIZE_THREAD__ /* each byte that moves costs much, and races no more than the first */
#define LARGE_BYTES ((size_t)4 << 20)
#else
#define LARGE_BYTES ((size_t)64 << 20)
#endif

static void test_64_large_calls(void **state)
{
    shared = (struct shared){.call_bytes = LARGE_BYTES, .calls = 64, .fit = 8};
    shared.budget = 8 * shared.call_bytes + SLACK;
    run(refused_and_retried, 0, 1);
}

/* ---- What counts ---------------------------------------------------------------------------------------------- */

static weft_status call_with(weft_agent *agent, const char *function, weft_args args, char *text, size_t room)
{
    weft_error *error = NULL;
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank(SERVER), function, args, &(weft_rpc_options){.error = &error}, NULL);
    if (text)
        snprintf(text, room, "%s", weft_error_message(error));
    weft_error_unref(error);
    return status;
}

/* Makes the call that is held as number `count`. The arguments of the one before go only after its handler has
 * returned, which may be later than this call arrives: then it is refused, and made again. */
static weft_future *hold(weft_agent *agent, const char *function, weft_tensor *x, int count)
{
    weft_future *future;
    for (int i = 0; i < 10000; i++) {
        MUST_OK(weft_rpc_async(agent, weft_to_rank(SERVER), function, WEFT_VALUES(weft_of_tensor(x)), NULL, &future));
        while (atomic_load(&shared.held_count) < count && !weft_future_done(future))
            world_sleep_ms(shared.w, 1);
        if (atomic_load(&shared.held_count) >= count)
            return future;
        MUST_BE(weft_future_wait(future, 0), WEFT_ERR_BUSY);
        weft_future_unref(future);
    }
    MUST(!"it is held in the end");
    return NULL;
}

static void what_counts(weft_agent *agent, void *arg)
{
    char text[512], *long_text = malloc(shared.budget + 1);
    weft_future *futures[4];
    int64_t half = (int64_t)shared.budget / 8;
    weft_tensor *large = tensor_zeros(WEFT_SHAPE(3 * half), WEFT_DTYPE_FLOAT32); /* three halves of the budget */
    weft_tensor *fits = tensor_zeros(WEFT_SHAPE(half + half / 2), WEFT_DTYPE_FLOAT32);
    if (weft_agent_rank(agent) == SERVER)
        goto out;
    MUST_BE(call_with(agent, "sum", WEFT_VALUES(weft_of_tensor(large)), text, sizeof(text)), WEFT_ERR_TOO_LARGE);
    MUST(strstr(text, "never fit") && strstr(text, "WEFT_MEMORY_BUDGET"));
    MUST_OK(call_with(agent, "sum", WEFT_VALUES(weft_of_tensor(fits)), NULL, 0));
    /* A place of the user's own costs nothing; the second tensor of the call, which gets a slab, does. */
    shared.place = tensor_zeros(WEFT_SHAPE(3 * half), WEFT_DTYPE_FLOAT32);
    MUST_OK(call_with(agent, "land", WEFT_VALUES(weft_of_tensor(large)), NULL, 0));
    MUST_BE(call_with(agent, "land", WEFT_VALUES(weft_of_tensor(large), weft_of_tensor(large)), text, sizeof(text)),
            WEFT_ERR_TOO_LARGE);
    weft_tensor_unref(shared.place);
    /* Metadata that has to be pulled counts too: once as it comes, and as the value that is made of it. */
    memset(long_text, 'x', shared.budget);
    long_text[shared.budget] = 0;
    MUST_BE(call_with(agent, "hold", WEFT_VALUES(weft_of_string(long_text)), NULL, 0), WEFT_ERR_TOO_LARGE);
    /* Neither is too much alone: only together they will never fit. */
    long_text[shared.budget / 5 * 3] = 0;
    MUST_BE(call_with(agent, "hold", WEFT_VALUES(weft_of_string(long_text)), text, sizeof(text)), WEFT_ERR_TOO_LARGE);
    MUST(strstr(text, "never fit"));
    /* Kept arguments stay, others go when the handler has returned: three of these fit, two of those do not. */
    for (int i = 0; i < 3; i++)
        futures[i] = hold(agent, "hold_empty", fits, i + 1);
    futures[3] = hold(agent, "hold", fits, 4);
    MUST_BE(call_with(agent, "sum", WEFT_VALUES(weft_of_tensor(fits)), text, sizeof(text)), WEFT_ERR_BUSY);
    MUST(strstr(text, "do not fit now") && strstr(text, "WEFT_MEMORY_BUDGET"));
    MUST_OK(call_with(agent, "release", WEFT_NO_VALUES, NULL, 0));
    for (int i = 0; i < 4; i++) {
        MUST_OK(weft_future_wait(futures[i], 10000));
        weft_future_unref(futures[i]);
    }
    for (int i = 0; i < 1000; i++) /* in time, all is given back: else this would be refused for ever */
        if (call_with(agent, "sum", WEFT_VALUES(weft_of_tensor(fits)), NULL, 0) == WEFT_OK)
            break;
        else
            world_sleep_ms(shared.w, 1);
    MUST_OK(call_with(agent, "sum", WEFT_VALUES(weft_of_tensor(fits)), NULL, 0));
out:
    atomic_fetch_add(&shared.finished, 1);
    while (atomic_load(&shared.finished) < 2)
        world_sleep_ms(shared.w, 1);
    if (weft_agent_rank(agent) == SERVER)
        await_nothing_held(agent);
    weft_tensor_unref(large);
    weft_tensor_unref(fits);
    free(long_text);
}

static void test_what_counts(void **state)
{
    shared = (struct shared){.budget = (size_t)4 << 20};
    run(what_counts, 5, 1);
}

/* ---- A caller that takes no answers --------------------------------------------------------------------------- */

static uint64_t kept_ids[64];

/* Reads replies and says nothing. */
static bool swallow(uint8_t type, const uint8_t *bytes, size_t size)
{
    wfi_reader reader;
    if (type != INSIDE_REPLY)
        return true;
    wfi_reader_init(&reader, bytes, size);
    uint64_t id = wfi_read_u64(&reader);
    uint8_t flags = wfi_read_u8(&reader);
    MUST(wfi_read_u32(&reader) == 0);
    if (flags & INSIDE_REPLY_NEEDS_DONE)
        kept_ids[kept++] = id;
    if (!(flags & INSIDE_REPLY_ERROR))
        return true;
    weft_error *error = wfi_error_read(&reader);
    MUST_BE(weft_error_code(error), WEFT_ERR_UNKNOWN);
    MUST(strstr(weft_error_message(error), "it ran"));
    weft_error_unref(error);
    unknown++;
    return true;
}

static void take_nothing(weft_agent *agent, void *arg)
{
    enum { CALLS = 30, COUNT = 1 << 18 }; /* of a MiB each: the budget has room for four */
    if (weft_agent_rank(agent) == CALLER) {
        inside_divert(agent, swallow);
        for (uint64_t id = 1; id <= CALLS; id++)
            MUST_OK(inside_send_call(agent, SERVER, id, "make", WEFT_VALUES(weft_of_i64(COUNT))));
        for (int i = 0; i < 10000 && kept + unknown < CALLS; i++)
            world_sleep_ms(shared.w, 1);
        MUST(kept + unknown == CALLS && kept >= 3 && kept <= 4);
        atomic_fetch_add(&shared.finished, 1);
        while (atomic_load(&shared.finished) < 2)
            world_sleep_ms(shared.w, 1);
        inside_divert(agent, NULL);
        for (int i = 0; i < kept; i++) {
            uint64_t id = htole64(kept_ids[i]);
            MUST_OK(inside_send(agent, SERVER, INSIDE_DONE, false, &id, sizeof(id)));
        }
        MUST_OK(call_with(agent, "make", WEFT_VALUES(weft_of_i64(COUNT)), NULL, 0)); /* and there is room again */
        MUST_OK(call_with(agent, "make", WEFT_VALUES(weft_of_i64(6 * COUNT)), NULL,
                          0)); /* alone, one may be over the budget */
    } else {
        while (atomic_load(&shared.finished) < 1)
            world_sleep_ms(shared.w, 1);
        MUST(world_stats(agent).bytes_held <= shared.budget);
        MUST(world_stats(agent).calls_served == CALLS);
        atomic_fetch_add(&shared.finished, 1);
        await_nothing_held(agent);
    }
}

static void test_a_caller_that_takes_no_answers(void **state)
{
    shared = (struct shared){.budget = ((size_t)4 << 20) + SLACK};
    run(take_nothing, 10, 0);
}

UNIT_MAIN(test_64_calls_memory_for_8, test_64_large_calls, test_what_counts, test_a_caller_that_takes_no_answers)
