/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_limits.c - the limits on what a call may bring: each at the limit and one over it, as packed and as it
 * comes from the wire. */
#include "rpc/inside.h"
#include "rpc/world.h"
#include "tensors.h"

/* ---- From the wire -------------------------------------------------------------------------------------------- */

static weft_status decode(wfi_writer *values)
{
    weft_status status = inside_decode(values, 0, 0);
    wfi_writer_fini(values);
    return status;
}

enum { IN_META = 0 }; /* where a tensor's bytes are: right here */

static wfi_writer begin(uint32_t count)
{
    wfi_writer w;
    wfi_writer_init_growing(&w);
    wfi_write_u32(&w, count);
    return w;
}

/* Lists in a list: depth 0 is the list of arguments itself. */
static weft_status wire_depth(int depth)
{
    wfi_writer w = begin(depth > 0);
    for (int i = 1; i <= depth; i++) {
        wfi_write_u8(&w, WEFT_TYPE_LIST);
        wfi_write_u32(&w, i < depth);
    }
    return decode(&w);
}

static weft_status wire_values(uint32_t count)
{
    wfi_writer w = begin(count);
    for (uint32_t i = 0; i < count; i++)
        wfi_write_u8(&w, WEFT_TYPE_NULL);
    return decode(&w);
}

static weft_status wire_tensors(uint32_t count)
{
    wfi_writer w = begin(2);
    for (uint32_t list = 0; list < 2; list++) { /* all lists together */
        uint32_t part = list ? count - count / 2 : count / 2;
        wfi_write_u8(&w, WEFT_TYPE_TENSORS);
        wfi_write_u32(&w, part);
        for (uint32_t i = 0; i < part; i++) {
            wfi_write_bytes(&w, (uint8_t[]){WEFT_DTYPE_UINT8, 1, 0, 0, 0, 0, 0, 0, 0, 0}, 10); /* one dimension, of 0 */
            wfi_write_u8(&w, IN_META);
        }
    }
    return decode(&w);
}

static weft_status wire_dims(int dims, int64_t each)
{
    wfi_writer w = begin(1);
    wfi_write_u8(&w, WEFT_TYPE_TENSOR);
    wfi_write_u8(&w, WEFT_DTYPE_UINT8);
    wfi_write_u8(&w, (uint8_t)dims);
    for (int i = 0; i < dims; i++)
        wfi_write_i64(&w, each);
    wfi_write_u8(&w, IN_META);
    if (each == 1)
        wfi_write_u8(&w, 7);
    return decode(&w);
}

static void test_from_the_wire(void **state)
{
    MUST_OK(wire_depth(WEFT_MAX_LIST_DEPTH));
    MUST_BE(wire_depth(WEFT_MAX_LIST_DEPTH + 1), WEFT_ERR_PROTOCOL);
    MUST_BE(wire_depth(100000), WEFT_ERR_PROTOCOL);
    MUST_OK(wire_values(WEFT_MAX_VALUES));
    MUST_BE(wire_values(WEFT_MAX_VALUES + 1), WEFT_ERR_PROTOCOL);
    MUST_OK(wire_tensors(WEFT_MAX_CALL_TENSORS));
    MUST_BE(wire_tensors(WEFT_MAX_CALL_TENSORS + 1), WEFT_ERR_TOO_LARGE);
    MUST_OK(wire_dims(WEFT_MAX_DIMS, 1));
    MUST_BE(wire_dims(WEFT_MAX_DIMS + 1, 1), WEFT_ERR_PROTOCOL);
    MUST_BE(wire_dims(4, INT64_C(1) << 20), WEFT_ERR_PROTOCOL); /* the product overflows */
    MUST_BE(wire_dims(1, -1), WEFT_ERR_PROTOCOL);
}

/* ---- As called ------------------------------------------------------------------------------------------------ */

static char longest[INSIDE_FUNCTION_NAME_MAX + 2]; /* and one byte over */

static weft_status call_with(weft_agent *agent, int rank, const char *function, weft_args args)
{
    return weft_rpc_sync(agent, weft_to_rank(rank), function, args, NULL, NULL);
}

