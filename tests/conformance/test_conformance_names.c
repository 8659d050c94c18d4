/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_names.c - items 1 to 7: ranks and names, joining twice, a world of one, calls to oneself,
 * addressing. */
#include "conformance/conformance.h"

#include <stdlib.h>

#include "unit.h"

static weft_status serve_read(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(read_i64(weft_call_rref(call, 0)))));
    return WEFT_OK;
}

/* Takes a reference and a number, and leaves a new value there. */
static weft_status serve_add_to(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(read_i64(weft_call_rref(call, 0)) + weft_call_i64(call, 1))));
    return WEFT_OK;
}

static const weft_function functions[] = {
    COMMON_FUNCTIONS,
    {.name = "read", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = serve_read},
    {.name = "add to", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = serve_add_to},
};

/* ---- 1: ids are ranks, and the table is complete on every worker ------------------------------------------------- */

static void table_is_complete(weft_agent *agent, void *arg)
{
    weft_worker workers[WORKERS];
    char name[32];
    MUST(weft_agent_world_size(agent) == WORKERS);
    MUST(weft_agent_workers(agent, workers, WORKERS) == WORKERS);
    for (int rank = 0; rank < WORKERS; rank++) {
        snprintf(name, sizeof(name), "worker%d", rank);
        MUST(strcmp(weft_agent_name(agent, rank), name) == 0 && weft_agent_find(agent, name) == rank);
        weft_worker worker = weft_agent_worker(agent, rank);
        MUST(worker.rank == rank && worker.incarnation > 0);
        MUST(workers[rank].rank == rank && workers[rank].incarnation == worker.incarnation);
        MUST(weft_agent_alive(agent, rank));
        MUST(ask(agent, weft_to_name(name), "rank", WEFT_NO_VALUES) == rank); /* it thinks so itself */
    }
    weft_worker first[2] = {{-7, 7}, {-7, 7}};
    MUST(weft_agent_workers(agent, first, 1) == WORKERS && first[0].rank == 0 && first[1].rank == -7);
    MUST(!weft_agent_name(agent, -1) && !weft_agent_name(agent, WORKERS));
    MUST(weft_agent_find(agent, "worker") == -1 && weft_agent_find(agent, "") == -1);
    MUST(weft_agent_find(agent, NULL) == -1);
    MUST(weft_agent_worker(agent, WORKERS).incarnation == 0);
}

ITEM(item_1_ids_are_ranks_and_the_table_is_complete, .program = table_is_complete, ITEM_FUNCTIONS(functions))

/* ---- 2: what a name may be ------------------------------------------------------------------------------------ */

static void refuse_name(const char *name, const char *mentioned)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    MUST_BE(item_open(0, name, &agent, &error), WEFT_ERR_INVALID);
    MUST(!agent && says(error, mentioned));
    weft_error_unref(error);
}

