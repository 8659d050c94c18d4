/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_rref_objects.c - objects of the user's own types behind references, calls on them, the dump and the leak
 * report. */
#include "rpc/rref_counts.h"

#include <cjson/cJSON.h>

typedef struct counter {
    int64_t sum;
} counter;

static world *now;
static atomic_int made, dropped, warnings;
static _Atomic(weft_call *) held;
static _Atomic(weft_rref *) left;

static void drop_counter(void *object)
{
    atomic_fetch_add(&dropped, 1);
    free(object);
}

static const weft_object_type counter_type = {.name = "counter", .drop = drop_counter};
static const weft_object_type other_type = {.name = "something else", .drop = drop_counter};

static counter *new_counter(int64_t sum)
{
    counter *c = malloc(sizeof(*c));
    MUST(c);
    c->sum = sum;
    atomic_fetch_add(&made, 1);
    return c;
}

static weft_status run_new(weft_call *call, void *user)
{
    weft_call_give_object(call, &counter_type, new_counter(weft_call_i64(call, 0)));
    return WEFT_OK;
}

static weft_status run_new_twice(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(1)));
    weft_call_give_object(call, &counter_type, new_counter(1));
    weft_call_give_object(call, &counter_type, new_counter(2)); /* the last one counts */
    return WEFT_OK;
}

static weft_status run_new_and_fail(weft_call *call, void *user)
{
    weft_call_give_object(call, &counter_type, new_counter(1));
    return WEFT_ERR_SHAPE;
}

static weft_status run_hold(weft_call *call, void *user)
{
    atomic_store(&held, weft_call_defer(call));
    return WEFT_DEFERRED;
}

static weft_status run_add(weft_call *call, void *user)
{
    void *object;
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &counter_type, 5000, &object);
    if (status)
        return status;
    counter *c = object;
    c->sum += weft_call_i64(call, 1);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(c->sum)));
    return WEFT_OK;
}

static weft_status run_fork(weft_call *call, void *user)
{
    void *object;
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &counter_type, 5000, &object);
    if (!status)
        weft_call_give_object(call, &counter_type, new_counter(((counter *)object)->sum));
    return status;
}

static weft_status run_leave(weft_call *call, void *user)
{
    atomic_store(&left, weft_rref_ref(weft_call_rref(call, 0)));
    return WEFT_OK;
}

static weft_status run_several(weft_call *call, void *user)
{
    weft_value values[2] = {weft_of_i64(10), weft_of_i64(11)};
    weft_call_give(call, (weft_args){values, (size_t)weft_call_i64(call, 0)});
    return WEFT_OK;
}

static weft_function functions[10] = {
    {.name = "new", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_ANY}, .run = run_new},
    {.name = "new twice", .gives = {WEFT_TYPE_ANY}, .run = run_new_twice},
    {.name = "new and fail", .gives = {WEFT_TYPE_ANY}, .run = run_new_and_fail},
    {.name = "hold", .gives = {WEFT_TYPE_ANY}, .run = run_hold},
    {.name = "add", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
    {.name = "fork", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_ANY}, .run = run_fork},
    {.name = "leave", .takes = {WEFT_TYPE_RREF}, .run = run_leave},
    [9] = {.name = "several", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_REST}, .run = run_several},
};

static weft_rref *new_remote(weft_agent *agent, int rank, const char *function, weft_args args)
{
    weft_rref *rref;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), function, args, NULL, &rref));
    return rref;
}

static void await_dropped(int count)
{
    for (int i = 0; i < 3000 && atomic_load(&dropped) != count; i++)
        world_sleep_ms(now, 1);
    MUST(atomic_load(&dropped) == count);
}

static void count_warnings(weft_log_level level, const char *line, void *arg)
{
    bool leak = level == WEFT_LOG_WARN && (strstr(line, "were left") || strstr(line, "left: "));
    if (leak || (level == WEFT_LOG_ERROR && strstr(line, "counter")))
        atomic_fetch_add(&warnings, 1);
}

/* ---- Objects -------------------------------------------------------------------------------------------------- */

