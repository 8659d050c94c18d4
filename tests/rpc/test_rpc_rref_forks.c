/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_rref_forks.c - the five ways in which a reference spreads, each with its counts at the owner before and
 * after, and what is said of a reference that its creator gave up. On sim and tcp.
 */
#include "rpc/rref_counts.h"
#include "rpc/rref_functions.h"

static weft_function functions[RREF_FUNCTIONS + 3];

static void tell(weft_agent *agent, int rank, const char *function, weft_args args)
{
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), function, args, NULL, NULL));
}

static weft_rref *make(weft_agent *agent, int rank, int64_t number)
{
    weft_rref *rref;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), "double", WEFT_VALUES(weft_of_i64(number)), NULL, &rref));
    return rref;
}

static void expect(weft_agent *agent, int rank, int64_t values, int64_t forks, int64_t handles)
{
    await_number(shared.w, agent, rank, "value_count", values);
    await_number(shared.w, agent, rank, "fork_count", forks);
    await_number(shared.w, agent, rank, "handle_count", handles);
}

static void await_made(weft_rref *rref)
{
    weft_future *made = weft_rref_created(rref);
    MUST(made);
    MUST_OK(weft_future_wait(made, 5000));
    weft_future_unref(made);
    MUST(weft_rref_confirmed(rref));
}

/* Each program runs on rank 0; the others serve. */

static void creator(weft_agent *agent)
{
    weft_rref *rref = make(agent, 1, 1);
    await_made(rref);
    expect(agent, 1, 1, 1, 0);
    MUST(dump_number(agent, "reference_count") == 1 && dump_number(agent, "awaiting_confirmation") == 0);
    weft_rref_unref(rref);
    expect(agent, 1, 0, 0, 0);
    MUST(dump_number(agent, "reference_count") == 0);
}

static void user_to_owner(weft_agent *agent)
{
    weft_rref *rref = make(agent, 1, 1);
    tell(agent, 1, "checked", WEFT_VALUES(weft_of_rref(rref)));
    tell(agent, 1, "keep", WEFT_VALUES(weft_of_rref(rref)));
    expect(agent, 1, 1, 1, 1); /* a handle of the owner's own, no fork */
    weft_rref_unref(rref);
    expect(agent, 1, 1, 0, 1);
    tell(agent, 1, "let go", WEFT_NO_VALUES);
    expect(agent, 1, 0, 0, 0);
}

static void owner_to_user(weft_agent *agent)
{
    weft_rref *rref;
    MUST_OK(weft_rref_create(agent, weft_of_i64(7), &rref, NULL));
    tell(agent, 1, "checked", WEFT_VALUES(weft_of_rref(rref)));
    expect(agent, 0, 1, 0, 1);
    tell(agent, 1, "keep", WEFT_VALUES(weft_of_rref(rref)));
    expect(agent, 0, 1, 1, 1);
    weft_rref_unref(rref);
    expect(agent, 0, 1, 1, 0);
    tell(agent, 1, "let go", WEFT_NO_VALUES);
    expect(agent, 0, 0, 0, 0);
}

static void user_to_user(weft_agent *agent)
{
    weft_rref *rref = make(agent, 1, 1);
    tell(agent, 2, "checked", WEFT_VALUES(weft_of_rref(rref), weft_of_i64(1), weft_of_rref(rref)));
    expect(agent, 1, 1, 1, 0);
    tell(agent, 2, "keep", WEFT_VALUES(weft_of_rref(rref)));
    expect(agent, 1, 1, 2, 0);
    weft_rref_unref(rref);
    expect(agent, 1, 1, 1, 0);
    tell(agent, 2, "let go", WEFT_NO_VALUES);
    expect(agent, 1, 0, 0, 0);
}

