/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_multicast.c - one call to many workers: packed once, ourselves among them, the dead among them,
 * cancelled. */
#include "rpc/world.h"
#include "tensors.h"

#define SIZE 9 /* workers: eight targets besides ourselves */
#define ROWS 300
#define COLUMNS 200

static weft_call *held[SIZE];
static atomic_int holding;

static weft_status run_sum(weft_call *call, void *user)
{
    double sum = 0;
    weft_tensor *x = weft_call_tensor(call, 0);
    const float *data = weft_tensor_data(x);
    MUST(weft_tensor_is_contiguous(x) || weft_call_from(call) == weft_agent_rank(weft_call_agent(call)));
    if (weft_tensor_is_contiguous(x))
        for (int64_t i = 0; i < weft_tensor_numel(x); i++)
            sum += data[i];
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_agent_rank(weft_call_agent(call))), weft_of_f64(sum),
                                     weft_of_string(weft_call_string(call, 1))));
    return WEFT_OK;
}

static weft_status run_hold(weft_call *call, void *user)
{
    held[weft_agent_rank(weft_call_agent(call))] = weft_call_defer(call);
    atomic_fetch_add(&holding, 1);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "sum",
     .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_STRING},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_STRING},
     .run = run_sum},
    {.name = "hold", .takes = {WEFT_TYPE_REST}, .run = run_hold},
};

static void all_workers(weft_target *to)
{
    for (int rank = 0; rank < SIZE; rank++)
        to[rank] = weft_to_rank(rank);
}

/* A transpose must be packed, and is too large for a frame; the string makes the metadata outgrow it in the second
 * round. */
static void packed_once(weft_agent *agent, void *arg)
{
    static char text[6000];
    if (weft_agent_rank(agent) != 0)
        return;
    memset(text, 'x', sizeof(text) - 1);
    weft_tensor *x = tensor_full(WEFT_SHAPE(ROWS, COLUMNS), WEFT_DTYPE_FLOAT32, 2);
    weft_tensor *t = tensor_transpose(x, 0, 1);
    weft_target to[SIZE];
    weft_stats before, after;
    all_workers(to);
    for (int round = 0; round < 2; round++) {
        weft_future *all;
        weft_agent_stats(agent, &before);
        MUST_OK(weft_rpc_multicast(agent, to, SIZE, "sum",
                                   WEFT_VALUES(weft_of_tensor(t), weft_of_string(round ? text : "short")), NULL, &all));
        MUST_OK(weft_future_wait(all, WEFT_FOREVER));
        weft_agent_stats(agent, &after);
        MUST(after.bytes_packed - before.bytes_packed == ROWS * COLUMNS * 4);
        weft_future **each = weft_future_payload(all);
        for (int rank = 0; rank < SIZE; rank++) {
            int64_t who;
            double sum;
            MUST_OK(weft_values_get_i64(weft_future_values(each[rank]), 0, &who));
            MUST_OK(weft_values_get_f64(weft_future_values(each[rank]), 1, &sum));
            MUST(who == rank && (rank == 0 || sum == 2.0 * ROWS * COLUMNS));
        }
        weft_future_unref(all);
    }
    weft_tensor_unref(t);
    weft_tensor_unref(x);
}

static void one_is_not_there(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *x = tensor_full(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 1);
    weft_target to[4] = {weft_to_rank(1), weft_to_rank(SIZE + 3), weft_to_name("nobody"), weft_to_rank(2)};
    weft_future *all;
    MUST_OK(weft_rpc_multicast(agent, to, 4, "sum", WEFT_VALUES(weft_of_tensor(x), weft_of_string("")), NULL, &all));
    MUST_OK(weft_future_wait(all, WEFT_FOREVER));
    weft_future **each = weft_future_payload(all);
    MUST(!weft_future_error(each[0]) && !weft_future_error(each[3]));
    MUST(weft_error_code(weft_future_error(each[1])) == WEFT_ERR_NOT_FOUND);
    MUST(weft_error_code(weft_future_error(each[2])) == WEFT_ERR_NOT_FOUND);
    weft_future_unref(all);
    MUST_OK(weft_rpc_multicast(agent, NULL, 0, "sum", WEFT_NO_VALUES, NULL, &all));
    MUST_OK(weft_future_wait(all, WEFT_FOREVER));
    weft_future_unref(all);
    weft_tensor_unref(x);
}

static void what_is_wrong_for_all(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *x = tensor_full(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 1);
    weft_target to[2] = {weft_to_rank(1), weft_to_rank(2)};
    weft_future *all = NULL;
    weft_error *error = NULL;
    weft_rpc_options land = {.land = {&x, 1}}, explain = {.error = &error}, nonsense = {.timeout_ms = -7};
    MUST_BE(weft_rpc_multicast(agent, to, 2, "sum", WEFT_NO_VALUES, &land, &all), WEFT_ERR_INVALID);
    MUST_BE(weft_rpc_multicast(agent, to, 2, "sum", WEFT_NO_VALUES, &nonsense, &all), WEFT_ERR_INVALID);
    MUST_BE(weft_rpc_multicast(agent, to, 2, "", WEFT_NO_VALUES, NULL, &all), WEFT_ERR_INVALID);
    MUST_BE(weft_rpc_multicast(agent, to, 2, "sum", WEFT_VALUES(weft_of_tensor(NULL)), &explain, &all),
            WEFT_ERR_INVALID);
    MUST(!all && weft_error_code(error) == WEFT_ERR_INVALID);
    weft_error_unref(error);
    weft_tensor_unref(x);
}

static void cancelled_together(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_target to[SIZE];
    weft_future *all;
    all_workers(to);
    weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
    MUST_OK(weft_rpc_multicast(agent, to, SIZE, "hold", WEFT_NO_VALUES, &options, &all));
    while (atomic_load(&holding) < SIZE)
        MUST_BE(weft_future_wait(all, 1), WEFT_ERR_TIMEOUT);
    MUST_OK(weft_future_cancel(all));
    MUST_OK(weft_future_wait(all, WEFT_FOREVER));
    weft_future **each = weft_future_payload(all);
    for (int rank = 0; rank < SIZE; rank++)
        MUST(weft_error_code(weft_future_error(each[rank])) == WEFT_ERR_CANCELLED &&
             weft_error_ran(weft_future_error(each[rank])) == WEFT_RAN_MAYBE);
    weft_future_unref(all);
    for (int rank = 0; rank < SIZE; rank++)
        weft_call_finish(held[rank], WEFT_OK);
}

static void begin(world *w)
{
    atomic_store(&holding, 0);
}

WORLD_TEST(packed_once, 10, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(one_is_not_there, 10, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(what_is_wrong_for_all, 10, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)
WORLD_TEST(cancelled_together, 10, 1, .size = SIZE, WORLD_FUNCTIONS(functions), .begin = begin)

UNIT_MAIN(test_packed_once, test_one_is_not_there, test_what_is_wrong_for_all, test_cancelled_together)
