/* SPDX-License-Identifier: Apache-2.0 */
/* test_coll_carrier.c - operations that functions of the program carry, and rules for algorithms. */
#include "coll/coll.h"
#include "tensors.h"

#include <unistd.h>

enum { SIZE = 3 };

/* What a carrier sees: here it carries through another group of weft's. */
typedef struct bridge {
    weft_group *through;
    atomic_int calls, running, dropped;
    weft_status fails;
} bridge;

static weft_tensor *over(void *data, size_t count, weft_dtype dtype)
{
    weft_tensor *x = tensor_wrap(WEFT_SHAPE((int64_t)count), dtype, data, NULL, NULL, NULL);
    MUST(x);
    return x;
}

static void enter(bridge *b)
{
    MUST(atomic_fetch_add(&b->running, 1) == 0); /* one at a time */
    atomic_fetch_add(&b->calls, 1);
}

static weft_status leave(bridge *b, weft_status status)
{
    atomic_fetch_sub(&b->running, 1);
    return b->fails ? b->fails : status;
}

static weft_status carry_barrier(void *arg)
{
    bridge *b = arg;
    enter(b);
    return leave(b, weft_group_barrier(b->through, 20000));
}

static weft_status carry_allreduce(void *arg, void *data, size_t count, weft_dtype dtype, weft_op how)
{
    bridge *b = arg;
    enter(b);
    weft_tensor *x = over(data, count, dtype);
    weft_status status = weft_group_allreduce(b->through, x, how, 20000);
    weft_tensor_unref(x);
    return leave(b, status);
}

static void count_drop(void *arg)
{
    atomic_fetch_add(&((bridge *)arg)->dropped, 1);
}

static void carried(weft_agent *agent, void *arg)
{
    static const weft_group_carrier table = {.barrier = carry_barrier, .allreduce = carry_allreduce};
    bridge b = {0};
    weft_group *group;
    weft_future *futures[10];
    weft_tensor *x[10];
    MUST_OK(weft_group_open(agent, "through", NULL, 0, 0, &b.through, NULL));
    MUST_OK(weft_group_open(agent, "carried", NULL, 0, 0, &group, NULL));
    MUST_BE(weft_group_set_carrier(NULL, &table, &b, count_drop), WEFT_ERR_INVALID);
    MUST_BE(weft_group_set_carrier(group, NULL, &b, count_drop), WEFT_ERR_INVALID);
    MUST(b.dropped == 2);
    MUST_OK(weft_group_set_carrier(group, &table, &b, count_drop));
    for (int i = 0; i < 10; i++) {
        x[i] = tensor_full(WEFT_SHAPE(100 + i), WEFT_DTYPE_FLOAT32, i);
        MUST_OK(weft_group_allreduce_async(group, x[i], WEFT_OP_SUM, 20000, &futures[i]));
    }
    for (int i = 0; i < 10; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        MUST(weft_tensor_get_f64(x[i], 99) == i * SIZE);
        weft_future_unref(futures[i]);
    }
    MUST_OK(weft_group_barrier(group, 20000));
    MUST_OK(weft_group_broadcast(group, x[3], 1, 20000)); /* weft's own, as there is no slot */
    MUST(b.calls == 11);
    MUST_BE(weft_group_set_carrier(group, &table, &b, NULL), WEFT_ERR_STATE);
    MUST_OK(weft_group_barrier(group, 20000));
    b.fails = WEFT_ERR_SYSTEM;
    MUST_BE(weft_group_barrier(group, 20000), WEFT_ERR_SYSTEM); /* on each of them, as each carrier fails */
    char words[64];
    snprintf(words, sizeof(words), "rank %d: the carrier's barrier: ", weft_error_worker(weft_group_error(group)));
    MUST(strstr(weft_error_message(weft_group_error(group)), words));
    MUST_BE(weft_group_barrier(group, 20000), WEFT_ERR_SYSTEM);
    weft_group_close(group);
    MUST_OK(weft_group_barrier(b.through, 20000));
    weft_group_close(b.through);
    while (b.dropped < 3)
        world_sleep_ms(arg, 1); /* the last operation may still be let go of */
    for (int i = 0; i < 10; i++)
        weft_tensor_unref(x[i]);
}

WORLD_TEST(carried, 2, 1, .size = SIZE)

#define AT_ONCE 24 /* more than an agent has workers */

static weft_status wait_for_all(void *arg)
{
    atomic_int *entered = arg;
    atomic_fetch_add(entered, 1);
    while (atomic_load(entered) < AT_ONCE)
        usleep(1000); /* as an MPI would: weft knows nothing of this wait */
    return WEFT_OK;
}

/* Functions of different groups may wait for each other. */
static void many_carried(weft_agent *agent, void *arg)
{
    static const weft_group_carrier table = {.barrier = wait_for_all};
    atomic_int entered = 0;
    weft_group *groups[AT_ONCE];
    weft_future *futures[AT_ONCE];
    (void)arg;
    for (int i = 0; i < AT_ONCE; i++) {
        char name[24];
        snprintf(name, sizeof(name), "carried%d", i);
        MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &groups[i], NULL));
        MUST_OK(weft_group_set_carrier(groups[i], &table, &entered, NULL));
        MUST_OK(weft_group_barrier_async(groups[i], WEFT_FOREVER, &futures[i]));
    }
    for (int i = 0; i < AT_ONCE; i++) {
        MUST_OK(weft_future_wait(futures[i], WEFT_FOREVER));
        weft_future_unref(futures[i]);
        weft_group_close(groups[i]);
    }
}

