/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_shared.c - operations in memory that the members of a group share: real processes on one machine, over
 * the fabrics host and tcp. Results are those of messages; and members that die, stop, leave, disagree or write
 * nonsense into the memory harm nobody else. This program is its own workers (crew.h).
 *
 * test_coll_shared [NAME]: only the tests of that name, which may have *.
 */
#include "coll/crew.h"
#include "prng.h"
#include "tensors.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

static const char fabrics[] = "host,tcp";

enum { WARM = 6, MEMBERS_MAX = 8, DEATH_MS = 2000 };

/* ---- What the workers share ----------------------------------------------------------------------------------- */

static weft_agent *open_worker(void)
{
    return crew_open(DEATH_MS);
}

/* Small numbers that differ by member and place: exact in every dtype as they are, and rounded where they are added. */
static weft_tensor *filled(weft_dtype dtype, int64_t count, uint64_t seed, int who)
{
    weft_tensor *x = coll_empty(WEFT_DTYPE_FLOAT64, count), *converted;
    double *data = weft_tensor_data(x);
    for (int64_t i = 0; i < count; i++) {
        uint64_t chance = prng_mix(seed * 77 + (uint64_t)who * 1000003 + (uint64_t)i);
        data[i] = coll_is_float(dtype) ? (double)(chance % 4001) / 64 - 31 : (double)(chance % 3);
    }
    converted = coll_convert(x, dtype);
    weft_tensor_unref(x);
    return converted;
}

static weft_status close_worker(weft_agent *agent)
{
    return weft_agent_close(agent, WEFT_FOREVER);
}

/* ---- Results -------------------------------------------------------------------------------------------------- */

static const char by_messages[] = "allreduce * * recursive_doubling; allgather * * direct; reduce_scatter * * direct;"
                                  "reduce * * tree; broadcast * * tree; gather * * direct; scatter * * direct";

