/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kills_pulls.c - large tensors go to and fro, and most calls are cancelled in the middle. See kills.h.
 *
 * Every payload has a checksum, which travels beside it, and landing memory has canaries on either side. What a call
 * has left in its landing memory when it ended must be there still when the next one of that thread begins.
 */
#include "faults/kills.h"
#include "prng.h"
#include "tensors.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ELEMENTS ((int64_t)4 << 20) /* 16 MiB */
#define GUARD 1024                  /* elements of canary, on either side */
#define CANARY 0xA5
#define THREADS 3
#define CANCEL_US_MOST 8000

typedef struct puller {
    kill_pulls *pulls;
    pthread_t thread;
    uint64_t chance;
    weft_tensor *landing;
    float *memory;            /* GUARD, landing, GUARD */
    weft_rref *theirs[SEATS]; /* what the others have for us to read */
    int64_t sums[SEATS];
    int64_t left; /* checksum of the landing memory when the last call had ended */
} puller;

struct kill_pulls {
    weft_agent *agent;
    puller pullers[THREADS];
    atomic_int right, cancelled, dead;
    atomic_bool quit;
};

static int64_t checksum(const float *data)
{
    uint64_t sum = UINT64_C(14695981039346656037), word;
    for (int64_t i = 0; i < ELEMENTS; i += 2) {
        memcpy(&word, data + i, sizeof(word));
        sum = (sum ^ word) * UINT64_C(1099511628211);
    }
    return (int64_t)(sum >> 1);
}

static weft_tensor *pattern(int64_t seed)
{
    weft_tensor *tensor = tensor_empty(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32);
    MUST(tensor);
    float *data = weft_tensor_data(tensor);
    for (int64_t i = 0; i < ELEMENTS; i++)
        data[i] = (float)(((uint32_t)i * UINT32_C(2654435761) + (uint32_t)seed) >> 9);
    return tensor;
}

/* ---- What every worker serves ------------------------------------------------------------------------------------ */

weft_status kill_run_pattern(weft_call *call, void *user)
{
    weft_tensor *tensor = pattern(weft_call_i64(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(tensor), weft_of_i64(checksum(weft_tensor_data(tensor)))));
    weft_tensor_unref(tensor);
    return WEFT_OK;
}

weft_status kill_run_keep_pattern(weft_call *call, void *user)
{
    weft_tensor *tensor = pattern(weft_call_i64(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(tensor)));
    weft_tensor_unref(tensor);
    return WEFT_OK;
}

weft_status kill_run_verify(weft_call *call, void *user)
{
    MUST(checksum(weft_tensor_data(weft_call_tensor(call, 0))) == weft_call_i64(call, 1));
    return WEFT_OK;
}

/* ---- Rank 0 ------------------------------------------------------------------------------------------------------ */

static uint64_t chance_below(puller *p, uint64_t below)
{
    return prng_below(&p->chance, below);
}

static void guards_must_be_whole(const puller *p)
{
    const unsigned char *before = (const unsigned char *)p->memory;
    const unsigned char *behind = (const unsigned char *)(p->memory + GUARD + ELEMENTS);
    for (size_t i = 0; i < GUARD * sizeof(float); i++)
        MUST(before[i] == CANARY && behind[i] == CANARY);
}

/* Waits for its end; cancels it before in so many of a hundred cases. */
static weft_status end_of(puller *p, weft_future *future, uint64_t percent)
{
    if (chance_below(p, 100) < percent) {
        usleep((useconds_t)chance_below(p, CANCEL_US_MOST));
        (void)!weft_future_cancel(future); /* it may be over */
    }
    weft_status status = weft_future_wait(future, WEFT_FOREVER);
    if (status == WEFT_OK)
        atomic_fetch_add(&p->pulls->right, 1);
    else if (status == WEFT_ERR_CANCELLED)
        atomic_fetch_add(&p->pulls->cancelled, 1);
    else {
        weft_error_print(weft_future_error(future), stderr);
        MUST_BE(status, WEFT_ERR_PEER_DEAD);
        atomic_fetch_add(&p->pulls->dead, 1);
    }
    return status;
}

/* The other worker reads. */
static void verify_there(puller *p, int rank)
{
    weft_tensor *tensor = pattern((int64_t)chance_below(p, 1 << 20));
    const weft_rpc_options options = {.timeout_ms = WEFT_FOREVER};
    weft_args arguments = WEFT_VALUES(weft_of_tensor(tensor), weft_of_i64(checksum(weft_tensor_data(tensor))));
    weft_future *future;
    MUST_OK(weft_rpc_async(p->pulls->agent, weft_to_rank(rank), "verify", arguments, &options, &future));
    (void)!end_of(p, future, 50);
    weft_future_unref(future);
    weft_tensor_unref(tensor);
}