WORLD_TEST(many_carried, 0, 1, .size = 1)

typedef struct word {
    atomic_bool entered, go_on;
} word;

static weft_status wait_for_word(void *arg)
{
    word *w = arg;
    atomic_store(&w->entered, true);
    while (!atomic_load(&w->go_on))
        usleep(1000);
    return WEFT_OK;
}

/* A time limit ends the group at once, and the operation when its function returns. If the limit is over before the
 * function begins, as on a busy machine, the operation ends too: then once more with a longer one. */
static void late_carrier(weft_agent *agent, void *arg)
{
    static const weft_group_carrier table = {.barrier = wait_for_word};
    word told = {false};
    (void)arg;
    for (int64_t limit_ms = 20; !atomic_load(&told.entered); limit_ms *= 2) {
        weft_group *group;
        weft_future *late;
        MUST_OK(weft_group_open(agent, "late", NULL, 0, 0, &group, NULL));
        MUST_OK(weft_group_set_carrier(group, &table, &told, NULL));
        MUST_OK(weft_group_barrier_async(group, limit_ms, &late));
        while (!weft_group_error(group))
            usleep(1000);
        MUST_BE(weft_error_code(weft_group_error(group)), WEFT_ERR_TIMEOUT);
        MUST_BE(weft_group_barrier(group, 0), WEFT_ERR_TIMEOUT);
        MUST(!atomic_load(&told.entered) || !weft_future_done(late));
        atomic_store(&told.go_on, true);
        MUST_BE(weft_future_wait(late, WEFT_FOREVER), WEFT_ERR_TIMEOUT);
        atomic_store(&told.go_on, atomic_load(&told.entered));
        weft_future_unref(late);
        weft_group_close(group);
    }
}

WORLD_TEST(late_carrier, 0, 1, .size = 1)

typedef struct own_group {
    weft_group *group, *other; /* `other`: called in place of the group itself */
    weft_status inner;
} own_group;

static weft_status call_own_group(void *arg)
{
    own_group *own = arg;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32);
    weft_future *future;
    MUST_BE(weft_group_allreduce(own->group, x, WEFT_OP_SUM, 20000), WEFT_ERR_STATE);
    MUST_BE(weft_group_barrier_async(own->group, 20000, &future), WEFT_ERR_STATE);
    weft_tensor_unref(x);
    return WEFT_OK;
}

/* A function of the carrier calls its own group: the call is refused, since it would wait for itself. */
static void calls_itself(weft_agent *agent, void *arg)
{
    static const weft_group_carrier table = {.barrier = call_own_group};
    own_group own = {0};
    weft_tensor *x = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 1);
    (void)arg;
    MUST_OK(weft_group_open(agent, "own", NULL, 0, 0, &own.group, NULL));
    MUST_OK(weft_group_set_carrier(own.group, &table, &own, NULL));
    MUST_OK(weft_group_barrier(own.group, 20000)); /* the calls inside it took no part */
    MUST_OK(weft_group_allreduce(own.group, x, WEFT_OP_SUM, 20000));
    MUST(weft_tensor_get_f64(x, 2) == SIZE);
    weft_tensor_unref(x);
    weft_group_close(own.group);
}

WORLD_TEST(calls_itself, 2, 1, .size = SIZE)

static weft_status call_other_group(void *arg)
{
    own_group *own = arg;
    own->inner = weft_group_barrier(own->other, 200);
    return own->inner;
}

/* Functions of two carriers call each other's group in a circle. The time limits end that: no call waits forever. */
static void calls_in_a_circle(weft_agent *agent, void *arg)
{
    static const weft_group_carrier table = {.barrier = call_other_group};
    own_group a = {0}, b = {0};
    (void)arg;
    MUST_OK(weft_group_open(agent, "a", NULL, 0, 0, &a.group, NULL));
    MUST_OK(weft_group_open(agent, "b", NULL, 0, 0, &b.group, NULL));
    a.other = b.group;
    b.other = a.group;
    MUST_OK(weft_group_set_carrier(a.group, &table, &a, NULL));
    MUST_OK(weft_group_set_carrier(b.group, &table, &b, NULL));
    MUST_BE(weft_group_barrier(a.group, WEFT_FOREVER), WEFT_ERR_TIMEOUT);
    MUST(a.inner && b.inner == WEFT_ERR_TIMEOUT);
    weft_group_close(a.group);
    weft_group_close(b.group);
}

WORLD_TEST(calls_in_a_circle, 1, 1, .size = 1)

static void printed(weft_agent *agent, void *arg)
{
    char text[4096] = "";
    weft_group *group;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    MUST_OK(weft_group_set_algorithms(group, "allreduce 4 100 tree"));
    FILE *to = fmemopen(text, sizeof(text), "w");
    weft_group_print_algorithms(group, to);
    fclose(to);
    MUST(strncmp(text, "allreduce 4 100 tree\n", 21) == 0);
    MUST_OK(weft_group_set_algorithms(group, text)); /* what is printed can be read */
    weft_group_close(group);
}

WORLD_TEST(printed, 1, 0, .size = 1)

UNIT_MAIN(test_carried, test_many_carried, test_late_carrier, test_calls_itself, test_calls_in_a_circle, test_printed)