/* The same operation in both groups must give the same bits. */
static void compare_allreduce(weft_group *shared, weft_group *other, weft_dtype dtype, weft_op how, int64_t count)
{
    uint64_t seed = (uint64_t)count * 131 + (uint64_t)dtype * 7 + (uint64_t)how;
    weft_tensor *x = filled(dtype, count, seed, weft_group_index(shared)), *y = tensor_clone(x);
    MUST(y);
    MUST_OK(weft_group_allreduce(shared, x, how, 40000));
    MUST_OK(weft_group_allreduce(other, y, how, 40000));
    MUST(memcmp(weft_tensor_data(x), weft_tensor_data(y), weft_tensor_nbytes(x)) == 0);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

typedef enum gathering { GATHERS, SCATTERS, EXCHANGES } gathering;

static weft_status gather(weft_group *group, gathering what, const weft_tensor *in, weft_tensor *out)
{
    return what == GATHERS    ? weft_group_allgather(group, in, out, 40000)
           : what == SCATTERS ? weft_group_reduce_scatter(group, in, out, WEFT_OP_SUM, 40000)
                              : weft_group_all_to_all(group, in, out, 40000);
}

static void compare_gathering(weft_group *shared, weft_group *other, gathering what, int64_t count)
{
    int64_t size = (int64_t)weft_group_size(shared);
    weft_tensor *in =
        filled(WEFT_DTYPE_INT32, what == GATHERS ? count : count * size, (uint64_t)count, weft_group_index(shared));
    int64_t outs = what == SCATTERS ? count : count * size;
    weft_tensor *one = coll_empty(WEFT_DTYPE_INT32, outs), *two = coll_empty(WEFT_DTYPE_INT32, outs);
    MUST_OK(gather(shared, what, in, one));
    MUST_OK(gather(other, what, in, two));
    MUST(memcmp(weft_tensor_data(one), weft_tensor_data(two), weft_tensor_nbytes(one)) == 0);
    weft_tensor_unref(in);
    weft_tensor_unref(one);
    weft_tensor_unref(two);
}

typedef enum rooted { BROADCASTS, REDUCES, COLLECTS, DISTRIBUTES, ROOTED } rooted;

/* `whole` has a part for each member. */
static weft_status run_rooted(weft_group *group, rooted what, weft_tensor *part, weft_tensor *whole, size_t root)
{
    bool is_root = (size_t)weft_group_index(group) == root;
    return what == BROADCASTS ? weft_group_broadcast(group, part, root, 40000)
           : what == REDUCES  ? weft_group_reduce(group, part, WEFT_OP_SUM, root, 40000)
           : what == COLLECTS ? weft_group_gather(group, part, is_root ? whole : NULL, root, 40000)
                              : weft_group_scatter(group, is_root ? whole : NULL, part, root, 40000);
}

/* The same in both groups gives the same in both tensors. `in_place`: the part is this member's of the whole. */
static void compare_rooted(weft_group *shared, weft_group *other, rooted what, int64_t count, size_t root,
                           bool in_place)
{
    weft_group *groups[] = {shared, other};
    weft_tensor *parts[2], *wholes[2];
    int me = weft_group_index(shared);
    int64_t size = (int64_t)weft_group_size(shared);
    for (int i = 0; i < 2; i++) {
        wholes[i] = filled(WEFT_DTYPE_INT32, count * size, (uint64_t)count + root, me);
        parts[i] = in_place ? tensor_narrow(wholes[i], 0, me * count, count)
                            : filled(WEFT_DTYPE_INT32, count, (uint64_t)count + root, me + 100);
        MUST(parts[i]);
        MUST_OK(run_rooted(groups[i], what, parts[i], wholes[i], root));
    }
    MUST(memcmp(weft_tensor_data(parts[0]), weft_tensor_data(parts[1]), (size_t)count * sizeof(int32_t)) == 0);
    MUST(memcmp(weft_tensor_data(wholes[0]), weft_tensor_data(wholes[1]), weft_tensor_nbytes(wholes[0])) == 0);
    for (int i = 0; i < 2; i++) {
        weft_tensor_unref(parts[i]);
        weft_tensor_unref(wholes[i]);
    }
}

static void compare_all_rooted(weft_group *shared, weft_group *other, int64_t count)
{
    size_t size = weft_group_size(shared);
    for (int what = BROADCASTS; what < ROOTED; what++)
        for (size_t root = 0; root<size; root += size> 2 ? size - 1 : 1) {
            compare_rooted(shared, other, (rooted)what, count, root, false);
            compare_rooted(shared, other, (rooted)what, count, root, true);
        }
}

/* Operations with a root send no messages. */
static void must_send_nothing(weft_agent *agent, weft_group *group)
{
    enum { ROUNDS = 40 };
    size_t size = weft_group_size(group);
    weft_tensor *part = filled(WEFT_DTYPE_INT32, 100, 1, 1);
    weft_tensor *whole = filled(WEFT_DTYPE_INT32, 100 * (int64_t)size, 1, 1);
    weft_stats before = world_stats(agent), after;
    for (int i = 0; i < ROUNDS; i++)
        for (int what = BROADCASTS; what < ROOTED; what++)
            MUST_OK(run_rooted(group, (rooted)what, part, whole, (size_t)i % size));
    MUST_OK(weft_group_barrier(group, 40000));
    after = world_stats(agent);
    MUST(after.frames_sent - before.frames_sent < ROUNDS); /* few: other parts of weft send some */
    weft_tensor_unref(part);
    weft_tensor_unref(whole);
}

static int run_results(void)
{
    /* the last two: of 2 MiB in pieces, for two members; more than that, by messages */
    static const int64_t counts[] = {0, 1, 7, 500, 511, 4096, 8192, 16384, 16385, 65536, 300001, 524289};
    weft_agent *agent = open_worker();
    weft_group *shared = crew_shared(agent, "shared"), *other = crew_group(agent, "other", by_messages);
    for (int dtype = 0; coll_is_dtype((weft_dtype)dtype); dtype++)
        for (int how = WEFT_OP_SUM; how <= WEFT_OP_PROD; how++)
            for (size_t i = 0; i < 5 && coll_can((weft_dtype)dtype, (weft_op)how); i++)
                compare_allreduce(shared, other, (weft_dtype)dtype, (weft_op)how, counts[i] * (i == 4 ? 8 : 1));
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        compare_allreduce(shared, other, WEFT_DTYPE_FLOAT32, WEFT_OP_AVG, counts[i]);
        for (int what = GATHERS; what <= EXCHANGES && counts[i] <= 65536; what++)
            compare_gathering(shared, other, (gathering)what, counts[i]);
        if (counts[i] <= 16385 && (i % 2 || counts[i] == 16385))
            compare_all_rooted(shared, other, counts[i]);
    }
    must_send_nothing(agent, shared);
    weft_group_close(shared);
    weft_group_close(other);
    MUST_OK(close_worker(agent));
    return 0;
}