static void owner_to_itself(weft_agent *agent)
{
    weft_rref *rref = make(agent, 0, 1);
    await_made(rref);
    tell(agent, 0, "checked", WEFT_VALUES(weft_of_rref(rref)));
    tell(agent, 0, "keep", WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    expect(agent, 0, 1, 0, 1); /* by reference: the same handle */
    tell(agent, 0, "let go", WEFT_NO_VALUES);
    expect(agent, 0, 0, 0, 0);
    /* And through another worker. */
    MUST_OK(weft_rref_create(agent, weft_of_i64(7), &rref, NULL));
    tell(agent, 1, "keep", WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    tell(agent, 1, "give back", WEFT_NO_VALUES);
    expect(agent, 0, 1, 0, 1);
    tell(agent, 0, "let go", WEFT_NO_VALUES);
    expect(agent, 0, 0, 0, 0);
}

/* Passed on at once, while the call that makes the value is under way: C's fork may come before the value. */
static void before_creation(weft_agent *agent)
{
    weft_future *futures[20];
    weft_rref *rrefs[20];
    int before = checked_runs;
    for (int i = 0; i < 20; i++) {
        rrefs[i] = make(agent, 1, i);
        MUST_OK(
            weft_rpc_async(agent, weft_to_rank(2), "checked", WEFT_VALUES(weft_of_rref(rrefs[i])), NULL, &futures[i]));
        weft_rref_unref(rrefs[i]);
    }
    for (int i = 0; i < 20; i++) {
        MUST_OK(weft_future_wait(futures[i], 10000));
        weft_future_unref(futures[i]);
    }
    MUST(checked_runs == before + 20);
    expect(agent, 1, 0, 0, 0);
}

/* The making takes too long for its creator: the reference says so from then on, wherever it is used; the value does
 * not stay at the owner, not even for its maker. */
static void given_up(weft_agent *agent)
{
    for (int owner = 1; owner >= 0; owner--) {
        weft_rref *rref;
        int64_t n;
        weft_error *error = NULL;
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(owner), "hold", WEFT_NO_VALUES,
                                &(weft_rpc_options){.timeout_ms = 20}, &rref));
        weft_future *made = weft_rref_created(rref);
        MUST_BE(weft_future_wait(made, 5000), WEFT_ERR_TIMEOUT);
        MUST(weft_future_done(made));
        weft_future_unref(made);
        MUST_BE(read_i64(rref, 1000, &n), WEFT_ERR_TIMEOUT);
        if (owner == 1) {
            MUST_BE(weft_rpc_sync(agent, weft_to_rank(2), "checked", WEFT_VALUES(weft_of_rref(rref)), NULL, NULL),
                    WEFT_ERR_TIMEOUT);
            MUST_BE(weft_rref_rpc_sync(rref, "checked", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, NULL),
                    WEFT_ERR_TIMEOUT);
            MUST(weft_error_code(error) == WEFT_ERR_TIMEOUT);
            weft_error_unref(error);
            expect(agent, 1, 1, 0, 0); /* only its maker holds it */
        }
        while (!shared.waiting)
            world_sleep_ms(shared.w, 1);
        weft_call *call = atomic_exchange(&shared.waiting, NULL);
        weft_call_give(call, WEFT_VALUES(weft_of_i64(1)));
        weft_call_finish(call, WEFT_OK);
        if (owner == 1)
            expect(agent, 1, 0, 0, 0);
        weft_rref_unref(rref);
        expect(agent, owner, 0, 0, 0);
    }
}

static weft_status run_give_back(weft_call *call, void *user)
{
    weft_agent *agent = weft_call_agent(call);
    weft_rref **kept = &shared.kept[weft_agent_rank(agent)];
    weft_status status = weft_rpc_sync(agent, weft_to_rank(weft_rref_owner(*kept)), "keep",
                                       WEFT_VALUES(weft_of_rref(*kept)), NULL, NULL);
    weft_rref_unref(*kept);
    *kept = NULL;
    return status;
}

static void on_rank_0(weft_agent *agent, void *arg)
{
    void (*const *program)(weft_agent *) = arg;
    if (weft_agent_rank(agent) == 0)
        (*program)(agent);
}

static void begin(world *w)
{
    memset(&shared, 0, sizeof(shared));
    shared.w = w;
}

#define ON_BOTH(name, on_tcp)                                                                                          \
    static void test_##name(void **cmocka)                                                                             \
    {                                                                                                                  \
        void (*program)(weft_agent *) = name;                                                                          \
        world_play(&(world){.size = 3,                                                                                 \
                            WORLD_FUNCTIONS(functions),                                                                \
                            .program = on_rank_0,                                                                      \
                            .adjust = world_leaks_fail,                                                                \
                            .arg = &program,                                                                           \
                            .begin = begin},                                                                           \
                   20, on_tcp);                                                                                        \
    }
ON_BOTH(creator, 1)
ON_BOTH(user_to_owner, 1)
ON_BOTH(owner_to_user, 1)
ON_BOTH(user_to_user, 1)
ON_BOTH(owner_to_itself, 1)
ON_BOTH(before_creation, 1)

ON_BOTH(given_up, 0) /* in virtual time: its time limit must not run out before the call has come */

int main(void)
{
    memcpy(functions, rref_functions, sizeof(rref_functions));
    functions[RREF_FUNCTIONS] = count_functions[0];
    functions[RREF_FUNCTIONS + 1] = count_functions[1];
    functions[RREF_FUNCTIONS + 2] = (weft_function){.name = "give back", .run = run_give_back};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_creator),         cmocka_unit_test(test_user_to_owner),
        cmocka_unit_test(test_owner_to_user),   cmocka_unit_test(test_user_to_user),
        cmocka_unit_test(test_owner_to_itself), cmocka_unit_test(test_before_creation),
        cmocka_unit_test(test_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
