/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_gathering.c - processes of a job on tcp that are stopped before all have come: the others' opening ends
 * in time, with a message that says whom it missed. This program is its own child.
 */
#include "children.h"
#include "rpc/world.h"

#include <signal.h>
#include <string.h>

#define PATIENCE_MS 3000

/* Rank 0's store tells who has come, and whose seat it gave up. */
static void hear_the_store(weft_log_level level, const char *line, void *arg)
{
    if (strstr(line, "has come for rank 1"))
        child_say('j');
    else if (strstr(line, "rank 1 joined and was silent"))
        child_say('s');
    else if (level <= WEFT_LOG_WARN)
        fprintf(stderr, "%s\n", line);
}

/* Opens, in vain: within the time, and with a message that has one of these. */
static int open_in_vain(const char *missed, const char * or)
{
    weft_error *error = NULL;
    weft_agent *agent;
    if (strcmp(getenv("RANK"), "0") == 0) {
        weft_logging_set_level(WEFT_LOG_INFO);
        weft_logging_set_sink(hear_the_store, NULL);
    }
    child_say('r');
    child_await_order('o');
    double began = child_now_s();
    weft_agent_options options = {.rendezvous_timeout_ms = PATIENCE_MS, .no_binding = true};
    MUST_BE(weft_agent_open(&options, &agent, &error), WEFT_ERR_RENDEZVOUS);
    bool is_named = strstr(weft_error_message(error), missed) || strstr(weft_error_message(error), or);
    if (!is_named)
        fprintf(stderr, "\"%s\" does not speak of %s\n", weft_error_message(error), missed);
    MUST(is_named && child_now_s() - began < 5 * PATIENCE_MS / 1e3); /* a busy machine */
    weft_error_unref(error);
    return 0;
}

static int child_misses_rank_1(void)
{
    return open_in_vain("rank 1 did not come", "ranks 1 and 2 did not come"); /* where rank 2 was slow */
}

static int child_misses_the_store(void)
{
    char port[32];
    snprintf(port, sizeof(port), "port %s", getenv("MASTER_PORT"));
    return open_in_vain(port, port);
}

static int child_opens(void)
{
    return open_in_vain("", "");
}

static const child_role roles[] = {
    {"misses-1", child_misses_rank_1}, {"misses-the-store", child_misses_the_store}, {"opens", child_opens}};

static void hear_ready(const child *children, int count)
{
    for (int rank = 0; rank < count; rank++)
        child_hear(&children[rank], 'r');
}

/* It never comes: the others name it when their patience is over. */
static void test_stopped_before_it_comes(void **state)
{
    child children[3];
    setenv("WEFT_DEATH_MS", "1000", 1);
    child_start_three(children, world_free_port(), "misses-1", "opens", "misses-1");
    hear_ready(children, 3);
    child_signal(&children[1], SIGSTOP);
    for (int rank = 0; rank < 3; rank++)
        child_order(&children[rank], 'o');
    child_must_end_well(&children[0], 1);
    child_must_end_well(&children[2], 1);
    child_kill(&children[1]);
}

/* It has come, and is stopped while it waits: its seat is free again after the bound, and it is missed. */
static void test_stopped_while_it_waits(void **state)
{
    child children[3];
    setenv("WEFT_DEATH_MS", "500", 1);
    child_start_three(children, world_free_port(), "misses-1", "opens", "misses-1");
    hear_ready(children, 3);
    child_order(&children[0], 'o');
    child_order(&children[1], 'o');
    child_hear(&children[0], 'j');
    child_signal(&children[1], SIGSTOP);
    child_hear(&children[0], 's');
    child_order(&children[2], 'o');
    child_must_end_well(&children[0], 1);
    child_must_end_well(&children[2], 1);
    child_signal(&children[1], SIGCONT); /* its time has been over meanwhile */
    child_must_end_well(&children[1], 1);
}

/* Rank 0 is stopped while others wait there: they name where they looked for it. */
static void test_store_stopped_while_they_wait(void **state)
{
    child children[3];
    setenv("WEFT_DEATH_MS", "500", 1);
    child_start_three(children, world_free_port(), "opens", "misses-the-store", "misses-the-store");
    hear_ready(children, 3);
    child_order(&children[0], 'o');
    child_order(&children[1], 'o');
    child_hear(&children[0], 'j');
    child_signal(&children[0], SIGSTOP);
    child_order(&children[2], 'o');
    child_must_end_well(&children[1], 2);
    child_kill(&children[0]);
}

int main(int argc, char **argv)
{
    int played = child_play(argc, argv, roles, sizeof(roles) / sizeof(*roles));
    if (played >= 0)
        return played;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stopped_before_it_comes),
        cmocka_unit_test(test_stopped_while_it_waits),
        cmocka_unit_test(test_store_stopped_while_they_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