static void objects(weft_agent *agent)
{
    for (int rank = 0; rank < 2; rank++) {
        int before = atomic_load(&dropped);
        weft_values *got;
        int64_t sum;
        weft_rref *rref = new_remote(agent, rank, "new", WEFT_VALUES(weft_of_i64(40))), *copy;
        MUST_OK(weft_rref_rpc_sync(rref, "add", WEFT_VALUES(weft_of_i64(2)), NULL, &got));
        MUST_OK(weft_values_get_i64(got, 0, &sum));
        MUST(sum == 42);
        weft_values_unref(got);
        MUST_BE(weft_rref_to_here(rref, 1000, &got, NULL), WEFT_ERR_TYPE);
        MUST_OK(weft_rref_rpc_remote(rref, "fork", WEFT_NO_VALUES, NULL, &copy));
        MUST(weft_rref_owner(copy) == rank);
        weft_future *future;
        MUST_OK(weft_rref_rpc_async(copy, "add", WEFT_VALUES(weft_of_i64(-2)), NULL, &future));
        weft_rref_unref(copy); /* the call keeps it */
        MUST_OK(weft_future_wait(future, 5000));
        MUST_OK(weft_values_get_i64(weft_future_values(future), 0, &sum));
        MUST(sum == 40);
        weft_future_unref(future);
        await_dropped(before + 1);
        MUST_BE(weft_rref_rpc_sync(rref, "no such", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_NOT_FOUND);
        weft_rref_unref(rref);
        await_dropped(before + 2);
    }
    MUST(made == dropped);
}

static void objects_that_fail(weft_agent *agent)
{
    for (int rank = 0; rank < 2; rank++) {
        weft_error *error = NULL;
        int before = atomic_load(&dropped);
        /* A common call cannot bring an object. */
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(rank), "new", WEFT_VALUES(weft_of_i64(1)),
                              &(weft_rpc_options){.error = &error}, NULL),
                WEFT_ERR_REMOTE);
        MUST(weft_error_handler_code(error) == WEFT_ERR_TYPE);
        weft_error_unref(error);
        await_dropped(before + 1);
        weft_rref *rref = new_remote(agent, rank, "new twice", WEFT_NO_VALUES);
        await_dropped(before + 2);
        weft_rref_unref(rref);
        await_dropped(before + 3);
        rref = new_remote(agent, rank, "new and fail", WEFT_NO_VALUES);
        await_dropped(before + 4);
        weft_future *done = weft_rref_created(rref);
        MUST_BE(weft_future_wait(done, 5000), WEFT_ERR_REMOTE);
        weft_future_unref(done);
        weft_rref_unref(rref);
        /* Its creator gave up, then let go: what is made too late goes at once. */
        /* Where time is real the limit may end before the handler begins, which then never does: a longer one. */
        for (int64_t limit_ms = 10; !atomic_load(&held); limit_ms *= 4) {
            MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), "hold", WEFT_NO_VALUES,
                                    &(weft_rpc_options){.timeout_ms = limit_ms}, &rref));
            done = weft_rref_created(rref);
            MUST_BE(weft_future_wait(done, WEFT_FOREVER), WEFT_ERR_TIMEOUT);
            weft_future_unref(done);
            weft_rref_unref(rref);
            for (int i = 0; i < 200 && !atomic_load(&held); i++)
                world_sleep_ms(now, 1);
        }
        weft_call *call = atomic_exchange(&held, NULL);
        weft_call_give_object(call, &counter_type, new_counter(1));
        weft_call_finish(call, WEFT_OK);
        await_dropped(before + 5);
    }
    MUST(made == dropped);
}

static void types(weft_agent *agent)
{
    weft_rref *rref, *value;
    void *object;
    counter *c = new_counter(1);
    int before = atomic_load(&dropped);
    MUST_OK(weft_rref_create_typed(agent, &counter_type, c, &rref, NULL));
    MUST_OK(weft_rref_local_typed(rref, &counter_type, 0, &object));
    MUST(object == c);
    MUST_OK(weft_rref_local_object(rref, &object));
    atomic_store(&warnings, 0);
    weft_logging_set_sink(count_warnings, NULL);
    MUST_BE(weft_rref_local_typed(rref, &other_type, 0, &object), WEFT_ERR_TYPE);
    MUST_OK(weft_rref_create(agent, weft_of_i64(5), &value, NULL));
    MUST_BE(weft_rref_local_typed(value, &counter_type, 0, &object), WEFT_ERR_TYPE);
    weft_logging_set_sink(NULL, NULL);
    MUST(atomic_load(&warnings) == 2);
    weft_future *there = weft_rref_created(value);
    MUST_OK(weft_future_wait(there, 1000));
    weft_future_unref(there);
    weft_rref_unref(value);
    weft_rref_unref(rref);
    await_dropped(before + 1);
    value = new_remote(agent, 1, "new", WEFT_VALUES(weft_of_i64(1)));
    MUST_BE(weft_rref_local_typed(value, &counter_type, 0, &object), WEFT_ERR_STATE);
    weft_rref_unref(value);
    await_dropped(before + 2);
    MUST(made == dropped);
}

