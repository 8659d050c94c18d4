/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_hosts.c - operations in two levels, with real processes: the members of each host share memory, and
 * leaders exchange messages over tcp. All processes are on one machine. Each host is a mount namespace in which the
 * kernel's boot id is another file, so that its workers have another machine id. Where that is forbidden (neither
 * root nor user namespaces), the test is skipped.
 *
 * This program is its own workers, as test_coll_shared.c.
 */
#include "coll/crew.h"
#include "tensors.h"

#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mount.h>
#include <unistd.h>

enum { MEMBERS = 6, WARM = 6, DEATH_MS = 10000, ROUNDS = 8 };

/* By rank. Ranks 0, 2 and 5 lead. Rank 5 is alone. */
static const int host_of[MEMBERS] = {0, 0, 1, 1, 1, 2};

/* ---- Hosts ---------------------------------------------------------------------------------------------------- */

/* From here on this process is on that host. False: the system forbids it. */
static bool move_to(int host)
{
    static const char *const ids[] = {NULL, "/proc/version", "/proc/filesystems"};
    if (unshare(CLONE_NEWNS) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0)
        return false;
    return !ids[host] || (mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
                          mount(ids[host], "/proc/sys/kernel/random/boot_id", NULL, MS_BIND, NULL) == 0);
}

static bool can_move(void)
{
    child one = child_fork("moves");
    if (!one.pid)
        _exit(!move_to(1));
    return child_end(&one) == 0;
}

/* ---- What the workers share ----------------------------------------------------------------------------------- */

static weft_agent *open_worker(void)
{
    return crew_open(DEATH_MS);
}

/* After this the small operations of each host are in memory. A member that does not answer in about 1 s, on a busy
 * machine, leaves its host without: then another group is opened. */
static weft_group *open_warm(weft_agent *agent, const char *name)
{
    int members = 0, rank = weft_agent_rank(agent);
    for (;; members = 0) {
        weft_group *group = crew_group(agent, name, NULL);
        for (int i = 0; i < WARM; i++)
            MUST_OK(weft_group_barrier(group, 40000));
        for (size_t i = 0; i < weft_group_size(group); i++)
            members += host_of[i] == host_of[rank];
        MUST(members > 1 || !crew_memory(NULL));
        if (coll_everywhere(group, members == 1 || crew_memory(NULL)))
            return group;
        weft_group_close(group);
        while (crew_memory(NULL)) /* last messages may hold it for a moment */
            usleep(1000);
    }
}

static weft_tensor *rounded(int64_t count, int who)
{
    weft_tensor *x = coll_empty(WEFT_DTYPE_FLOAT32, count);
    for (int64_t i = 0; i < count; i++)
        ((float *)weft_tensor_data(x))[i] = (float)((i * 7919 + who * 104729) % 4001) / 64 - 31;
    return x;
}

static void same_bits(weft_group *group, const weft_tensor *x)
{
    weft_tensor *mine = tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_INT64, 0);
    *(int64_t *)weft_tensor_data(mine) = (int64_t)coll_hash(x);
    weft_tensor *all = coll_empty(WEFT_DTYPE_INT64, (int64_t)weft_group_size(group));
    MUST_OK(weft_group_allgather(group, mine, all, 40000));
    for (size_t i = 0; i < weft_group_size(group); i++)
        MUST(((int64_t *)weft_tensor_data(all))[i] == *(int64_t *)weft_tensor_data(mine));
    weft_tensor_unref(mine);
    weft_tensor_unref(all);
}

/* ---- Results -------------------------------------------------------------------------------------------------- */

/* The bits are those of a group whose hosts have no memory yet, and the sums those that all members can form. */
static void compare(weft_agent *agent, weft_group *warm, int64_t count, weft_op how, int number)
{
    char name[32];
    snprintf(name, sizeof(name), "cold-%d", number);
    weft_group *cold = crew_group(agent, name, NULL);
    int size = (int)weft_group_size(warm);
    weft_tensor *x = rounded(count, weft_agent_rank(agent)), *y = tensor_clone(x);
    MUST_OK(weft_group_allreduce(warm, x, how, 40000));
    MUST_OK(weft_group_allreduce(cold, y, how, 40000));
    MUST(memcmp(weft_tensor_data(x), weft_tensor_data(y), weft_tensor_nbytes(x)) == 0);
    same_bits(warm, x);
    for (int64_t i = 0; i < count; i += 1 + count / 100) {
        float sum = 0;
        for (int k = 0; k < size; k++)
            sum += (float)((i * 7919 + k * 104729) % 4001) / 64 - 31;
        if (how != WEFT_OP_MAX)
            MUST(fabsf(((float *)weft_tensor_data(x))[i] - (how == WEFT_OP_AVG ? sum / (float)size : sum)) < 1e-3f);
    }
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    weft_group_close(cold);
}