static void names_are_checked(int rank)
{
    char longest[129];
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    memset(longest, 'n', sizeof(longest) - 1);
    longest[128] = 0;
    refuse_name("", "");
    refuse_name("not/this", "not/this");
    refuse_name("a b", "a b");
    refuse_name("caf\xc3\xa9", "caf");
    refuse_name("line\n", "line");
    refuse_name(longest, "nnnn"); /* 128: the reference refuses it too */
    longest[127] = 0;
    MUST_OK(item_open(0, longest, &agent, &error));
    MUST(strcmp(weft_agent_name(agent, 0), longest) == 0);
    MUST(ask(agent, weft_to_name(longest), "rank", WEFT_NO_VALUES) == 0);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    const char *every = "ABCXYZ-abcxyz_0189:";
    MUST_OK(item_open(0, every, &agent, &error));
    MUST(weft_agent_find(agent, every) == 0);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

ITEM(item_2_invalid_names, .body = names_are_checked, .size = 1, ITEM_FUNCTIONS(functions))

/* ---- 3: one name for two ---------------------------------------------------------------------------------------- */

static atomic_int refused, opened;

static void reset_counts(void)
{
    atomic_store(&refused, 0);
    atomic_store(&opened, 0);
}

/* Ranks 2 and 3 want one name. The second one is told whose it is; with a name of its own it is welcome. */
static void twins(int rank)
{
    char own[16];
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    snprintf(own, sizeof(own), "single%d", rank);
    weft_status status = item_open(rank, rank >= 2 ? "twin" : own, &agent, &error);
    if (status) {
        MUST_BE(status, WEFT_ERR_EXISTS);
        MUST(rank >= 2 && says(error, "twin") && says(error, rank == 2 ? "rank 3" : "rank 2"));
        weft_error_unref(error);
        atomic_fetch_add(&refused, 1);
        error = NULL;
        MUST_OK(item_open(rank, own, &agent, &error));
    }
    atomic_fetch_add(&opened, 1);
    MUST(weft_agent_find(agent, "twin") >= 2);
    tell(agent, weft_to_name("twin"), "nothing", WEFT_NO_VALUES);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

static void one_was_refused(void)
{
    assert_int_equal(atomic_load(&refused), 1);
    assert_int_equal(atomic_load(&opened), WORKERS);
    reset_counts();
}

ITEM(item_3_duplicate_name, .body = twins, .after = one_was_refused, ITEM_FUNCTIONS(functions))

/* ---- 4: twice, and again -------------------------------------------------------------------------------------- */

static void no_second_agent_for(int rank)
{
    weft_error *error = NULL;
    weft_agent *second = NULL;
    MUST_BE(item_open(rank, "second", &second, &error), WEFT_ERR_EXISTS);
    MUST(!second && weft_error_message(error)[0]);
    weft_error_unref(error);
}

/* Twice at once: the seat is taken, the first agent goes on. After a close: a new world under the same address. */
static void open_again(int rank)
{
    for (int round = 0; round < 3; round++) {
        weft_error *error = NULL;
        weft_agent *agent = NULL;
        weft_status status = item_open(rank, NULL, &agent, &error);
        weft_error_print(error, stderr);
        MUST_OK(status);
        if (rank <= 1 && !item_sim()) /* the simulation's fabric has one place a rank */
            no_second_agent_for(rank);
        MUST(ask(agent, weft_to_rank(next_rank(agent)), "rank", WEFT_NO_VALUES) == next_rank(agent));
        MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    }
}

ITEM(item_4_init_twice_and_reinit, .body = open_again, ITEM_FUNCTIONS(functions))

/* ---- 5: a world of one ---------------------------------------------------------------------------------------- */

static void all_to_myself(weft_agent *agent, void *arg)
{
    weft_target me = weft_to_rank(0);
    weft_values *got = NULL;
    weft_future *all = NULL;
    weft_group *group = NULL;
    weft_args one;
    MUST(weft_agent_world_size(agent) == 1 && weft_agent_rank(agent) == 0);
    MUST(ask(agent, me, "add", WEFT_VALUES(weft_of_i64(2), weft_of_i64(3))) == 5);
    MUST(ask(agent, weft_to_name("worker0"), "rank", WEFT_NO_VALUES) == 0);
    MUST(future_i64(start(agent, weft_to_worker(weft_agent_worker(agent, 0)), "add",
                          WEFT_VALUES(weft_of_i64(4), weft_of_i64(5)))) == 9);
    weft_rref *made = make(agent, me, "add", WEFT_VALUES(weft_of_i64(6), weft_of_i64(7)));
    MUST(weft_rref_is_owner(made) && read_i64(made) == 13);
    MUST(ask(agent, me, "read", WEFT_VALUES(weft_of_rref(made))) == 13);
    weft_rref_unref(made);
    MUST_OK(weft_rpc_multicast(agent, &me, 1, "rank", WEFT_NO_VALUES, NULL, &all));
    MUST_OK(weft_future_wait(all, ITEM_PATIENCE_MS));
    weft_future_unref(all);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    MUST(weft_group_size(group) == 1 && weft_group_index(group) == 0);
    MUST_OK(weft_group_barrier(group, ITEM_PATIENCE_MS));
    MUST_OK(weft_group_allgather_values(group, WEFT_VALUES(weft_of_i64(8)), ITEM_PATIENCE_MS, &got));
    MUST_OK(weft_values_get_list(got, 0, &one));
    MUST(one.count == 1 && one.items[0].as.i64 == 8);
    weft_values_unref(got);
    weft_group_close(group);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "rank", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_NOT_FOUND);
}

ITEM(item_5_world_of_one, .program = all_to_myself, .size = 1, ITEM_FUNCTIONS(functions))

/* ---- 6: calls to oneself, and references of one's own in them ------------------------------------------------- */

static void self_calls(weft_agent *agent, void *arg)
{
    weft_target me = weft_to_rank(weft_agent_rank(agent)), next = weft_to_rank(next_rank(agent));
    MUST(ask(agent, me, "add", WEFT_VALUES(weft_of_i64(1), weft_of_i64(2))) == 3);
    /* A value made here by remote, as argument of a sync, an async and a remote call, to oneself and to another. */
    for (int i = 0; i < 2; i++) {
        weft_target to = i ? next : me;
        weft_rref *mine = make(agent, me, "add", WEFT_VALUES(weft_of_i64(20), weft_of_i64(1)));
        MUST(ask(agent, to, "add to", WEFT_VALUES(weft_of_rref(mine), weft_of_i64(1))) == 22);
        MUST(future_i64(start(agent, to, "add to", WEFT_VALUES(weft_of_rref(mine), weft_of_i64(2)))) == 23);
        weft_rref *more = make(agent, to, "add to", WEFT_VALUES(weft_of_rref(mine), weft_of_i64(3)));
        weft_rref_unref(mine); /* before it may have been read */
        MUST(read_i64(more) == 24 && weft_rref_owner(more) == to.rank);
        weft_rref_unref(more);
    }
}

ITEM(item_6_self_calls_and_self_rrefs, .program = self_calls, ITEM_FUNCTIONS(functions))

/* ---- 7: by rank, by worker, by name --------------------------------------------------------------------------- */

static void refuse_target(weft_agent *agent, weft_target to, const char *mentioned)
{
    weft_error *error = fail_of(agent, to, "rank", WEFT_NO_VALUES, WEFT_ERR_NOT_FOUND);
    MUST(says(error, mentioned));
    weft_error_unref(error);
}

static void address(weft_agent *agent, void *arg)
{
    for (int rank = 0; rank < WORKERS; rank++) {
        weft_worker worker = weft_agent_worker(agent, rank);
        MUST(ask(agent, weft_to_rank(rank), "rank", WEFT_NO_VALUES) == rank);
        MUST(ask(agent, weft_to_worker(worker), "rank", WEFT_NO_VALUES) == rank);
        MUST(ask(agent, weft_to_name(weft_agent_name(agent, rank)), "rank", WEFT_NO_VALUES) == rank);
        weft_rref *made = make(agent, weft_to_worker(worker), "rank", WEFT_NO_VALUES);
        MUST(weft_rref_owner(made) == rank && read_i64(made) == rank);
        weft_rref_unref(made);
    }
    refuse_target(agent, weft_to_rank(WORKERS), "4");
    refuse_target(agent, weft_to_rank(-1), "-1");
    refuse_target(agent, weft_to_name("nobody"), "nobody");
}

ITEM(item_7_address_by_rank_name_and_worker, .program = address, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_1_ids_are_ranks_and_the_table_is_complete, item_2_invalid_names, item_3_duplicate_name,
          item_4_init_twice_and_reinit, item_5_world_of_one, item_6_self_calls_and_self_rrefs,
          item_7_address_by_rank_name_and_worker)