/* ---- The dump ------------------------------------------------------------------------------------------------- */

static int size_of(const cJSON *object, const char *key)
{
    const cJSON *array = cJSON_GetObjectItemCaseSensitive(object, key);
    MUST(cJSON_IsArray(array));
    return cJSON_GetArraySize(array);
}

static const char *text_of(const cJSON *object, const char *key)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(object, key));
    MUST(text);
    return text;
}

static void dump(weft_agent *agent)
{
    weft_rref *mine, *theirs = new_remote(agent, 1, "new", WEFT_VALUES(weft_of_i64(3)));
    weft_future *future, *done = weft_rref_created(theirs);
    MUST_OK(weft_rref_create_typed(agent, &counter_type, new_counter(1), &mine, NULL));
    MUST_OK(weft_future_wait(done, 5000));
    weft_future_unref(done);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "leave", WEFT_VALUES(weft_of_rref(mine)), NULL, NULL));
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "hold", WEFT_NO_VALUES, NULL, &future));
    while (!atomic_load(&held))
        world_sleep_ms(now, 1);
    char *text = dump_text(agent);
    cJSON *json = cJSON_Parse(text);
    MUST(json);
    MUST(size_of(json, "workers") == 2 && size_of(json, "values") == 1 && size_of(json, "references") == 1);
    MUST(size_of(json, "calls") == 1 && size_of(json, "serving") == 0);
    const cJSON *value = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "values"), 0);
    MUST(strcmp(text_of(value, "what"), "object") == 0 && strcmp(text_of(value, "type"), "counter") == 0);
    const cJSON *fork = cJSON_GetArrayItem(cJSON_GetObjectItem(value, "forks"), 0);
    MUST(cJSON_GetObjectItem(fork, "rank")->valueint == 1 && cJSON_GetObjectItem(fork, "count")->valueint == 1);
    const cJSON *call = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "calls"), 0);
    MUST(strcmp(text_of(call, "function"), "hold") == 0 && strcmp(text_of(call, "state"), "sent") == 0);
    MUST(dump_number(agent, "unconfirmed_count") == 0 && dump_number(agent, "awaiting_confirmation") == 0);
    cJSON_Delete(json);
    free(text);
    MUST(ask_number(agent, 1, "serving_count") == 2); /* the one held, and the question */
    weft_rref_unref(theirs);
    weft_rref_unref(mine);
    weft_rref_unref(atomic_exchange(&left, NULL)); /* of rank 1's, in this process */
    weft_call *waiting = atomic_exchange(&held, NULL);
    weft_call_give(waiting, WEFT_VALUES(weft_of_null()));
    weft_call_finish(waiting, WEFT_OK);
    MUST_OK(weft_future_wait(future, 5000));
    weft_future_unref(future);
    await_number(now, agent, 0, "value_count", 0);
    await_number(now, agent, 1, "value_count", 0);
}

/* ---- to_here, here and there ---------------------------------------------------------------------------------- */

/* One value, whatever was given: it may be asked for before it has been made, and later. */
static void must_be_one(weft_rref *rref, int64_t given)
{
    weft_values *got;
    int64_t n;
    MUST_OK(weft_rref_to_here(rref, 5000, &got, NULL));
    MUST(weft_values_count(got) == 1);
    if (given)
        MUST_OK(weft_values_get_i64(got, 0, &n));
    else
        MUST(weft_values_args(got).items[0].type == WEFT_TYPE_NULL);
    MUST(!given || n == 10);
    weft_values_unref(got);
}