static int run_results(void)
{
    static const int64_t counts[] = {1, 1000, 16384, 16385, 300001};
    weft_agent *agent = open_worker();
    weft_group *group = open_warm(agent, "all");
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        compare(agent, group, counts[i], i % 3 == 0 ? WEFT_OP_SUM : i % 3 == 1 ? WEFT_OP_AVG : WEFT_OP_MAX, (int)i);
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* Many operations at once, of all sizes and kinds, from the first on: their order in the memory is that of the
 * calls. */
static int run_many(void)
{
    enum { AT_ONCE = 24 };
    weft_agent *agent = open_worker();
    weft_group *group = crew_group(agent, "all", NULL);
    int size = (int)weft_group_size(group), me = weft_group_index(group);
    for (int round = 0; round < ROUNDS; round++) {
        weft_tensor *x[AT_ONCE];
        weft_future *done[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            x[i] = tensor_full(WEFT_SHAPE(1 + i * (i % 6 == 5 ? 2000 : 500)), WEFT_DTYPE_FLOAT32, me + i);
            MUST(x[i]);
            if (i % 4 == 3)
                MUST_OK(weft_group_barrier_async(group, 40000, &done[i]));
            else if (i % 4 == 2)
                MUST_OK(weft_group_broadcast_async(group, x[i], (size_t)(i % size), 40000, &done[i]));
            else
                MUST_OK(weft_group_allreduce_async(group, x[i], WEFT_OP_SUM, 40000, &done[i]));
        }
        for (int i = 0; i < AT_ONCE; i++) {
            double wanted = i % 4 == 3 ? me + i : i % 4 == 2 ? i % size + i : size * (size - 1) / 2 + size * i;
            MUST_OK(weft_future_wait(done[i], WEFT_FOREVER));
            for (int64_t k = 0; k < weft_tensor_numel(x[i]); k++)
                MUST(((float *)weft_tensor_data(x[i]))[k] == (float)wanted);
            weft_future_unref(done[i]);
            weft_tensor_unref(x[i]);
        }
    }
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* All workers leave right after a barrier: each passes it, though its leader or others may be gone, or hears that
 * one has left: the message of another host's leader may come after that news. */
static int run_leaves(void)
{
    weft_agent *agent = open_worker();
    weft_group *group = open_warm(agent, "all");
    weft_status status = weft_group_barrier(group, 40000);
    MUST(!status || status == WEFT_ERR_PEER_LEFT);
    weft_group_close(group);
    weft_agent_stop(agent);
    return 0;
}

/* A gather to that root, then a scatter and a reduce. */
static void with_root(weft_group *group, int64_t count, size_t root)
{
    size_t size = weft_group_size(group), me = (size_t)weft_group_index(group);
    bool at_root = me == root;
    weft_tensor *part = tensor_full(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32, (double)me + 1);
    weft_tensor *all = at_root ? coll_empty(WEFT_DTYPE_FLOAT32, count * (int64_t)size) : NULL;
    MUST_OK(weft_group_gather(group, part, all, root, 40000));
    for (int64_t i = 0; at_root && i < weft_tensor_numel(all); i++)
        MUST(((float *)weft_tensor_data(all))[i] == (float)(i / count + 1));
    weft_tensor_fill(part, -1);
    MUST_OK(weft_group_scatter(group, all, part, root, 40000));
    for (int64_t i = 0; i < count; i++)
        MUST(((float *)weft_tensor_data(part))[i] == (float)me + 1);
    MUST_OK(weft_group_reduce(group, part, WEFT_OP_SUM, root, 40000));
    for (int64_t i = 0; i < count; i++)
        MUST(((float *)weft_tensor_data(part))[i] == (float)(at_root ? size * (size + 1) / 2 : me + 1));
    weft_tensor_unref(part);
    weft_tensor_unref(all);
}

static int run_roots(void)
{
    static const int64_t counts[] = {1, 1000, 4096, 4097, 16384, 16385, 262144};
    weft_agent *agent = open_worker();
    weft_group *groups[] = {open_warm(agent, "warm"), crew_group(agent, "cold", NULL)};
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
        for (size_t root = 0; root < weft_group_size(groups[0]); root++)
            for (int k = 0; k < 2; k++)
                with_root(groups[k], counts[i], root);
    for (int k = 0; k < 2; k++) {
        MUST_OK(weft_group_barrier(groups[k], 40000));
        weft_group_close(groups[k]);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* ---- Failures ------------------------------------------------------------------------------------------------- */

/* The kind, the root and the tensor follow from the round. */
static weft_status operate(weft_group *group, int round, weft_tensor *x)
{
    size_t size = weft_group_size(group), me = (size_t)weft_group_index(group), root = (size_t)round / 5 % size;
    weft_tensor *all = coll_empty(WEFT_DTYPE_FLOAT32, weft_tensor_numel(x) * (int64_t)size);
    weft_status status = round % 5 == 0   ? weft_group_barrier(group, WEFT_FOREVER)
                         : round % 5 == 1 ? weft_group_reduce(group, x, WEFT_OP_SUM, root, WEFT_FOREVER)
                         : round % 5 == 2 ? weft_group_gather(group, x, me == root ? all : NULL, root, WEFT_FOREVER)
                         : round % 5 == 3 ? weft_group_broadcast(group, x, root, WEFT_FOREVER)
                                          : weft_group_allreduce(group, x, WEFT_OP_SUM, WEFT_FOREVER);
    for (int64_t i = 0; i < weft_tensor_numel(x) && !status; i++)
        MUST(((float *)weft_tensor_data(x))[i] == (float)(round % 5 == 4 || (round % 5 == 1 && me == root) ? size : 1));
    weft_tensor_unref(all);
    return status;
}

/* Operations until one fails; the parent kills a worker meanwhile. Then those who live go on. */
static int run_dies(void)
{
    static const int64_t counts[] = {1, 3000, 16384, 60000};
    weft_agent *agent = open_worker();
    weft_group *group = open_warm(agent, "all"), *less;
    weft_status status = WEFT_OK;
    child_say('r');
    for (int round = 0; !status; round++) {
        weft_tensor *x = tensor_full(WEFT_SHAPE(counts[round % 4]), WEFT_DTYPE_FLOAT32, 1);
        status = operate(group, round, x);
        weft_tensor_unref(x);
    }
    MUST_BE(status, WEFT_ERR_PEER_DEAD);
    MUST_OK(weft_group_shrink(group, 40000, &less, NULL));
    MUST(weft_group_size(less) == weft_group_size(group) - 1);
    for (int i = 0; i < WARM; i++)
        MUST_OK(weft_group_barrier(less, 40000));
    weft_group_close(group);
    weft_group_close(less);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER)); /* not _stop: others may still be in the last barrier */
    return 0;
}

/* Rank 2, which leads its host, is stopped for less than the bound: all operations succeed. */
static int run_stops(void)
{
    weft_agent *agent = open_worker();
    weft_group *group = open_warm(agent, "all");
    child_say('r');
    double until = child_now_s() + 0.4;
    for (float go = 1; go > 0;) {
        weft_tensor *x = tensor_full(WEFT_SHAPE(10), WEFT_DTYPE_FLOAT32, child_now_s() < until);
        MUST_OK(weft_group_allreduce(group, x, WEFT_OP_MIN, 40000));
        go = ((float *)weft_tensor_data(x))[0];
        weft_tensor_unref(x);
    }
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* A leader, then another member does not call: the others name it when the time is over. */
static int run_missing(void)
{
    weft_agent *agent = open_worker();
    for (int missing = 2; missing <= 3; missing++) {
        char name[32], words[32];
        snprintf(name, sizeof(name), "all-%d", missing);
        snprintf(words, sizeof(words), "rank %d", missing);
        weft_group *group = open_warm(agent, name);
        if (weft_agent_rank(agent) == missing) {
            while (!weft_group_error(group))
                usleep(1000);
        } else {
            MUST_BE(weft_group_barrier(group, 2000), WEFT_ERR_TIMEOUT);
            MUST(strstr(weft_error_message(weft_group_error(group)), words));
        }
        weft_group_close(group);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* Rank 3, which does not lead its host, calls: another count; another kind; a size for messages; or cancels. */
static int run_disagrees(void)
{
    weft_agent *agent = open_worker();
    bool is_odd = weft_agent_rank(agent) == 3;
    for (int way = 0; way < 4; way++) {
        char name[32];
        snprintf(name, sizeof(name), "all-%d", way);
        weft_group *group = open_warm(agent, name);
        crew_meet(agent);
        int64_t count = is_odd && way == 0 ? 11 : is_odd && way == 2 ? 100000 : 10;
        weft_tensor *x = tensor_zeros(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32);
        weft_status wanted = way == 3 ? WEFT_ERR_CANCELLED : WEFT_ERR_STATE;
        if (is_odd && way == 1) {
            MUST_BE(weft_group_barrier(group, WEFT_FOREVER), wanted);
        } else if (way == 3 && weft_agent_rank(agent) == 2) { /* it does not take part */
            while (!weft_group_error(group))
                usleep(1000);
        } else if (is_odd && way == 3) {
            weft_future *future;
            MUST_OK(weft_group_allreduce_async(group, x, WEFT_OP_SUM, WEFT_FOREVER, &future));
            MUST_OK(weft_future_cancel(future));
            MUST_BE(weft_future_wait(future, WEFT_FOREVER), wanted);
            weft_future_unref(future);
        } else {
            MUST_BE(weft_group_allreduce(group, x, WEFT_OP_SUM, WEFT_FOREVER), wanted);
        }
        weft_tensor_unref(x);
        weft_group_close(group);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* ---- A worker that plays several parts ------------------------------------------------------------------------ */

static const child_role roles[] = {
    {"results", run_results}, {"many", run_many},   {"leaves", run_leaves},   {"dies", run_dies},
    {"roots", run_roots},     {"stops", run_stops}, {"missing", run_missing}, {"disagrees", run_disagrees},
};

/* Each worker moves to its host first. */
static int run_parts(void)
{
    MUST(move_to(host_of[atoi(getenv("RANK"))]));
    return crew_work(roles, sizeof(roles) / sizeof(*roles));
}

/* ---- The parent ----------------------------------------------------------------------------------------------- */

static void test_results(void **state)
{
    for (int count = 3; count <= MEMBERS; count += 3)
        crew_play(count, "results");
}

static void test_roots(void **state)
{
    for (int count = 4; count <= MEMBERS; count++) /* 2 + 2; 2 + 3; 2 + 3 + 1 */
        crew_play(count, "roots");
}

static void test_many_at_once(void **state)
{
    crew_play(MEMBERS, "many");
}

static void test_leave_after_barrier(void **state)
{
    for (int i = 0; i < 3; i++)
        crew_play(5, "leaves");
}

static void test_disagreement(void **state)
{
    crew_play(5, "disagrees");
}

static void test_missing(void **state)
{
    crew_play(5, "missing");
}

static void test_stop(void **state)
{
    crew_start(5, "stops");
    crew_hear(5, 'r');
    for (int i = 0; i < 3; i++) {
        child_signal(&crew[2], SIGSTOP);
        usleep(50000);
        child_signal(&crew[2], SIGCONT);
        usleep(30000);
    }
    crew_hear(5, 'e');
}

/* Members and leaders of hosts, and the one that is alone on its host. */
static void test_death(void **state)
{
    for (int victim = 1; victim < MEMBERS; victim += victim == 2 ? 3 : 1) {
        crew_start(MEMBERS, "dies");
        crew_hear(MEMBERS, 'r');
        usleep((useconds_t)(3000 + 11000 * victim));
        child_kill(&crew[victim]);
        crew_hear(MEMBERS, 'e');
    }
}

int main(int argc, char **argv)
{
    static const child_role worker[] = {{"parts", run_parts}};
    int played = child_play(argc, argv, worker, 1);
    if (played >= 0)
        return played;
    if (!can_move())
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    setenv("WEFT_FABRIC", "host,tcp", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),      cmocka_unit_test(test_roots),
        cmocka_unit_test(test_many_at_once), cmocka_unit_test(test_leave_after_barrier),
        cmocka_unit_test(test_death),        cmocka_unit_test(test_stop),
        cmocka_unit_test(test_missing),      cmocka_unit_test(test_disagreement),
    };
    return cmocka_run_group_tests(tests, NULL, crew_dismiss);
}