/* Several operations at once, of several groups, from one thread each. */
static void *run_group(void *arg)
{
    enum { AT_ONCE = 20, ROUNDS = 15 };
    weft_group *group = arg;
    weft_tensor *x[AT_ONCE];
    weft_future *done[AT_ONCE];
    int size = (int)weft_group_size(group);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < AT_ONCE; i++) {
            x[i] = tensor_full(WEFT_SHAPE(1 + i * 900 * (i == AT_ONCE - 1 ? 2 : 1)), WEFT_DTYPE_FLOAT32,
                               weft_group_index(group) + i);
            MUST(x[i]);
            if (i % 5 == 4) /* between the others; the last one is too large for shared memory */
                MUST_OK(weft_group_broadcast_async(group, x[i], (size_t)(round % size), 40000, &done[i]));
            else
                MUST_OK(weft_group_allreduce_async(group, x[i], WEFT_OP_SUM, 40000, &done[i]));
        }
        for (int i = 0; i < AT_ONCE; i++) {
            double wanted = i % 5 == 4 ? round % size + i : size * (size - 1) / 2 + size * i;
            MUST_OK(weft_future_wait(done[i], WEFT_FOREVER));
            for (int64_t k = 0; k < weft_tensor_numel(x[i]); k++)
                MUST(((float *)weft_tensor_data(x[i]))[k] == (float)wanted);
            weft_future_unref(done[i]);
            weft_tensor_unref(x[i]);
        }
    }
    return NULL;
}