static weft_status call_deep(weft_agent *agent, int rank, int depth)
{
    weft_value lists[64];
    lists[0] = weft_of_list(WEFT_NO_VALUES);
    for (int i = 1; i < depth; i++)
        lists[i] = weft_of_list((weft_args){&lists[i - 1], 1});
    return call_with(agent, rank, "nothing", (weft_args){&lists[depth - 1], 1});
}

static weft_status call_wide(weft_agent *agent, int rank, size_t count)
{
    weft_value *values = calloc(count, sizeof(*values));
    for (size_t i = 0; i < count; i++)
        values[i] = weft_of_null();
    weft_status status = call_with(agent, rank, "nothing", (weft_args){values, count});
    free(values);
    return status;
}

static weft_status call_tensors(weft_agent *agent, int rank, size_t count)
{
    weft_tensor *one = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_UINT8), **all = calloc(count, sizeof(*all));
    for (size_t i = 0; i < count; i++)
        all[i] = one;
    weft_status status = call_with(agent, rank, "nothing", WEFT_VALUES(weft_of_tensors((weft_tensors){all, count})));
    weft_tensor_unref(one);
    free(all);
    return status;
}

/* Bytes count as metadata. */
static weft_status call_bytes(weft_agent *agent, int rank, size_t size)
{
    char *bytes = calloc(1, size);
    weft_status status = call_with(agent, rank, "nothing", WEFT_VALUES(weft_of_bytes(bytes, size)));
    free(bytes);
    return status;
}

static void call_at_the_limits(weft_agent *agent, void *arg)
{
    char name[sizeof(longest)] = {0};
    if (weft_agent_rank(agent) == 0)
        return;
    memset(name, 'n', INSIDE_FUNCTION_NAME_MAX);
    for (int rank = 0; rank < 2; rank++) {
        MUST_OK(call_with(agent, rank, name, WEFT_NO_VALUES));
        MUST_BE(call_with(agent, rank, longest, WEFT_NO_VALUES), WEFT_ERR_INVALID);
        MUST_BE(call_with(agent, rank, "", WEFT_NO_VALUES), WEFT_ERR_INVALID);
        MUST_OK(call_deep(agent, rank, WEFT_MAX_LIST_DEPTH));
        MUST_BE(call_deep(agent, rank, WEFT_MAX_LIST_DEPTH + 1), WEFT_ERR_TOO_LARGE);
        MUST_OK(call_wide(agent, rank, WEFT_MAX_VALUES));
        MUST_BE(call_wide(agent, rank, WEFT_MAX_VALUES + 1), WEFT_ERR_TOO_LARGE);
    }
    /* To ourselves there is no wire, and so no such limit. */
    MUST_OK(call_tensors(agent, 0, WEFT_MAX_CALL_TENSORS));
    MUST_BE(call_tensors(agent, 0, WEFT_MAX_CALL_TENSORS + 1), WEFT_ERR_TOO_LARGE);
    MUST_OK(call_bytes(agent, 0, WEFT_MAX_CALL_BYTES - 64));
    MUST_BE(call_bytes(agent, 0, WEFT_MAX_CALL_BYTES), WEFT_ERR_TOO_LARGE); /* with what stands around it */
    MUST_BE(weft_agent_register(agent, &(weft_function){.name = longest, .run = world_run_nothing}), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_register(agent, &(weft_function){.name = "nothing", .run = world_run_nothing}), WEFT_ERR_EXISTS);
    MUST_OK(call_with(agent, 0, "nothing", WEFT_NO_VALUES)); /* and all goes on */
}

static void test_as_called(void **state)
{
    char name[sizeof(longest)] = {0};
    memset(name, 'n', INSIDE_FUNCTION_NAME_MAX);
    memset(longest, 'n', sizeof(longest) - 1);
    const weft_function functions[] = {{.name = "nothing", .takes = {WEFT_TYPE_REST}, .run = world_run_nothing},
                                       {.name = name, .run = world_run_nothing}};
    world_play(&(world){.size = 2, WORLD_FUNCTIONS(functions), .program = call_at_the_limits}, 1, 1);
}

UNIT_MAIN(test_from_the_wire, test_as_called)
