/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_quick.c - blocking operations in memory that the members share, which their threads run without the lock
 * (coll/share.c, QUICK). They allocate nothing. Other threads may use the group meanwhile, close it or end it, and an
 * operation that takes long becomes an ordinary one. This program is its own workers (crew.h).
 */
#include "coll/crew.h"
#include "tensors.h"

#include <limits.h>
#include <pthread.h>
#include <unistd.h>

enum { DEATH_MS = 2000, QUICK_MS = 10 /* of coll/operation.c */ };

static atomic_int allocations;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);

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

/* ---- In a worker ------------------------------------------------------------------------------------------------- */

/* Each member gives its index plus one. */
static void add_up(weft_group *group, weft_tensor *x, weft_op how)
{
    int size = (int)weft_group_size(group), sum = size * (size + 1) / 2;
    float *data = weft_tensor_data(x), wanted = how == WEFT_OP_AVG ? (float)sum / (float)size : (float)sum;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        data[i] = (float)weft_group_index(group) + 1;
    MUST_OK(weft_group_allreduce(group, x, how, 40000));
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        MUST(data[i] == wanted);
}

/*
 * In the line of the flag; one more than fits it; in two steps; in several turns. Operations that take long, on a busy
 * machine, allocate. Without them there is a window in which almost none allocates.
 */
static int run_allocates(void)
{
    enum { WINDOWS = 12, ROUNDS = 30 };
    static const int64_t counts[] = {1, 12, 13, 5000, 40000};
    weft_agent *agent = crew_open(DEATH_MS);
    weft_group *group = crew_shared(agent, "all");
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        weft_tensor *x = tensor_zeros(WEFT_SHAPE(counts[i]), WEFT_DTYPE_FLOAT32);
        int least = INT_MAX;
        for (int window = 0; window < WINDOWS; window++) {
            int before = atomic_load(&allocations);
            for (int round = 0; round < ROUNDS; round++) {
                add_up(group, x, round % 2 ? WEFT_OP_AVG : WEFT_OP_SUM);
                MUST_OK(weft_group_barrier(group, 40000));
            }
            int made = atomic_load(&allocations) - before;
            least = made < least ? made : least;
        }
        MUST(least < ROUNDS);
        weft_tensor_unref(x);
    }
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* Some are ordinary ones: of a tensor that is not contiguous, late, with another operation before them. */
static int run_mixed(void)
{
    enum { ROUNDS = 120 };
    weft_agent *agent = crew_open(DEATH_MS);
    weft_group *group = crew_shared(agent, "all");
    int me = weft_group_index(group), size = (int)weft_group_size(group);
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(9000), WEFT_DTYPE_FLOAT32);
    for (int round = 0; round < ROUNDS; round++) {
        weft_future *done = NULL;
        weft_tensor *y = tensor_full(WEFT_SHAPE(1 + round % 3 * 100000), WEFT_DTYPE_FLOAT32, me == round % size);
        weft_tensor *rows = tensor_full(WEFT_SHAPE(4, 3), WEFT_DTYPE_FLOAT32, 1);
        weft_tensor *across = tensor_transpose(rows, 0, 1);
        MUST(y && across);
        if (round % 4 == 1)
            MUST_OK(weft_group_allreduce_async(group, y, WEFT_OP_SUM, 40000, &done));
        if (round % 10 == 2 && me == round / 10 % size)
            usleep(3 * QUICK_MS * 1000 * (useconds_t)(round % 20 == 2)); /* the others become ordinary ones */
        add_up(group, x, WEFT_OP_SUM);
        if (!done && round % 5 == 3)
            MUST_OK(weft_group_broadcast(group, y, (size_t)(round % size), 40000));
        MUST_OK(weft_group_allreduce(group, across, WEFT_OP_SUM, 40000));
        MUST(((float *)weft_tensor_data(rows))[11] == (float)size);
        if (done)
            MUST_OK(weft_future_wait(done, WEFT_FOREVER));
        MUST(!(done || round % 5 == 3) || ((float *)weft_tensor_data(y))[0] == 1);
        weft_future_unref(done);
        weft_tensor_unref(across);
        weft_tensor_unref(rows);
        weft_tensor_unref(y);
    }
    weft_tensor_unref(x);
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

static void *run_barriers(void *arg)
{
    for (int i = 0; i < 300; i++)
        MUST_OK(weft_group_barrier(arg, 40000));
    return NULL;
}

