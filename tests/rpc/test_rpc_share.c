/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_share.c - the workers of a job that are on one machine divide its cores and its memory, whether a
 * launcher says how many they are or the job's table does; agents of one process divide the process's memory, and
 * share its threads.
 */
#include "children.h"
#include "rpc/world.h"
#include "tensor/parallel.h"
#include "topo/quota.h"

#include <pthread.h>

/* The launcher's word, or that of the table: three. */
static int processes(void)
{
    const char *told = getenv("LOCAL_WORLD_SIZE");
    return told ? atoi(told) : 3;
}

/* As the metrics say it. */
static uint64_t budget_of(weft_agent *agent)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    MUST_OK(weft_metrics_write(agent, to));
    fclose(to);
    const char *line = strstr(text, "\nweft_memory_budget_bytes{");
    MUST(line);
    uint64_t budget = strtoull(strchr(line, '}') + 1, NULL, 10);
    free(text);
    return budget;
}

static int look(void)
{
    unsetenv("OMP_NUM_THREADS"); /* the tests' own */
    bool is_unbound;
    uint64_t told = wfi_quota_launched(&is_unbound) > 0 ? (uint64_t)processes() : 1;
    uint64_t all = wfi_quota_memory() * told;
    int cores = wfi_quota_cores();
    weft_agent *agent;
    MUST_BE(weft_agent_open(&(weft_agent_options){0}, &agent, NULL), WEFT_OK);
    int share = told > 1 ? cores : cores / processes() > 1 ? cores / processes() : 1;
    MUST(wfi_quota_cores() == share && wfi_cpu_threads() == share);
    uint64_t budget = all / (uint64_t)processes() / 2, is = budget_of(agent);
    MUST(is + 4 > budget && is < budget + 4); /* rounded otherwise */
    MUST_BE(weft_agent_close(agent, WEFT_FOREVER), WEFT_OK);
    return 0;
}

static void the_table_tells_processes_of_one_machine(void **state)
{
    child children[3];
    child_start_three(children, world_free_port(), "look", "look", "look");
    child_must_end_well(children, 3);
}

static void the_launchers_word_wins(void **state)
{
    child children[3];
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    child_start_three(children, world_free_port(), "look", "look", "look");
    child_must_end_well(children, 3);
    unsetenv("LOCAL_WORLD_SIZE");
}

typedef struct member {
    weft_agent_options options;
    weft_agent *agent;
} member;

static void *open_member(void *arg)
{
    member *m = arg;
    MUST_BE(weft_agent_open(&m->options, &m->agent, NULL), WEFT_OK);
    return NULL;
}

static void *close_member(void *arg)
{
    member *m = arg;
    MUST_BE(weft_agent_close(m->agent, WEFT_FOREVER), WEFT_OK);
    return NULL;
}

static void all_at_once(member *members, void *(*run)(void *arg))
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, &members[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
}

static void agents_of_one_process_divide_its_memory(void **state)
{
    member members[2];
    int port = world_free_port(), cores = wfi_quota_cores();
    uint64_t all = wfi_quota_memory();
    for (int i = 0; i < 2; i++)
        members[i].options =
            (weft_agent_options){.has_rank = true, .rank = i, .world_size = 2, .master_port = port, .threads = 1};
    members[1].options.memory_budget_bytes = 12345678;
    all_at_once(members, open_member);
    assert_int_equal(wfi_quota_cores(), cores);
    assert_int_equal(budget_of(members[0].agent), all / 2 / 2);
    assert_int_equal(budget_of(members[1].agent), 12345678);
    all_at_once(members, close_member);
}

int main(int argc, char **argv)
{
    static const child_role roles[] = {{"look", look}};
    int code = child_play(argc, argv, roles, 1);
    if (code >= 0)
        return code;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_tells_processes_of_one_machine),
        cmocka_unit_test(the_launchers_word_wins),
        cmocka_unit_test(agents_of_one_process_divide_its_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
