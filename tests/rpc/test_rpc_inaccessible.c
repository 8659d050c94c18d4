/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_inaccessible.c - memory of tensors that cannot be read or written: protected pages, a file that was
 * truncated. Calls and group operations fail at once, long before their time limits, with WEFT_ERR_INVALID and name the
 * memory, on host and on tcp, and later calls work.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 4 << 20, COUNT = BYTES / 4, BOUND_MS = 1000, LIMIT_MS = 300000 };

static const char *fabric;

/* ---- At once ----------------------------------------------------------------------------------------------------- */

enum { MOST_MS = LIMIT_MS / 5, MOST_WARNINGS = 3 }; /* of one failure; a lane that is made again and again has more */

static atomic_int warnings; /* that were logged */
static struct beginning {
    uint64_t ns;
    int warnings;
} begun[2]; /* of each rank: when it called what fails */

static void count_warnings(weft_log_level level, const char *line, void *arg)
{
    atomic_fetch_add(&warnings, level <= WEFT_LOG_WARN);
}

static void begin(weft_agent *agent)
{
    begun[weft_agent_rank(agent)] = (struct beginning){weft_agent_now_ns(agent), atomic_load(&warnings)};
}

static void must_end_at_once(weft_agent *agent)
{
    const struct beginning *since = &begun[weft_agent_rank(agent)];
    MUST(weft_agent_now_ns(agent) - since->ns < MOST_MS * UINT64_C(1000000));
    MUST(atomic_load(&warnings) - since->warnings <= MOST_WARNINGS);
}

/* host reports memory that cannot be read; for tcp weft checks it before it sends. */
static const char *said(const char *by_host, const char *by_tcp)
{
    return strcmp(fabric, "tcp") ? by_host : by_tcp;
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static void unmap(void *memory)
{
    MUST(munmap(memory, BYTES) == 0);
}

static weft_tensor *tensor_of(void *memory)
{
    weft_tensor *tensor = tensor_wrap(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32, memory, NULL, unmap, memory);
    MUST(tensor);
    return tensor;
}

/* Its second half has this protection. */
static weft_tensor *protected(int protection)
{
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(memory != MAP_FAILED);
    memset(memory, 0, BYTES);
    MUST(mprotect(memory + BYTES / 2, BYTES / 2, protection) == 0);
    return tensor_of(memory);
}

static weft_tensor *truncated(void)
{
    int fd = memfd_create("truncated", MFD_CLOEXEC);
    MUST(fd >= 0 && ftruncate(fd, BYTES / 2) == 0);
    void *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(memory != MAP_FAILED && close(fd) == 0);
    return tensor_of(memory);
}

static weft_tensor *bad(size_t kind)
{
    return kind ? truncated() : protected(PROT_NONE);
}

static weft_tensor *good(void)
{
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32);
    MUST(tensor);
    return tensor;
}

/* ---- Functions --------------------------------------------------------------------------------------------------- */

static weft_tensor *vanishing; /* of the caller, in this process too */

/* Called before the argument is pulled. */
static weft_tensor *land_and_spoil(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    char *memory = weft_tensor_data(vanishing);
    MUST(mprotect(memory + BYTES / 2, BYTES / 2, PROT_NONE) == 0);
    return NULL;
}

static weft_tensor *land_on_constants(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    return protected(PROT_READ);
}

static weft_status run_give(weft_call *call, void *user)
{
    weft_tensor *fine = good(), *tensor = bad((size_t)weft_call_i64(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(fine), weft_of_tensor(tensor)));
    weft_tensor_unref(fine);
    weft_tensor_unref(tensor);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "take", .takes = {WEFT_TYPE_REST}, .run = world_run_nothing},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "give", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR, WEFT_TYPE_TENSOR}, .run = run_give},
    {.name = "spoil", .takes = {WEFT_TYPE_TENSOR}, .land = land_and_spoil, .run = world_run_nothing},
    {.name = "land", .takes = {WEFT_TYPE_TENSOR}, .land = land_on_constants, .run = world_run_nothing}};

static void must_fail(weft_agent *agent, const char *function, weft_args arguments, weft_tensors land, const char *text)
{
    weft_error *error = NULL;
    weft_values *results = NULL;
    const weft_rpc_options options = {.error = &error, .timeout_ms = LIMIT_MS, .land = land};
    begin(agent);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), function, arguments, &options, &results), WEFT_ERR_INVALID);
    must_end_at_once(agent);
    MUST(error && strstr(weft_error_message(error), text));
    weft_error_unref(error);
    weft_tensor *x = good(); /* the lanes work */
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &results));
    weft_values_unref(results);
    weft_tensor_unref(x);
}

/* ---- Programs ---------------------------------------------------------------------------------------------------- */