static void to_here(weft_agent *agent)
{
    for (int rank = 0; rank < 2; rank++) {
        weft_future *future;
        for (int64_t given = 0; given <= 2; given++) {
            weft_rref *rref = new_remote(agent, rank, "several", WEFT_VALUES(weft_of_i64(given)));
            for (int time = 0; time < 3; time++)
                must_be_one(rref, given);
            weft_rref_unref(rref);
        }
        weft_rref *object = new_remote(agent, rank, "new", WEFT_VALUES(weft_of_i64(1)));
        for (int time = 0; time < 2; time++) {
            MUST_OK(weft_rref_to_here_async(object, 5000, &future));
            MUST_BE(weft_future_wait(future, 5000), WEFT_ERR_TYPE);
            const weft_error *error = weft_future_error(future);
            MUST(weft_error_worker(error) == rank && strstr(weft_error_message(error), "type, counter, which stays"));
            weft_future_unref(future);
        }
        weft_rref_unref(object);
    }
}

/* ---- Leaks ---------------------------------------------------------------------------------------------------- */

static void leave_one(weft_agent *agent)
{
    weft_rref *rref;
    MUST_OK(weft_rref_create_typed(agent, &counter_type, new_counter(1), &rref, NULL));
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "leave", WEFT_VALUES(weft_of_rref(rref)), NULL, NULL));
    weft_rref_unref(rref);
}

/* An object that holds a handle to itself: nobody else has one. */
typedef struct knot {
    weft_rref *self;
} knot;

static knot *tied;

static void drop_knot(void *object)
{
    atomic_fetch_add(&dropped, 1);
    free(object);
}

static const weft_object_type knot_type = {.name = "knot", .drop = drop_knot};

static void tie(weft_agent *agent)
{
    tied = calloc(1, sizeof(*tied));
    MUST_OK(weft_rref_create_typed(agent, &knot_type, tied, &tied->self, NULL));
}

/* ---- Running -------------------------------------------------------------------------------------------------- */

static void on_rank_0(weft_agent *agent, void *arg)
{
    void (*const *program)(weft_agent *) = arg;
    if (weft_agent_rank(agent) == 0)
        (*program)(agent);
}

static void begin(world *w)
{
    now = w;
    atomic_store(&made, 0);
    atomic_store(&dropped, 0);
}

static void run(void (*program)(weft_agent *), uint64_t seeds, void (*end)(world *w))
{
    world_play(&(world){.size = 2,
                        .functions = functions,
                        .function_count = 10,
                        .program = on_rank_0,
                        .adjust = world_leaks_fail,
                        .close_may_fail = end != NULL,
                        .arg = &program,
                        .begin = begin,
                        .end = end},
               seeds, 1);
}

#define ON_BOTH(name)                                                                                                  \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        run(name, 10, NULL);                                                                                           \
    }
ON_BOTH(objects)
ON_BOTH(objects_that_fail)
ON_BOTH(types)
ON_BOTH(dump)

static void one_was_left(world *w)
{
    /* The counts, and the name, at the holder; the owner sees it if it looks first. */
    MUST(atomic_exchange(&warnings, 0) >= 2);
    MUST(atomic_load(&dropped) == 1);              /* the owner's end is the object's */
    weft_rref_unref(atomic_exchange(&left, NULL)); /* after the close: safe, and nothing more */
}

static void test_leaks(void **state)
{
    weft_logging_set_sink(count_warnings, NULL);
    run(leave_one, 10, one_was_left);
    weft_logging_set_sink(NULL, NULL);
}

ON_BOTH(to_here)

/* It is not collected, and the end of the job says so; it goes when it is untied. */
static void the_knot_is_cut(world *w)
{
    MUST(atomic_exchange(&warnings, 0) == 2 && atomic_load(&dropped) == 0);
    weft_rref_unref(tied->self);
    MUST(atomic_load(&dropped) == 1);
}

static void test_knot(void **state)
{
    weft_logging_set_sink(count_warnings, NULL);
    run(tie, 1, the_knot_is_cut);
    weft_logging_set_sink(NULL, NULL);
}

int main(void)
{
    functions[7] = count_functions[0];
    functions[8] = count_functions[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objects), cmocka_unit_test(test_objects_that_fail), cmocka_unit_test(test_types),
        cmocka_unit_test(test_dump),    cmocka_unit_test(test_to_here),           cmocka_unit_test(test_leaks),
        cmocka_unit_test(test_knot),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