/* Several threads of each member use one group. */
static int run_threads(void)
{
    enum { THREADS = 3 };
    pthread_t threads[THREADS];
    weft_agent *agent = crew_open(DEATH_MS);
    weft_group *group = crew_shared(agent, "all");
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, run_barriers, group) == 0);
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_join(threads[i], NULL) == 0);
    weft_group_close(group);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

typedef struct waiting {
    weft_group *group;
    weft_status status;
    _Atomic pid_t thread; /* 0: not yet */
} waiting;

static void *wait_in_vain(void *arg)
{
    waiting *w = arg;
    atomic_store(&w->thread, gettid());
    w->status = weft_group_barrier(w->group, WEFT_FOREVER);
    return NULL;
}

/* Returns when the thread sleeps: so it is in its operation, and its group may be closed. */
static void await_sleep(waiting *w)
{
    char name[64], state = 0;
    while (state != 'S') {
        snprintf(name, sizeof(name), "/proc/self/task/%d/stat", (int)atomic_load(&w->thread));
        FILE *stat = fopen(name, "r");
        if (stat && fscanf(stat, "%*d (%*[^)]) %c", &state) != 1)
            state = 0;
        if (stat)
            fclose(stat);
    }
}

/* Another thread ends or closes the group while this one waits, soon or when the operation is an ordinary one. */
static int run_ends(void)
{
    weft_agent *agent = crew_open(DEATH_MS);
    int rank = weft_agent_rank(agent);
    for (int i = 0; i < 20; i++) {
        char name[32];
        snprintf(name, sizeof(name), "all-%d", i);
        waiting w = {.group = crew_shared(agent, name)};
        pthread_t thread;
        bool closes = rank == 1 && i % 2;
        crew_meet(agent);
        if (rank == 0) {
            while (!weft_group_error(w.group)) /* it does not take part */
                usleep(1000);
        } else {
            MUST(pthread_create(&thread, NULL, wait_in_vain, &w) == 0);
            if (rank == 1) {
                await_sleep(&w);
                usleep((useconds_t)(i / 4 % 3 * QUICK_MS * 1000));
            }
            if (closes)
                weft_group_close(w.group);
            else if (rank == 1)
                weft_group_abort(w.group, NULL);
            MUST(pthread_join(thread, NULL) == 0);
            MUST_BE(w.status, WEFT_ERR_CANCELLED);
        }
        if (!closes)
            weft_group_close(w.group);
        crew_meet(agent);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

/* Time limits that are shorter than the time after which an operation becomes an ordinary one, and longer ones. */
static int run_late(void)
{
    weft_agent *agent = crew_open(DEATH_MS);
    for (int i = 0; i < 6; i++) {
        char name[32];
        snprintf(name, sizeof(name), "all-%d", i);
        weft_group *group = crew_shared(agent, name);
        crew_meet(agent);
        if (weft_agent_rank(agent) == 1) {
            while (!weft_group_error(group))
                usleep(1000);
        } else {
            MUST_BE(weft_group_barrier(group, 1 + i % 3 * 2 * QUICK_MS), WEFT_ERR_TIMEOUT);
            MUST(strstr(weft_error_message(weft_group_error(group)), "rank 1") != NULL);
        }
        weft_group_close(group);
        crew_meet(agent);
    }
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return 0;
}

static const child_role roles[] = {
    {"allocates", run_allocates}, {"mixed", run_mixed}, {"threads", run_threads},
    {"ends", run_ends},           {"late", run_late},
};

static int run_parts(void)
{
    return crew_work(roles, sizeof(roles) / sizeof(*roles));
}

/* ---- The parent -------------------------------------------------------------------------------------------------- */

static void test_allocations(void **state)
{
    crew_play(2, "allocates");
}

static void test_mixed(void **state)
{
    crew_play(2, "mixed");
    crew_play(5, "mixed");
}

static void test_threads(void **state)
{
    crew_play(3, "threads");
}

static void test_ends(void **state)
{
    crew_play(3, "ends");
}

static void test_late(void **state)
{
    crew_play(3, "late");
}

int main(int argc, char **argv)
{
    static const child_role worker[] = {{"parts", run_parts}};
    int played = child_play(argc, argv, worker, 1);
    if (played >= 0)
        return played;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    setenv("WEFT_FABRIC", "host,tcp", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_allocations), cmocka_unit_test(test_mixed), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_ends),        cmocka_unit_test(test_late),
    };
    return cmocka_run_group_tests(tests, NULL, crew_dismiss);
}
