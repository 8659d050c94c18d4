/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_answers.c - every call is answered: many that are finished at once, with their results; those that come
 * while too much is held, refused in ranges; and a caller that acknowledges nothing makes its callee hold no more
 * than the budget says.
 */
#include "rpc/inside.h"
#include "rpc/world.h"

enum { SERVER = 0, CALLER = 1, SIZE = 2, FLOOD = 5000 };

static world *the_world;
static weft_call **held;
static size_t held_count;
static size_t many = 66000; /* more than were kept once: 65,536, with results */
static atomic_int runs, finished;
static size_t budget, most_held;

static weft_status run_hold(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    held[held_count++] = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static weft_status run_add(weft_call *call, void *user)
{
    atomic_fetch_add(&runs, 1);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0) + 1)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "hold",
     .takes = {WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = run_hold,
     .flags = WEFT_FUNCTION_INLINE},
    {.name = "add", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_add},
};

static void adjust(weft_agent_options *options, void *arg)
{
    options->memory_budget_bytes = options->rank == SERVER ? budget : 0;
    options->queue_limit_bytes = (size_t)1 << 32;
}

static void meet(void)
{
    int before = atomic_fetch_add(&finished, 1);
    while (atomic_load(&finished) < (before / SIZE + 1) * SIZE)
        world_sleep_ms(the_world, 1);
}

static void begin(world *w)
{
    the_world = w;
    most_held = 0;
    atomic_store(&runs, 0);
    atomic_store(&finished, 0);
}

static void run(void (*program)(weft_agent *, void *), uint64_t seeds, int on_tcp)
{
    world_play(&(world){.size = SIZE, WORLD_FUNCTIONS(functions), .program = program, .adjust = adjust, .begin = begin},
               seeds, on_tcp);
}

/* ---- Many at once --------------------------------------------------------------------------------------------- */

static weft_future *call(weft_agent *agent, const char *function, int64_t number)
{
    weft_future *future;
    weft_rpc_options how = {.timeout_ms = WEFT_FOREVER};
    MUST_OK(weft_rpc_async(agent, weft_to_rank(SERVER), function, WEFT_VALUES(weft_of_i64(number)), &how, &future));
    return future;
}

static void must_be_next(weft_future *future, int64_t number)
{
    int64_t n;
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    MUST_OK(weft_values_get_i64(weft_future_values(future), 0, &n));
    MUST(n == number + 1);
    weft_future_unref(future);
}

static void finish_in_one_loop(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == SERVER) {
        meet();
        for (size_t i = 0; i < many; i++)
            weft_call_finish(held[i], WEFT_OK);
        return;
    }
    weft_future **futures = malloc(many * sizeof(*futures));
    MUST(futures);
    for (size_t i = 0; i < many; i++)
        futures[i] = call(agent, "hold", (int64_t)i);
    must_be_next(call(agent, "add", 0), 0); /* so all are there */
    meet();
    must_be_next(call(agent, "add", 7), 7);
    for (size_t i = 0; i < many; i++)
        must_be_next(futures[i], (int64_t)i);
    free(futures);
}

static void test_many_finished_at_once(void **s)
{
    budget = 0;
    held_count = 0;
    held = calloc(many, sizeof(weft_call *));
    assert_non_null(held);
    run(finish_in_one_loop, many <= 100000, many > 100000);
    free(held);
}

/* ---- Refused together ----------------------------------------------------------------------------------------- */

/* What the callee holds goes when the last refusals have arrived. */
static void call_until_there_is_room(weft_agent *agent)
{
    weft_rpc_options how = {.timeout_ms = WEFT_FOREVER};
    weft_status status;
    while ((status = weft_rpc_sync(agent, weft_to_rank(SERVER), "add", WEFT_VALUES(weft_of_i64(1)), &how, NULL))) {
        MUST_BE(status, WEFT_ERR_BUSY);
        world_sleep_ms(the_world, 1);
    }
}

