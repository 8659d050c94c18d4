/* SPDX-License-Identifier: Apache-2.0 */
/*
 * severed.c - one worker of a job on several hosts, whose links somebody cuts (tools/long.d/severed_link, one_way
 * and firewalls do): an agent, and calls. TEST_RENDEZVOUS_MS: how long it waits for the job to begin; TEST_BOUND_MS:
 * the death bound.
 *
 * usage: severed RANK WORLD_SIZE MASTER_ADDR MASTER_PORT SECONDS [stays | sees | out | lost | apart | narrow |
 *        small | called]
 * For SECONDS everybody calls everybody, without time limits, with and without a tensor. stays: every call must
 * succeed, and nobody die. sees: one worker is cut off for longer than the bound; it must be declared dead and come
 * again, calls to it fail in between, all others succeed. out: this is that worker; it must be told so, joins again,
 * and its calls succeed again. lost: the same, for longer than three bounds: the store is lost to it. apart: the
 * link to one other is cut, that to the store is not: calls to that one fail as unreachable, nobody dies, and in the
 * end they succeed again. narrow: in the first half of the time only small calls are made, then somebody keeps new
 * connections from opening: large ones to others end as unreachable, small ones go on. small: as stays, but this
 * worker makes small calls only: it needs a lane for large payloads for the others' sake alone. called: as stays,
 * but this worker calls only itself: it needs no lane at all for its own sake.
 */
#include "rpc/must.h"
#include "tensors.h"

#include <weft/weft.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ELEMENTS 262144 /* 1 MiB */
#define BOUND_MS 2000   /* times TEST_SLOW, a factor for emulated machines */

static bool is_narrow;
static int slow = 1;
static atomic_int dead, joined, evicted, lost;

static void count_member(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    if (event == WEFT_MEMBER_DEAD)
        atomic_fetch_add(&dead, 1);
    if (event == WEFT_MEMBER_JOINED)
        atomic_fetch_add(&joined, 1);
    if (event == WEFT_MEMBER_SELF_EVICTED)
        atomic_fetch_add(&evicted, 1);
    if (event == WEFT_MEMBER_STORE_LOST)
        atomic_fetch_add(&lost, 1);
}

/* The number plus one, and the tensor as it came. */
static weft_status run_echo(weft_call *call, void *user)
{
    weft_call_give(call,
                   WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1), weft_of_tensor(weft_call_tensor(call, 1))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "echo",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .run = run_echo},
};

