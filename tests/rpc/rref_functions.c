/* SPDX-License-Identifier: Apache-2.0 */
/* rref_functions.c - see rref_functions.h. */
#include "rpc/rref_functions.h"

rref_shared shared;

static weft_status run_double(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(2 * weft_call_i64(call, 0))));
    return WEFT_OK;
}

static weft_status run_slow(weft_call *call, void *user)
{
    world_sleep_ms(shared.w, 30);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(77)));
    return WEFT_OK;
}

static weft_status run_fail(weft_call *call, void *user)
{
    weft_call_fail(call, WEFT_ERR_SHAPE, "it would not be made");
    return WEFT_ERR_SHAPE;
}

static weft_status run_hold(weft_call *call, void *user)
{
    weft_call *before = atomic_exchange(&shared.waiting, weft_call_defer(call));
    atomic_store(&shared.waiting_first, before);
    return WEFT_DEFERRED;
}

weft_status read_i64(weft_rref *rref, int64_t timeout_ms, int64_t *out)
{
    weft_values *values;
    weft_status status = weft_rref_to_here(rref, timeout_ms, &values, NULL);
    if (status)
        return status;
    status = weft_values_get_i64(values, 0, out);
    weft_values_unref(values);
    return status;
}

static weft_status run_read(weft_call *call, void *user)
{
    int64_t value;
    weft_status status = read_i64(weft_call_rref(call, 0), 5000, &value);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_i64(value)));
    return status;
}

static weft_status run_keep(weft_call *call, void *user)
{
    shared.kept[weft_agent_rank(weft_call_agent(call))] = weft_rref_ref(weft_call_rref(call, 0));
    return WEFT_OK;
}

static weft_status run_let_go(weft_call *call, void *user)
{
    weft_rref **kept = &shared.kept[weft_agent_rank(weft_call_agent(call))];
    weft_rref_unref(*kept);
    *kept = NULL;
    return WEFT_OK;
}

const weft_function rref_functions[RREF_FUNCTIONS] = {
    {.name = "double", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_double},
    {.name = "slow", .gives = {WEFT_TYPE_I64}, .run = run_slow},
    {.name = "fail", .gives = {WEFT_TYPE_I64}, .run = run_fail},
    {.name = "hold", .gives = {WEFT_TYPE_REST}, .run = run_hold},
    {.name = "read", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = run_read},
    {.name = "keep", .takes = {WEFT_TYPE_RREF}, .run = run_keep},
    {.name = "let go", .run = run_let_go},
};
