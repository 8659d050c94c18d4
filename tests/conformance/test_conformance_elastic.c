/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_elastic.c - item 56: workers that join one after the other, talk both ways, leave and come again;
 * and those who took the job for another kind. */
#include "conformance/conformance.h"

#include "unit.h"

enum { SEATS = WORKERS };

static const weft_function functions[] = {COMMON_FUNCTIONS};

static atomic_int joined, news_joined, news_left, finished, gone_again;

static void note(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    if (event == WEFT_MEMBER_JOINED)
        atomic_fetch_add(&news_joined, 1);
    else if (event == WEFT_MEMBER_LEFT)
        atomic_fetch_add(&news_left, 1);
}

static void elastic(weft_agent_options *options)
{
    options->elastic = true;
    options->on_membership = note;
}

static void await_workers(weft_agent *agent, size_t count)
{
    for (int ms = 0; ms < ITEM_PATIENCE_MS && weft_agent_workers(agent, NULL, 0) != count; ms++)
        item_sleep_ms(1);
    MUST(weft_agent_workers(agent, NULL, 0) == count);
}

/* The new one asks each that was there before, and is asked by each. */
static void meet_everybody(weft_agent *agent)
{
    weft_worker workers[SEATS];
    size_t count = weft_agent_workers(agent, workers, SEATS);
    for (size_t i = 0; i < count; i++) {
        MUST(ask(agent, weft_to_worker(workers[i]), "rank", WEFT_NO_VALUES) == workers[i].rank);
        const char *name = weft_agent_name(agent, workers[i].rank);
        MUST(ask(agent, weft_to_name(name), "rank", WEFT_NO_VALUES) == workers[i].rank);
    }
}

/* A worker of a static job does not belong here, nor does one whose rank or name is taken. */
static void refuse(int rank, const char *name, bool is_elastic, weft_status wanted, const char *mentioned)
{
    weft_agent_options options;
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    item_options(rank, &options);
    options.name = name;
    options.elastic = is_elastic;
    MUST_BE(weft_agent_open(&options, &agent, &error), wanted);
    MUST(!agent && says(error, mentioned));
    weft_error_unref(error);
}

static void refuse_strangers(void)
{
    refuse(SEATS - 1, "static", false, WEFT_ERR_INVALID, "elastic");
    refuse(SEATS - 1, "name0", true, WEFT_ERR_EXISTS, "name0");
    if (!item_sim()) /* there a rank has one place on the fabric */
        refuse(0, "second", true, WEFT_ERR_EXISTS, "");
    if (!item_sim())
        refuse(1, "second", true, WEFT_ERR_EXISTS, "1");
}

/* How it went is not kept once its rank is taken again. */
static void must_be_gone(weft_agent *agent, weft_worker worker)
{
    weft_status status = weft_rpc_sync(agent, weft_to_worker(worker), "rank", WEFT_NO_VALUES, NULL, NULL);
    MUST(status == WEFT_ERR_PEER_LEFT || status == WEFT_ERR_PEER_DEAD);
}

/* Leaves and comes again, under the same name: a new incarnation, and the old handle means nobody. */
static weft_agent *leave_and_return(weft_agent *agent, const char *name)
{
    weft_error *error = NULL;
    int rank = weft_agent_rank(agent);
    weft_worker before = weft_agent_worker(agent, rank);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER)); /* the others stay */
    item_await(&news_left, 1);
    MUST_OK(item_open(rank, name, &agent, &error));
    MUST(weft_agent_worker(agent, rank).incarnation > before.incarnation);
    must_be_gone(agent, before);
    meet_everybody(agent);
    atomic_fetch_add(&gone_again, 1);
    return agent;
}

static void come_and_go(int rank)
{
    char name[16];
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    snprintf(name, sizeof(name), "name%d", rank);
    item_await(&joined, rank); /* in order */
    if (rank == WORKERS - 1)
        refuse_strangers();
    weft_status status = item_open(rank, name, &agent, &error);
    weft_error_print(error, stderr);
    MUST_OK(status);
    MUST(weft_agent_rank(agent) == rank && weft_agent_find(agent, name) == rank);
    if (rank == 0)
        await_workers(agent, 1); /* alone, and already at work */
    meet_everybody(agent);
    atomic_fetch_add(&joined, 1);
    await_workers(agent, (size_t)WORKERS);
    meet_everybody(agent); /* those there before call those who came */
    atomic_fetch_add(&finished, 1);
    item_await(&finished, WORKERS);
    weft_worker leaver = weft_agent_worker(agent, WORKERS - 1);
    atomic_fetch_add(&finished, 1);
    item_await(&finished, 2 * WORKERS);
    if (rank == WORKERS - 1)
        agent = leave_and_return(agent, name);
    item_await(&gone_again, 1);
    await_workers(agent, (size_t)WORKERS);
    meet_everybody(agent);
    if (rank == 0)
        item_await(&news_joined, WORKERS); /* three, and one again */
    if (rank != WORKERS - 1)
        must_be_gone(agent, leaver);
    atomic_fetch_add(&finished, 1);
    item_await(&finished, 3 * WORKERS);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

static void reset(void)
{
    atomic_int *all[] = {&joined, &news_joined, &news_left, &finished, &gone_again};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        atomic_store(all[i], 0);
}

ITEM(item_56_workers_join_and_leave, .body = come_and_go, .adjust = elastic, .after = reset, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_56_workers_join_and_leave)