static int run_many(void)
{
    enum { GROUPS = 3 };
    weft_agent *agent = open_worker();
    weft_group *groups[GROUPS];
    pthread_t threads[GROUPS];
    for (int i = 0; i < GROUPS; i++) {
        char name[32];
        snprintf(name, sizeof(name), "group-%d", i);
        groups[i] = crew_group(agent, name, NULL);
    }
    for (int i = 0; i < GROUPS; i++)
        MUST(pthread_create(&threads[i], NULL, run_group, groups[i]) == 0);
    for (int i = 0; i < GROUPS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    MUST(crew_memory(NULL) > 0);
    for (int i = 0; i < GROUPS; i++)
        weft_group_close(groups[i]);
    MUST_OK(close_worker(agent));
    return 0;
}

/* The first member leaves right after a barrier: the others pass that barrier, though it is gone. */
static int run_leaves(void)
{
    weft_agent *agent = open_worker();
    weft_group *group = crew_shared(agent, "all");
    weft_tensor *x = tensor_full(WEFT_SHAPE(12000), WEFT_DTYPE_FLOAT32, 1);
    MUST_OK(weft_group_allreduce(group, x, WEFT_OP_SUM, 40000));
    MUST_OK(weft_group_barrier(group, 40000));
    MUST(((float *)weft_tensor_data(x))[11999] == (float)weft_group_size(group));
    weft_tensor_unref(x);
    weft_group_close(group);
    weft_agent_stop(agent);
    return 0;
}

/* The root leaves after a broadcast: the others still get its data, though they call only when they know that it
 * left. */
static int run_root_leaves(void)
{
    weft_agent *agent = open_worker();
    weft_group *group = crew_shared(agent, "all");
    weft_tensor *x = filled(WEFT_DTYPE_INT32, 1000, 1, weft_group_index(group));
    weft_tensor *wanted = filled(WEFT_DTYPE_INT32, 1000, 1, 0);
    while (weft_group_index(group) != 0 && !weft_group_error(group))
        usleep(1000);
    MUST_OK(weft_group_broadcast(group, x, 0, 40000));
    MUST(memcmp(weft_tensor_data(x), weft_tensor_data(wanted), weft_tensor_nbytes(x)) == 0);
    if (weft_group_index(group) != 0)
        MUST_BE(weft_group_barrier(group, 40000), WEFT_ERR_PEER_LEFT);
    weft_tensor_unref(x);
    weft_tensor_unref(wanted);
    weft_group_close(group);
    weft_agent_stop(agent);
    return 0;
}

/* The root of many operations is ahead of the others, as far as it may be. */
static int run_ahead(void)
{
    enum { COUNT = 300 };
    weft_agent *agent = open_worker();
    weft_group *group = crew_shared(agent, "all");
    size_t me = (size_t)weft_group_index(group), size = weft_group_size(group);
    weft_future *done[COUNT];
    weft_tensor *x[COUNT];
    for (int i = 0; i < COUNT; i++) {
        size_t root = (size_t)i / 50 % size;
        x[i] = tensor_full(WEFT_SHAPE(1 + i % 7 * 2000), WEFT_DTYPE_FLOAT32, me == root ? i : -1);
        MUST(x[i]);
        if (i % 3)
            MUST_OK(weft_group_broadcast_async(group, x[i], root, 40000, &done[i]));
        else
            MUST_OK(weft_group_reduce_async(group, x[i], WEFT_OP_MAX, root, 40000, &done[i]));
        if (me != root) /* only the root does not wait */
            MUST_OK(weft_future_wait(done[i], WEFT_FOREVER));
    }
    for (int i = 0; i < COUNT; i++) {
        bool has_result = i % 3 || me == (size_t)i / 50 % size;
        MUST_OK(weft_future_wait(done[i], WEFT_FOREVER));
        for (int64_t k = 0; k < weft_tensor_numel(x[i]); k++)
            MUST(((float *)weft_tensor_data(x[i]))[k] == (has_result ? (float)i : -1));
        weft_future_unref(done[i]);
        weft_tensor_unref(x[i]);
    }
    weft_group_close(group);
    MUST_OK(close_worker(agent));
    return 0;
}

/* ---- A fabric that not all have ------------------------------------------------------------------------------- */

static int run_apart(void)
{
    if (getenv("RANK")[0] == '1')
        setenv("WEFT_FABRIC", "tcp", 1);
    weft_agent *agent = open_worker();
    setenv("WEFT_FABRIC", fabrics, 1);
    weft_group *group = crew_group(agent, "all", NULL), *other = crew_group(agent, "other", by_messages);
    for (int i = 0; i < WARM; i++)
        compare_allreduce(group, other, WEFT_DTYPE_FLOAT32, WEFT_OP_SUM, 1000);
    MUST(crew_memory(NULL) == 0);
    weft_group_close(group);
    weft_group_close(other);
    MUST_OK(close_worker(agent));
    return 0;
}

/* ---- Members that disagree, and cancel ------------------------------------------------------------------------ */

static int run_disagrees(void)
{
    weft_agent *agent = open_worker();
    int rank = weft_agent_rank(agent);
    for (int i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof(name), "all-%d", i);
        weft_group *group = crew_shared(agent, name);
        crew_meet(agent);
        /* another count; another kind, which is shared too; one by messages; a cancelled one */
        weft_tensor *x = tensor_zeros(WEFT_SHAPE(i == 0                ? 10 + (rank == 1)
                                                 : i == 2 && rank == 1 ? 100000
                                                                       : 10),
                                      WEFT_DTYPE_FLOAT32);
        weft_status wanted = i == 3 ? WEFT_ERR_CANCELLED : WEFT_ERR_STATE;
        if (i == 1 && rank == 1) {
            MUST_BE(weft_group_barrier(group, WEFT_FOREVER), wanted);
        } else if (i == 3 && rank == 1) {
            weft_future *future;
            MUST_OK(weft_group_allreduce_async(group, x, WEFT_OP_SUM, WEFT_FOREVER, &future));
            MUST_OK(weft_future_cancel(future));
            MUST_BE(weft_future_wait(future, WEFT_FOREVER), wanted);
            weft_future_unref(future);
        } else if (i == 3 && rank == 0) {
            while (!weft_group_error(group)) /* it does not take part */
                usleep(1000);
            MUST_BE(weft_error_code(weft_group_error(group)), wanted);
        } else {
            MUST_BE(weft_group_allreduce(group, x, WEFT_OP_SUM, WEFT_FOREVER), wanted);
        }
        weft_tensor_unref(x);
        weft_group_close(group);
    }
    MUST_OK(close_worker(agent));
    return 0;
}

