/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_eager.c - which tensors travel in a long message: the counter of copied bytes tells. */
#include "rpc/world.h"

enum { LIMIT = 32768, INLINE = 2048, FRAME = 4096 };

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "name it", .takes = {WEFT_TYPE_STRING, WEFT_TYPE_TENSOR}, .run = world_run_nothing},
    {.name = "take both", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR}, .run = world_run_nothing},
};

/* What rank 1 copies for one call. */
static uint64_t copied_by(weft_agent *agent, const char *function, weft_args values, weft_tensor *land)
{
    uint64_t before = world_stats(agent).bytes_copied;
    weft_values *got;
    weft_rpc_options options = {.land = {&land, land ? 1 : 0}};
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), function, values, &options, &got));
    weft_values_unref(got);
    return world_stats(agent).bytes_copied - before;
}

/* The tensor to the callee and back, into a place or not. */
static uint64_t echo(weft_agent *agent, size_t bytes, bool lands)
{
    weft_tensor *x = weft_tensor_empty(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8),
                *place = lands ? weft_tensor_zeros(WEFT_SHAPE((int64_t)bytes), WEFT_DTYPE_UINT8) : NULL;
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)weft_tensor_data(x))[i] = (uint8_t)(i * 7 + bytes);
    uint64_t copied = copied_by(agent, "echo", WEFT_VALUES(weft_of_tensor(x)), place);
    MUST(!lands || memcmp(weft_tensor_data(x), weft_tensor_data(place), bytes) == 0);
    weft_tensor_unref(place);
    weft_tensor_unref(x);
    return copied;
}

static void sizes(weft_agent *agent, void *arg)
{
    static const size_t counts[] = {0, 1, INLINE, INLINE + 1, 5000, LIMIT - 1, LIMIT, LIMIT + 1, 100000};
    if (weft_agent_rank(agent) != 1)
        return;
    while (echo(agent, INLINE + 1, false) != 2 * (INLINE + 1)) /* until both take long messages */
        continue;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        uint64_t expected = counts[i] > INLINE && counts[i] <= LIMIT ? 2 * counts[i] : 0;
        MUST(echo(agent, counts[i], false) == expected);
        MUST(echo(agent, counts[i], true) == expected);
    }
    /* Messages about as long as an ordinary frame, in frames of their own or not. */
    for (size_t bytes = FRAME - 250; bytes < FRAME; bytes++)
        MUST(echo(agent, bytes, bytes % 2) == 2 * bytes);
    /* All tensors of a call together; and metadata that a long message's MAC does not cover. */
    weft_tensor *half = weft_tensor_zeros(WEFT_SHAPE(LIMIT / 2), WEFT_DTYPE_UINT8),
                *rest = weft_tensor_zeros(WEFT_SHAPE(LIMIT / 2 + 1), WEFT_DTYPE_UINT8);
    weft_args both = WEFT_VALUES(weft_of_tensor(half), weft_of_tensor(half)),
              more = WEFT_VALUES(weft_of_tensor(half), weft_of_tensor(rest));
    MUST(copied_by(agent, "take both", both, NULL) == LIMIT);
    MUST(copied_by(agent, "take both", more, NULL) == 0);
    char name[1001];
    memset(name, 'x', 1000);
    name[1000] = '\0';
    MUST(copied_by(agent, "name it", WEFT_VALUES(weft_of_string(name), weft_of_tensor(half)), NULL) == 0);
    name[100] = '\0';
    MUST(copied_by(agent, "name it", WEFT_VALUES(weft_of_string(name), weft_of_tensor(half)), NULL) == LIMIT / 2);
    weft_tensor_unref(half);
    weft_tensor_unref(rest);
}

WORLD_TEST(sizes, 5, 1, .size = 2, WORLD_FUNCTIONS(functions))

UNIT_MAIN(test_sizes)