static weft_agent *open_as(char **argv)
{
    weft_error *error = NULL;
    weft_agent *agent;
    const char *patience_ms = getenv("TEST_RENDEZVOUS_MS"), *bound_ms = getenv("TEST_BOUND_MS");
    weft_status status =
        weft_agent_open(&(weft_agent_options){.functions = functions,
                                              .function_count = 1,
                                              .has_rank = true,
                                              .rank = atoi(argv[1]),
                                              .world_size = atoi(argv[2]),
                                              .master_addr = argv[3],
                                              .master_port = atoi(argv[4]),
                                              .rendezvous_timeout_ms = patience_ms ? atoi(patience_ms) : 0,
                                              .death_timeout_ms = bound_ms ? atoi(bound_ms) : BOUND_MS * slow,
                                              .on_membership = count_member},
                        &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    return agent;
}

/* The error says where, and why. */
static void must_explain(const weft_error *error)
{
    const char *text = weft_error_message(error);
    if (strstr(text, "no bulk lane to worker") && strstr(text, "10.88.0."))
        return;
    fprintf(stderr, "unreachable, but: %s\n", text);
    abort();
}

static weft_status call_one(weft_agent *agent, int rank, int64_t number, weft_tensor *tensor)
{
    weft_error *error = NULL;
    weft_values *values = NULL;
    weft_tensor *back;
    int64_t sum;
    weft_status status =
        weft_rpc_sync(agent, weft_to_rank(rank), "echo", WEFT_VALUES(weft_of_i64(number), weft_of_tensor(tensor)),
                      &(weft_rpc_options){.timeout_ms = WEFT_FOREVER, .error = &error}, &values);
    if (status == WEFT_ERR_UNREACHABLE && is_narrow)
        must_explain(error);
    weft_error_unref(error);
    if (status)
        return status;
    MUST_OK(weft_values_get_i64(values, 0, &sum));
    MUST_OK(weft_values_get_tensor(values, 1, &back));
    MUST(sum == number + 1);
    size_t bytes = (size_t)weft_tensor_shape(tensor).dims[0] * sizeof(float);
    MUST(memcmp(weft_tensor_data(tensor), weft_tensor_data(back), bytes) == 0);
    weft_values_unref(values);
    return WEFT_OK;
}

typedef struct tally {
    int well, badly, well_after; /* after the last one that ended badly */
} tally;

static bool fits(weft_status status, const char *expected)
{
    if (strcmp(expected, "sees") == 0)
        return status == WEFT_ERR_PEER_DEAD;
    if (strcmp(expected, "out") == 0)
        return status == WEFT_ERR_EVICTED;
    if (strcmp(expected, "lost") == 0)
        return status == WEFT_ERR_STORE_LOST || status == WEFT_ERR_UNREACHABLE;
    return (strcmp(expected, "apart") == 0 || is_narrow) && status == WEFT_ERR_UNREACHABLE;
}

/* Until the time is over, or this worker is out. */
static tally call_on(weft_agent *agent, double seconds, const char *expected)
{
    tally t = {0};
    weft_tensor *small = tensor_full(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, 2);
    weft_tensor *large = tensor_full(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32, 3);
    uint64_t until = weft_agent_now_ns(agent) + (uint64_t)(seconds * 1e9);
    uint64_t large_ns = is_narrow ? until - (uint64_t)(seconds * 5e8) : 0;
    for (int64_t number = 0; weft_agent_now_ns(agent) < until && !weft_agent_status(agent); number++) {
        bool is_small = number % 4 || strcmp(expected, "small") == 0 || weft_agent_now_ns(agent) < large_ns;
        for (int rank = 0; rank < weft_agent_world_size(agent); rank++) {
            if (strcmp(expected, "called") == 0 && rank != weft_agent_rank(agent))
                continue;
            weft_status status = call_one(agent, rank, number, is_small ? small : large);
            if (status == WEFT_OK) {
                t.well++;
                t.well_after++;
                continue;
            }
            if (!fits(status, expected) || (is_narrow && is_small)) {
                fprintf(stderr, "rank %d: a call to %d: %s\n", weft_agent_rank(agent), rank, weft_status_name(status));
                abort();
            }
            t.badly++;
            t.well_after = 0;
        }
        usleep(5000);
    }
    weft_tensor_unref(small);
    weft_tensor_unref(large);
    return t;
}

/* It was told that it is out, and joins again: as a new incarnation, once it can. */
static weft_agent *join_again(weft_agent *agent, char **argv, weft_status why)
{
    while (!atomic_load(&evicted) && !atomic_load(&lost)) /* the callback may come a little later than the status */
        usleep(1000);
    MUST(atomic_load(&evicted) == (why == WEFT_ERR_EVICTED) && atomic_load(&lost) == (why == WEFT_ERR_STORE_LOST));
    MUST_BE(weft_agent_status(agent), why);
    MUST_BE(weft_agent_close(agent, WEFT_FOREVER), why);
    atomic_store(&evicted, 0);
    atomic_store(&lost, 0);
    return open_as(argv);
}

static void print_fabrics(weft_agent *agent)
{
    char text[256];
    for (int rank = 0; rank < weft_agent_world_size(agent); rank++) {
        for (int lane = WEFT_LANE_CONTROL; rank != weft_agent_rank(agent) && lane <= WEFT_LANE_BULK; lane++) {
            MUST_OK(weft_agent_fabric(agent, rank, (weft_lane)lane, text, sizeof(text)));
            printf("rank %d to %d: %s over %s\n", weft_agent_rank(agent), rank,
                   lane == WEFT_LANE_BULK ? "bulk" : "control", text);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: severed RANK WORLD_SIZE MASTER_ADDR MASTER_PORT SECONDS "
                        "[stays | sees | out | lost | apart | narrow | small | called]\n");
        return 2;
    }
    const char *expected = argc > 6 ? argv[6] : "stays";
    double seconds = atof(argv[5]);
    is_narrow = strcmp(expected, "narrow") == 0;
    slow = getenv("TEST_SLOW") ? atoi(getenv("TEST_SLOW")) : 1;
    alarm(120 * (unsigned)slow);
    weft_agent *agent = open_as(argv);
    printf("rank %s: in\n", argv[1]); /* tools/long.d/severed_link waits for that */
    fflush(stdout);
    uint64_t began = weft_agent_now_ns(agent);
    tally t = call_on(agent, seconds, expected);
    if (strcmp(expected, "out") == 0 || strcmp(expected, "lost") == 0) {
        double out_after = (double)(weft_agent_now_ns(agent) - began) / 1e9;
        agent = join_again(agent, argv, strcmp(expected, "out") == 0 ? WEFT_ERR_EVICTED : WEFT_ERR_STORE_LOST);
        double in_after = (double)(weft_agent_now_ns(agent) - began) / 1e9;
        printf("rank %s: out after %.1f s with %d calls well, %d not; in again after %.1f s\n", argv[1], out_after,
               t.well, t.badly, in_after);
        t = call_on(agent, seconds - in_after, "stays");
    } else if (strcmp(expected, "sees") == 0) {
        MUST(atomic_load(&dead) == 1 && atomic_load(&joined) == 1 && t.badly > 0 && t.well_after > 0);
    } else if (strcmp(expected, "apart") == 0) {
        MUST(!atomic_load(&dead) && !weft_agent_status(agent) && t.badly > 0 && t.well_after > 0);
    } else {
        MUST(!atomic_load(&dead) && (t.badly > 0) == is_narrow);
    }
    MUST(t.well > 0);
    print_fabrics(agent);
    printf("rank %s: %d calls well, %d not; the last %d well\n", argv[1], t.well, t.badly, t.well_after);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}