/* Each member names the next one as the root of a gather by messages. So each sends, and its gather ends well. The
 * barrier in memory is faster than these messages, and shows that the members have not called the same. */
static int run_nobody_is_root(void)
{
    weft_agent *agent = open_worker();
    int rank = weft_agent_rank(agent);
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof(name), "nobody-%d", i);
        weft_group *group = crew_group(agent, name, "gather * * direct");
        weft_tensor *part = tensor_zeros(WEFT_SHAPE(10), WEFT_DTYPE_FLOAT32);
        weft_status status = weft_group_gather(group, part, NULL, (size_t)(rank + 1) % 3, WEFT_FOREVER);
        if (!status)
            status = weft_group_barrier(group, WEFT_FOREVER);
        MUST_BE(status, WEFT_ERR_STATE);
        weft_tensor_unref(part);
        weft_group_close(group);
    }
    MUST_OK(close_worker(agent));
    return 0;
}

/* Members name different roots. Some that disagree about a broadcast have what they need; the next operation fails. */
static int run_roots_differ(void)
{
    weft_agent *agent = open_worker();
    size_t root = weft_agent_rank(agent) == 1 ? 1 : 0;
    for (int what = BROADCASTS; what < ROOTED; what++) {
        char name[32];
        snprintf(name, sizeof(name), "roots-%d", what);
        weft_group *group = crew_shared(agent, name);
        weft_tensor *part = tensor_zeros(WEFT_SHAPE(10), WEFT_DTYPE_FLOAT32);
        weft_tensor *whole = tensor_zeros(WEFT_SHAPE(30), WEFT_DTYPE_FLOAT32);
        weft_status status = run_rooted(group, (rooted)what, part, whole, root);
        if (!status)
            status = weft_group_barrier(group, 40000);
        MUST_BE(status, WEFT_ERR_STATE);
        MUST(strstr(weft_error_message(weft_group_error(group)), "root") != NULL);
        weft_tensor_unref(part);
        weft_tensor_unref(whole);
        weft_group_close(group);
    }
    MUST_OK(close_worker(agent));
    return 0;
}

/* A member cancels a broadcast whose root does not call it: the group is over on all members. */
static int run_cancels(void)
{
    weft_agent *agent = open_worker();
    weft_group *group = crew_shared(agent, "all");
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(10), WEFT_DTYPE_FLOAT32);
    weft_future *future;
    crew_meet(agent);
    if (weft_agent_rank(agent) != 0) {
        /* the second one may call it when the group is over already */
        weft_status status = weft_group_broadcast_async(group, x, 0, WEFT_FOREVER, &future);
        if (!status && weft_agent_rank(agent) == 1)
            MUST_OK(weft_future_cancel(future));
        if (!status) {
            status = weft_future_wait(future, WEFT_FOREVER);
            weft_future_unref(future);
        }
        MUST_BE(status, WEFT_ERR_CANCELLED);
    }
    while (!weft_group_error(group))
        usleep(1000);
    MUST_BE(weft_error_code(weft_group_error(group)), WEFT_ERR_CANCELLED);
    weft_tensor_unref(x);
    weft_group_close(group);
    MUST_OK(close_worker(agent));
    return 0;
}