static void arguments_and_results(weft_agent *agent, void *arg)
{
    weft_tensor *fine = good(), *constants = protected(PROT_READ);
    for (size_t kind = 0; weft_agent_rank(agent) == 1 && kind < 2; kind++) {
        weft_tensor *tensor = bad(kind);
        must_fail(agent, "take",
                  WEFT_VALUES(weft_of_tensor(fine), weft_of_tensor(fine), weft_of_tensor(tensor), weft_of_tensor(fine)),
                  (weft_tensors){0},
                  said("value 2 could not be pulled: its memory on rank 1 cannot be read",
                       "argument 2: the memory of tensor 0 cannot be read"));
        must_fail(agent, "give", WEFT_VALUES(weft_of_i64((int64_t)kind)), (weft_tensors){0},
                  said("value 1 could not be pulled: its memory on rank 0 cannot be read",
                       "result 1: the memory of tensor 0 cannot be read"));
        weft_tensor *places[] = {good(), good()};
        must_fail(agent, "give", WEFT_VALUES(weft_of_i64((int64_t)kind)), (weft_tensors){places, 2},
                  said("value 1 could not be pulled: its memory on rank 0 cannot be read",
                       "result 1: the memory of tensor 0 cannot be read"));
        weft_tensor_unref(places[0]);
        weft_tensor_unref(places[1]);
        must_fail(agent, "echo", WEFT_VALUES(weft_of_tensor(fine)), (weft_tensors){&tensor, 1},
                  said("its memory on rank 1 cannot be written", "land: the memory of tensor 0 cannot be written"));
        must_fail(agent, "echo", WEFT_VALUES(weft_of_tensor(fine)), (weft_tensors){&constants, 1},
                  said("its memory on rank 1 cannot be written", "land: the memory of tensor 0 cannot be written"));
        must_fail(agent, "land", WEFT_VALUES(weft_of_tensor(fine)), (weft_tensors){0},
                  said("value 0 could not be pulled: its memory on rank 0 cannot be written",
                       "the memory of the landing place of tensor 0 cannot be written"));
        must_fail(agent, "take", WEFT_VALUES(weft_of_tensor(tensor)), (weft_tensors){0},
                  said("value 0 could not be pulled: its memory on rank 1 cannot be read",
                       "argument 0: the memory of tensor 0 cannot be read"));
        weft_tensor_unref(tensor);
    }
    weft_tensor_unref(fine);
    weft_tensor_unref(constants);
}

static void memory_vanishes(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 1)
        return;
    vanishing = protected(PROT_READ);
    must_fail(agent, "spoil", WEFT_VALUES(weft_of_tensor(vanishing)), (weft_tensors){0},
              "value 0 could not be pulled: its memory on rank 1 cannot be read");
    weft_tensor_unref(vanishing);
}

static void check_group(weft_agent *agent, weft_group *group, weft_future *future, weft_status status)
{
    if (!status)
        status = weft_future_wait(future, WEFT_FOREVER);
    MUST_BE(status, WEFT_ERR_INVALID);
    must_end_at_once(agent);
    MUST(strstr(weft_error_message(weft_group_error(group)), "the memory of the tensor of rank 0 cannot be"));
    weft_future_unref(future);
    weft_group_close(group);
}

static weft_group *open_group(weft_agent *agent, const char *name, size_t kind)
{
    char text[40];
    weft_group *group;
    snprintf(text, sizeof(text), "%s-%zu", name, kind);
    MUST_OK(weft_group_open(agent, text, NULL, 0, 0, &group, NULL));
    begin(agent);
    return group;
}

/* Rank 0's tensor is bad. */
static void group_operations(weft_agent *agent, void *arg)
{
    const int me = weft_agent_rank(agent);
    weft_tensor *half = tensor_zeros(WEFT_SHAPE(COUNT / 2), WEFT_DTYPE_FLOAT32);
    weft_tensor *twice = tensor_zeros(WEFT_SHAPE(COUNT * 2), WEFT_DTYPE_FLOAT32);
    for (size_t kind = 0; kind < 3; kind++) {
        weft_tensor *x = me ? good() : kind < 2 ? bad(kind) : protected(PROT_READ);
        weft_future *future = NULL;
        weft_group *group = open_group(agent, "allreduce", kind);
        weft_status status = weft_group_allreduce_async(group, x, WEFT_OP_SUM, LIMIT_MS, &future);
        check_group(agent, group, future, status);
        future = NULL;
        group = open_group(agent, "broadcast", kind);
        status = weft_group_broadcast_async(group, x, kind < 2 ? 0 : 1, LIMIT_MS, &future);
        check_group(agent, group, future, status);
        if (kind == 2) { /* memory that is only read */
            MUST_OK(weft_group_open(agent, "constants", NULL, 0, 0, &group, NULL));
            MUST_OK(weft_group_broadcast(group, x, 0, WEFT_FOREVER));
            weft_group_close(group);
        } else {
            future = NULL;
            group = open_group(agent, "allgather", kind);
            status = weft_group_allgather_async(group, x, twice, LIMIT_MS, &future);
            check_group(agent, group, future, status);
            future = NULL;
            group = open_group(agent, "reduce_scatter", kind);
            status = weft_group_reduce_scatter_async(group, x, half, WEFT_OP_SUM, LIMIT_MS, &future);
            check_group(agent, group, future, status);
        }
        weft_tensor_unref(x);
    }
    weft_tensor_unref(half);
    weft_tensor_unref(twice);
}

/* ---- Tests ------------------------------------------------------------------------------------------------------- */

static void choose(weft_agent_options *options, void *arg)
{
    options->fabric = fabric;
    options->death_timeout_ms = BOUND_MS;
}

static void play(void (*program)(weft_agent *agent, void *arg))
{
    static const char *const fabrics[] = {"host", "tcp"};
    for (size_t i = 0; i < 2; i++) {
        world w = {.fabric = WORLD_TCP, .size = 2, WORLD_FUNCTIONS(functions), .program = program, .adjust = choose};
        fabric = fabrics[i];
        weft_logging_set_sink(count_warnings, NULL);
        world_run(&w);
        weft_logging_set_sink(NULL, NULL);
    }
}

static void test_arguments_and_results(void **state)
{
    play(arguments_and_results);
}

static void test_memory_vanishes(void **state)
{
    play(memory_vanishes);
}

static void test_group_operations(void **state)
{
    play(group_operations);
}

UNIT_MAIN(test_arguments_and_results, test_memory_vanishes, test_group_operations)