/* Far more calls than the budget has room for, at once: each ends, with its result or the word that it did not run. */
static void flood(weft_agent *agent, void *arg)
{
    weft_future *futures[FLOOD];
    int refused = 0, in_ranges = 0;
    if (weft_agent_rank(agent) == CALLER) {
        for (int i = 0; i < FLOOD; i++)
            futures[i] = call(agent, "add", i);
        for (int i = 0; i < FLOOD; i++) {
            if (weft_future_wait(futures[i], WEFT_FOREVER) == WEFT_OK) {
                must_be_next(futures[i], i);
                continue;
            }
            const weft_error *error = weft_future_error(futures[i]);
            MUST_BE(weft_error_code(error), WEFT_ERR_BUSY);
            MUST_OK(weft_error_handler_code(error));
            MUST(strstr(weft_error_message(error), "WEFT_MEMORY_BUDGET"));
            in_ranges += strstr(weft_error_message(error), "that worker is over its memory budget") != NULL;
            weft_future_unref(futures[i]);
            refused++;
        }
        MUST(refused > 0 && refused < FLOOD && atomic_load(&runs) == FLOOD - refused);
        MUST(in_ranges > 0);
        call_until_there_is_room(agent);
    }
    meet();
}

static void test_a_flood(void **s)
{
    budget = (size_t)32 << 10;
    run(flood, 5, 1);
}

/* ---- A caller that acknowledges nothing ----------------------------------------------------------------------- */

static uint8_t answers[FLOOD + 1]; /* by id */
static bool takes;

/* Takes nothing: so nothing is acknowledged. Later all of it, and notes which calls it answers. */
static bool take(uint8_t type, const uint8_t *bytes, size_t size)
{
    wfi_reader reader;
    if (!takes)
        return false;
    wfi_reader_init(&reader, bytes, size);
    uint64_t first = wfi_read_u64(&reader), last = type == INSIDE_REFUSED ? wfi_read_u64(&reader) : first;
    MUST(!reader.failed && first && first <= last && last <= FLOOD);
    for (uint64_t id = first; id <= last; id++)
        answers[id]++;
    return true;
}

static bool all_answered(void)
{
    for (int id = 1; id <= FLOOD; id++)
        if (!answers[id])
            return false;
    return true;
}

static void acknowledge_nothing(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == SERVER) {
        for (int i = 0; i < 2000; i++, world_sleep_ms(the_world, 1))
            most_held = world_stats(agent).bytes_held > most_held ? world_stats(agent).bytes_held : most_held;
        meet(); /* it takes them from now on */
        meet();
        for (int i = 0; i < 20000 && world_stats(agent).bytes_held; i++)
            world_sleep_ms(the_world, 1);
        MUST(most_held > budget / 2 && most_held <= budget / 4 * 5 + (128 << 10));
        MUST(world_stats(agent).bytes_held == 0);
        return;
    }
    must_be_next(call(agent, "add", 0), 0);
    memset(answers, 0, sizeof(answers));
    takes = false;
    inside_divert(agent, take);
    for (uint64_t id = 1; id <= FLOOD; id++)
        MUST_OK(inside_send_call(agent, SERVER, id, "add", WEFT_VALUES(weft_of_i64(1))));
    meet();
    takes = true;
    for (int i = 0; i < 20000 && !all_answered(); i++)
        world_sleep_ms(the_world, 1);
    for (int id = 1; id <= FLOOD; id++)
        MUST(answers[id] == 1);
    inside_divert(agent, NULL);
    call_until_there_is_room(agent);
    meet();
}

static void test_acknowledges_nothing(void **s)
{
    budget = (size_t)256 << 10;
    run(acknowledge_nothing, 3, 0);
}

/* The number given instead of 66,000 is finished at once on tcp, and nothing else is done. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_finished_at_once),
        cmocka_unit_test(test_a_flood),
        cmocka_unit_test(test_acknowledges_nothing),
    };
    if (argc > 1) {
        many = strtoull(argv[1], NULL, 10);
        const struct CMUnitTest only[] = {cmocka_unit_test(test_many_finished_at_once)};
        return cmocka_run_group_tests(only, NULL, NULL);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