/* ---- Members that die, or stop -------------------------------------------------------------------------------- */

/* Each member gives ones. Checks the result if there is one. */
static weft_status operate(weft_group *group, weft_tensor *x, int kind, int round)
{
    float *data = weft_tensor_data(x);
    size_t size = weft_group_size(group), root = (size_t)round % size, me = (size_t)weft_group_index(group);
    int64_t count = weft_tensor_numel(x);
    bool has_sum = kind == ROOTED || (kind == REDUCES && me == root);
    weft_tensor *whole = tensor_full(WEFT_SHAPE(count * (int64_t)size), WEFT_DTYPE_FLOAT32, 1);
    for (int64_t i = 0; i < count; i++)
        data[i] = kind == BROADCASTS && me != root ? 0 : 1;
    weft_status status = kind == ROOTED ? weft_group_allreduce(group, x, WEFT_OP_SUM, WEFT_FOREVER)
                                        : run_rooted(group, (rooted)kind, x, whole, root);
    for (int64_t i = 0; i < count && !status; i++)
        MUST(data[i] == (has_sum ? (float)size : 1));
    for (int64_t i = 0; i < count * (int64_t)size && !status; i++)
        MUST(((float *)weft_tensor_data(whole))[i] == 1);
    weft_tensor_unref(whole);
    return status;
}

/* Operations until one fails; the parent kills rank 1 meanwhile. Then those who live go on. kind ROOTED: allreduces;
 * more than that: all kinds. */
static int run_death(int64_t count, int kind)
{
    weft_agent *agent = open_worker();
    int rank = weft_agent_rank(agent);
    weft_group *group = crew_shared(agent, "all"), *less;
    weft_status status = WEFT_OK;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32);
    child_say('r');
    for (int round = 0; !status; round++)
        status = operate(group, x, kind > ROOTED ? round % (ROOTED + 1) : kind, round);
    MUST_BE(status, WEFT_ERR_PEER_DEAD);
    MUST(weft_error_worker(weft_group_error(group)) == 1 && rank != 1);
    MUST_OK(weft_group_shrink(group, 40000, &less, NULL));
    MUST(weft_group_size(less) == weft_group_size(group) - 1);
    for (int i = 0; i < WARM; i++)
        MUST_OK(weft_group_barrier(less, 40000));
    weft_tensor_unref(x);
    weft_group_close(group);
    weft_group_close(less);
    weft_agent_stop(agent);
    return 0;
}

static int run_dies(void)
{
    return run_death(1, ROOTED);
}

static int run_dies_in_two_steps(void)
{
    return run_death(3000, ROOTED);
}

static int run_dies_with_full_slots(void)
{
    return run_death(16384, ROOTED);
}

static int run_dies_in_broadcasts(void)
{
    return run_death(500, BROADCASTS);
}

static int run_dies_in_all(void)
{
    return run_death(4096, ROOTED + 1);
}

/* Rank 1 is stopped for less than the bound: all operations succeed. */
static int run_stops(void)
{
    weft_agent *agent = open_worker();
    weft_group *group = crew_shared(agent, "all");
    child_say('r');
    double until = child_now_s() + 0.6;
    for (float go = 1; go > 0;) {
        weft_tensor *x = tensor_full(WEFT_SHAPE(10), WEFT_DTYPE_FLOAT32, child_now_s() < until);
        MUST_OK(weft_group_allreduce(group, x, WEFT_OP_MIN, 40000));
        go = ((float *)weft_tensor_data(x))[0];
        weft_tensor_unref(x);
    }
    weft_group_close(group);
    MUST_OK(close_worker(agent));
    return 0;
}