/* The other worker writes. */
static void land(puller *p, int rank)
{
    const weft_rpc_options options = {.timeout_ms = WEFT_FOREVER, .land = {&p->landing, 1}};
    weft_args arguments = WEFT_VALUES(weft_of_i64((int64_t)chance_below(p, 1 << 20)));
    weft_future *future;
    int64_t sum = 0;
    MUST(checksum(p->memory + GUARD) == p->left); /* nothing was written after the last call's end */
    MUST_OK(weft_rpc_async(p->pulls->agent, weft_to_rank(rank), "pattern", arguments, &options, &future));
    weft_status status = end_of(p, future, 50);
    p->left = checksum(p->memory + GUARD);
    guards_must_be_whole(p);
    if (status == WEFT_OK)
        MUST(weft_values_get_i64(weft_future_values(future), 1, &sum) == WEFT_OK && sum == p->left);
    weft_future_unref(future);
}

/* We read, from what lies there ready: that is what most of the time goes to. */
static void fetch(puller *p, int rank)
{
    weft_future *future;
    if (!p->theirs[rank]) {
        int64_t seed = (int64_t)chance_below(p, 1 << 20);
        weft_tensor *same = pattern(seed);
        p->sums[rank] = checksum(weft_tensor_data(same));
        weft_tensor_unref(same);
        MUST_OK(weft_rpc_remote(p->pulls->agent, weft_to_rank(rank), "keep_pattern", WEFT_VALUES(weft_of_i64(seed)),
                                NULL, &p->theirs[rank]));
    }
    MUST_OK(weft_rref_to_here_async(p->theirs[rank], WEFT_FOREVER, &future));
    if (end_of(p, future, 90) == WEFT_OK)
        MUST(checksum(weft_tensor_data(weft_future_tensor(future, 0))) == p->sums[rank]);
    weft_future_unref(future);
}

static void *pull(void *arg)
{
    puller *p = arg;
    while (!atomic_load(&p->pulls->quit)) {
        int rank = 1 + (int)chance_below(p, SEATS - 1);
        uint64_t what = chance_below(p, 20);
        if (what == 0)
            verify_there(p, rank);
        else if (what == 1)
            land(p, rank);
        else
            fetch(p, rank);
    }
    return NULL;
}

kill_pulls *kill_pulls_begin(weft_agent *agent, uint64_t seed)
{
    kill_pulls *pulls = calloc(1, sizeof(*pulls));
    MUST(pulls);
    pulls->agent = agent;
    for (int i = 0; i < THREADS; i++) {
        puller *p = &pulls->pullers[i];
        p->pulls = pulls;
        p->chance = seed + (uint64_t)i;
        p->memory = malloc(((size_t)ELEMENTS + 2 * GUARD) * sizeof(float));
        MUST(p->memory);
        memset(p->memory, CANARY, ((size_t)ELEMENTS + 2 * GUARD) * sizeof(float));
        p->landing = tensor_wrap(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32, p->memory + GUARD, NULL, NULL, NULL);
        MUST(p->landing);
        p->left = checksum(p->memory + GUARD);
        MUST(pthread_create(&p->thread, NULL, pull, p) == 0);
    }
    return pulls;
}

int kill_pulls_ended(kill_pulls *pulls)
{
    return atomic_load(&pulls->right) + atomic_load(&pulls->cancelled) + atomic_load(&pulls->dead);
}

void kill_pulls_end(kill_pulls *pulls)
{
    atomic_store(&pulls->quit, true);
    for (int i = 0; i < THREADS; i++) {
        puller *p = &pulls->pullers[i];
        MUST(pthread_join(p->thread, NULL) == 0);
        MUST(checksum(p->memory + GUARD) == p->left);
        for (int rank = 1; rank < SEATS; rank++)
            weft_rref_unref(p->theirs[rank]);
        weft_tensor_unref(p->landing);
        free(p->memory);
    }
    printf("%d calls with 16 MiB were right, %d cancelled, %d ended by a death\n", atomic_load(&pulls->right),
           atomic_load(&pulls->cancelled), atomic_load(&pulls->dead));
    free(pulls);
}
