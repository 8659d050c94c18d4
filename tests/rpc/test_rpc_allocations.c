/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_allocations.c - how often a call allocates memory, over host: both workers are in this process, and its
 * allocations are counted. docs/tour.md names them. And metadata that just fit the room of a request or a served
 * call, or just do not.
 */
#include "rpc/world.h"
#include "tensors.h"

#define CALLS 200

static atomic_int allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);

void *__wrap_malloc(size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    atomic_fetch_add(&allocations, 1);
    return __real_aligned_alloc(alignment, size);
}

static weft_status run_back(weft_call *call, void *user)
{
    weft_value text = weft_of_string(weft_call_string(call, 0));
    if (weft_call_count(call) == 1)
        weft_call_give(call, WEFT_VALUES(text));
    else
        weft_call_give(call, WEFT_VALUES(text, weft_of_tensor(weft_call_tensor(call, 1))));
    return WEFT_OK;
}

#define LONGEST                                                                                                        \
    "a function whose name is as long as names may be, which is 127 bytes, so that its header is as long as "          \
    "possible, "                                                                                                       \
    "too: ........."

static const weft_function functions[] = {
    {.name = "back", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_back},
    {.name = LONGEST, .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_back},
    {.name = "nothing", .run = world_run_nothing, .flags = WEFT_FUNCTION_INLINE},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "inline echo",
     .takes = {WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = world_run_echo,
     .flags = WEFT_FUNCTION_INLINE},
};

/* Allocations of both workers for one call, on average. */
static double allocated_by(weft_agent *agent, const char *function, weft_args values, weft_tensor *land)
{
    int before = 0;
    for (int i = 0; i < 2 * CALLS; i++) {
        weft_values *got;
        if (i == CALLS)
            before = atomic_load(&allocations);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), function, values,
                              &(weft_rpc_options){.land = {&land, land ? 1 : 0}}, &got));
        weft_values_unref(got);
    }
    return (double)(atomic_load(&allocations) - before) / CALLS;
}

static void small_calls(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 1)
        return;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(16), WEFT_DTYPE_FLOAT32),
                *place = tensor_zeros(WEFT_SHAPE(16), WEFT_DTYPE_FLOAT32);
    weft_args values = WEFT_VALUES(weft_of_tensor(x));
    double nothing = allocated_by(agent, "nothing", WEFT_NO_VALUES, NULL),
           landed = allocated_by(agent, "echo", values, place), made = allocated_by(agent, "echo", values, NULL),
           at_once = allocated_by(agent, "inline echo", values, place);
    printf("         %.2f for nothing, %.2f for an echo into a place, %.2f into a new tensor, %.2f inline\n", nothing,
           landed, made, at_once);
    /* Three of them are the caller's. The limits leave room for tables that grow. */
    MUST(nothing < 7.5);
    MUST(landed < 10.5);
    MUST(made < 11.5);
    MUST(at_once < 10.5);
    weft_tensor_unref(place);
    weft_tensor_unref(x);
}

/* So headers name spans. */
static void with_a_trace(weft_agent_options *options, void *arg)
{
    options->trace_file = "/dev/null";
}

/* Strings of every length, with and without a landing place, come back as they were. */
static void every_length(weft_agent *agent, void *arg)
{
    enum { MOST = 700 };
    char text[MOST + 1];
    weft_tensor *x = tensor_arange(3, WEFT_DTYPE_INT32), *place = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_INT32);
    _Static_assert(sizeof(LONGEST) == 128, "the longest name");
    for (int size = 0; size <= MOST && weft_agent_rank(agent) == 1; size++) {
        for (int i = 0; i < size; i++)
            text[i] = (char)('a' + (i * 7 + size) % 26);
        text[size] = '\0';
        const char *function = size % 3 ? "back" : LONGEST, *back = NULL;
        weft_values *got;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_string(text), weft_of_tensor(x)),
                              &(weft_rpc_options){.land = {&place, size % 2 ? 1 : 0}}, &got));
        MUST_OK(weft_values_get_string(got, 0, &back));
        MUST(strcmp(back, text) == 0);
        weft_values_unref(got);
        weft_rref *made = NULL;
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_string(text)), NULL, &made));
        MUST_OK(weft_rref_to_here(made, 0, &got, NULL));
        MUST_OK(weft_values_get_string(got, 0, &back));
        MUST(strcmp(back, text) == 0);
        weft_values_unref(got);
        weft_rref_unref(made);
    }
    weft_tensor_unref(place);
    weft_tensor_unref(x);
}

WORLD_TEST(every_length, 2, 1, .size = 2, WORLD_FUNCTIONS(functions), .adjust = with_a_trace)
WORLD_TEST(small_calls, 0, 1, .size = 2, WORLD_FUNCTIONS(functions))

UNIT_MAIN(test_every_length, test_small_calls)