/* Rank 1 does not call: the others name it when the time is over. */
static int run_missing(void)
{
    weft_agent *agent = open_worker();
    int rank = weft_agent_rank(agent);
    weft_group *group = crew_shared(agent, "all");
    if (rank == 1) {
        while (!weft_group_error(group))
            usleep(1000);
    } else {
        MUST_BE(weft_group_barrier(group, 300), WEFT_ERR_TIMEOUT);
        MUST(strstr(weft_error_message(weft_group_error(group)), "rank 1") != NULL);
    }
    weft_group_close(group);
    MUST_OK(close_worker(agent));
    return 0;
}

/* ---- A hostile member ----------------------------------------------------------------------------------------- */

static void write_nonsense(char *memory, size_t bytes, uint64_t seed)
{
    uint64_t words =
        1 + prng_mix(seed) % 8 * (prng_mix(seed) % 3 ? 1 : 500); /* few: otherwise every operation ends alike */
    for (uint64_t k = 0; k < words; k++) {                       /* mostly at the flags and heads */
        uint64_t chance = prng_mix(seed + k);
        size_t at = (chance % 3 ? chance / 3 % 8192 : chance / 3 % bytes) / 8 * 8;
        uint64_t value = chance >> 60 ? prng_mix(chance) : UINT64_MAX;
        __atomic_store_n((uint64_t *)(void *)(memory + at), chance % 7 ? value : prng_mix(chance) % 300,
                         __ATOMIC_RELAXED);
    }
}

/* Rank 1 writes random words all over the memory. The operations of the others end, somehow. */
static void attack(weft_agent *agent, uint64_t seed)
{
    char name[32];
    snprintf(name, sizeof(name), "attack-%llu", (unsigned long long)seed);
    weft_group *group = crew_shared(agent, name);
    char *memory = NULL;
    size_t bytes = crew_memory(&memory);
    int rank = weft_agent_rank(agent), ended = 0;
    crew_meet(agent);
    for (int i = 0; i < 200 && !ended; i++) {
        weft_tensor *x = tensor_zeros(WEFT_SHAPE(1 + i * 80), WEFT_DTYPE_FLOAT32);
        if (rank == 1)
            write_nonsense(memory, bytes, seed * 1000000 + (uint64_t)i * 5000);
        weft_status status = weft_group_allreduce(group, x, WEFT_OP_SUM, 100);
        ended = status != WEFT_OK;
        if (ended)
            MUST(status == WEFT_ERR_STATE || status == WEFT_ERR_TIMEOUT || status == WEFT_ERR_PROTOCOL);
        weft_tensor_unref(x);
    }
    weft_group_close(group);
    crew_meet(agent); /* the agents are unharmed */
    while (crew_memory(NULL) > 0)
        usleep(1000);
}

static int run_hostile(void)
{
    weft_agent *agent = open_worker();
    for (uint64_t seed = 1; seed <= 20; seed++)
        attack(agent, seed);
    MUST_OK(close_worker(agent));
    return 0;
}

/* ---- A child of fork ------------------------------------------------------------------------------------------ */

static int run_forks(void)
{
    weft_agent *agent = open_worker();
    weft_group *group = crew_shared(agent, "all");
    child forked = child_fork("forked");
    if (!forked.pid) {
        weft_group_close(group);
        _exit(weft_group_size(NULL) != 0);
    }
    child_must_end_well(&forked, 1);
    for (int i = 0; i < WARM; i++)
        MUST_OK(weft_group_barrier(group, 40000));
    weft_group_close(group);
    MUST_OK(close_worker(agent));
    return 0;
}

/* ---- A worker that plays several parts ------------------------------------------------------------------------ */

