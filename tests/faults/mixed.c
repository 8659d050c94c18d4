/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mixed.c - a worker that calls each other worker of its job with tensors of every size, and looks at every byte of
 * what comes and goes: in messages, pulled, landing, and many at once. tools/long.d/trixie runs workers that were
 * built against different versions of libfabric in one job; without RANK in the environment it spawns two more of
 * itself.
 */
#include "oracle/formula.h"
#include "tensors.h"

#include <rdma/fabric.h>
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

#define MANY 500
#define ROUNDS 2 /* answers in tensors of their own, then in ours */

static const int64_t sizes[] = {0, 1, 160, 1000, 16384, 100000, 1 << 20, 5000000}; /* floats: up to 20 MB */
#define SIZES (sizeof(sizes) / sizeof(*sizes))

static bool holds(const weft_tensor *tensor, int64_t count, uint64_t key)
{
    if (!tensor || weft_tensor_numel(tensor) != count)
        return false;
    const float *data = weft_tensor_data(tensor);
    for (int64_t i = 0; i < count; i++) {
        if (data[i] != (float)formula_value(key, (uint64_t)i))
            return false;
    }
    return true;
}

/* Takes the tensor of a key, gives that of the next. */
static weft_status next(weft_call *call, void *user)
{
    uint64_t key = (uint64_t)weft_call_i64(call, 1);
    int64_t count = weft_tensor_numel(weft_call_tensor(call, 0));
    if (!holds(weft_call_tensor(call, 0), count, key))
        return WEFT_ERR_INVALID; /* the caller prints it, with the call */
    weft_tensor *answer = formula_tensor(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32, key + 1);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(answer)));
    weft_tensor_unref(answer);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "next", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = next},
};

static weft_status begin(weft_agent *agent, int rank, int64_t count, uint64_t key, weft_tensor *landing,
                         weft_future **out)
{
    weft_rpc_options options = {.land = {&landing, landing != NULL}};
    weft_tensor *mine = formula_tensor(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32, key);
    weft_status status = weft_rpc_async(agent, weft_to_rank(rank), "next",
                                        WEFT_VALUES(weft_of_tensor(mine), weft_of_i64((int64_t)key)), &options, out);
    weft_tensor_unref(mine);
    return status;
}

static bool end(weft_future *reply, int64_t count, uint64_t key)
{
    weft_status status = weft_future_wait(reply, WEFT_FOREVER);
    bool ok = !status && holds(weft_future_tensor(reply, 0), count, key + 1);
    if (status)
        weft_error_print(weft_future_error(reply), stderr);
    else if (!ok)
        fprintf(stderr, "mixed: the answer to key %llu, %lld floats, is wrong\n", (unsigned long long)key,
                (long long)count);
    weft_future_unref(reply);
    return ok;
}

/* One call, whose answer comes in a tensor of its own or lands in ours. */
static bool call_one(weft_agent *agent, int rank, int64_t count, uint64_t key, bool lands)
{
    weft_future *reply;
    weft_tensor *landing = lands ? tensor_zeros(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32) : NULL;
    weft_status status = begin(agent, rank, count, key, landing, &reply);
    bool ok = !status && end(reply, count, key) && (!lands || holds(landing, count, key + 1));
    if (status)
        weft_report(status);
    weft_tensor_unref(landing);
    return ok;
}

static bool call_many(weft_agent *agent, int rank)
{
    static weft_future *replies[MANY];
    int begun = 0;
    bool ok = true;
    while (begun < MANY && !begin(agent, rank, begun % 700, (uint64_t)begun, NULL, &replies[begun]))
        begun++;
    for (int i = 0; i < begun; i++)
        ok = end(replies[i], i % 700, (uint64_t)i) && ok;
    return ok && begun == MANY;
}

static bool call_all(weft_agent *agent)
{
    bool ok = true;
    int mine = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    for (int round = 0; round < ROUNDS; round++) {
        for (int away = 1; ok && away < size; away++) {
            int rank = (mine + away) % size;
            for (size_t i = 0; ok && i < SIZES; i++)
                ok = call_one(agent, rank, sizes[i], (uint64_t)(round * 1000 + (int)i), round % 2);
            ok = ok && call_many(agent, rank);
        }
    }
    return ok;
}

int main(void)
{
    weft_job *job = NULL;
    weft_agent *agent;
    weft_status status = getenv("RANK") ? WEFT_OK : weft_job_open(&(weft_job_options){.count = 2}, &job, NULL);
    if (!status)
        status = weft_agent_open(&(weft_agent_options){.functions = functions, .function_count = 1, .job = job}, &agent,
                                 NULL);
    if (status)
        return weft_report(status);
    int rank = weft_agent_rank(agent);
    bool ok = call_all(agent);
    weft_status closed = weft_agent_close(agent, WEFT_FOREVER); /* waits until nobody has calls outstanding */
    weft_status ended = weft_job_close(job, WEFT_FOREVER, NULL);
    printf("rank %d, libfabric %u.%u: %s\n", rank, FI_MAJOR(fi_version()), FI_MINOR(fi_version()),
           ok ? "all is right" : "FAILED");
    return weft_report(!ok ? WEFT_ERR_INVALID : closed ? closed : ended);
}