static const child_role roles[] = {
    {"results", run_results},
    {"many", run_many},
    {"leaves", run_leaves},
    {"root-leaves", run_root_leaves},
    {"ahead", run_ahead},
    {"roots-differ", run_roots_differ},
    {"nobody-is-root", run_nobody_is_root},
    {"cancels", run_cancels},
    {"dies-root", run_dies_in_broadcasts},
    {"dies-all", run_dies_in_all},
    {"apart", run_apart},
    {"disagrees", run_disagrees},
    {"dies", run_dies},
    {"dies-3000", run_dies_in_two_steps},
    {"dies-16384", run_dies_with_full_slots},
    {"stops", run_stops},
    {"missing", run_missing},
    {"hostile", run_hostile},
    {"forks", run_forks},
};

static int run_parts(void)
{
    return crew_work(roles, sizeof(roles) / sizeof(*roles));
}

/* ---- The parent ----------------------------------------------------------------------------------------------- */

static void test_results(void **state)
{
    for (int count = 2; count <= 4; count++)
        crew_play(count, "results");
}

static void test_results_of_eight(void **state)
{
    crew_play(8, "results");
}

static void test_many_at_once(void **state)
{
    crew_play(2, "many");
    crew_play(4, "many");
}

static void test_first_leaves(void **state)
{
    for (int i = 0; i < 5; i++)
        crew_play(3, "leaves");
}

static void test_root_leaves(void **state)
{
    for (int i = 0; i < 3; i++)
        crew_play(3, "root-leaves");
}

static void test_root_is_ahead(void **state)
{
    crew_play(3, "ahead");
}

static void test_roots_differ(void **state)
{
    crew_play(3, "roots-differ");
}

static void test_nobody_is_root(void **state)
{
    crew_play(3, "nobody-is-root");
}

static void test_cancelled_broadcast(void **state)
{
    crew_play(3, "cancels");
}

static void test_not_all_have_it(void **state)
{
    crew_play(3, "apart");
}

static void test_disagreement(void **state)
{
    crew_play(3, "disagrees");
}

static void test_missing(void **state)
{
    crew_play(3, "missing");
}

static void test_fork(void **state)
{
    crew_play(2, "forks");
}

static void test_death(void **state)
{
    static const char *const parts[] = {"dies", "dies-3000", "dies-16384", "dies-root", "dies-all"};
    enum { PARTS = sizeof(parts) / sizeof(*parts) };
    for (int i = 0; i < PARTS + 2; i++) {
        crew_start(4, parts[i % PARTS]);
        crew_hear(4, 'r');
        usleep((useconds_t)(3000 + 13000 * i));
        child_kill(&crew[1]);
        crew_hear(4, 'e');
    }
}

static void test_stop(void **state)
{
    crew_start(3, "stops");
    crew_hear(3, 'r');
    for (int i = 0; i < 5; i++) {
        child_signal(&crew[1], SIGSTOP);
        usleep(50000);
        child_signal(&crew[1], SIGCONT);
        usleep(30000);
    }
    crew_hear(3, 'e');
}

static void test_hostile(void **state)
{
    crew_play(3, "hostile");
}

int main(int argc, char **argv)
{
    static const child_role worker[] = {{"parts", run_parts}};
    int played = child_play(argc, argv, worker, 1);
    if (played >= 0)
        return played;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    setenv("WEFT_FABRIC", fabrics, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),         cmocka_unit_test(test_results_of_eight),
        cmocka_unit_test(test_many_at_once),    cmocka_unit_test(test_first_leaves),
        cmocka_unit_test(test_not_all_have_it), cmocka_unit_test(test_disagreement),
        cmocka_unit_test(test_missing),         cmocka_unit_test(test_fork),
        cmocka_unit_test(test_death),           cmocka_unit_test(test_stop),
        cmocka_unit_test(test_hostile),         cmocka_unit_test(test_root_leaves),
        cmocka_unit_test(test_root_is_ahead),   cmocka_unit_test(test_nobody_is_root),
        cmocka_unit_test(test_roots_differ),    cmocka_unit_test(test_cancelled_broadcast),
    };
    return cmocka_run_group_tests(tests, NULL, crew_dismiss);
}
