/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_ports.c - ports and addresses of a job that get in each other's way, and what is said of it. */
#include "rpc/world.h"

#include <pthread.h>
#include <unistd.h>

/* ---- The store's port within the fabric's range --------------------------------------------------------------- */

typedef struct member {
    weft_agent_options options;
    weft_agent *agent;
} member;

static void *open_member(void *arg)
{
    member *m = arg;
    MUST_OK(weft_agent_open(&m->options, &m->agent, NULL));
    return NULL;
}

static void *close_member(void *arg)
{
    member *m = arg;
    MUST_OK(weft_agent_close(m->agent, WEFT_FOREVER));
    return NULL;
}

static void rank_0_finds_the_stores_port_free(void **state)
{
    member m;
    char ports[32];
    int port = world_free_port();
    snprintf(ports, sizeof(ports), "%d-%d", port, port + 9);
    m.options = (weft_agent_options){.has_rank = true, .world_size = 1, .master_port = port, .ports = ports};
    open_member(&m);
    close_member(&m);
}

/* Rank 1 is there first, and has the same range. */
static void nobody_takes_the_stores_port(void **state)
{
    member members[2];
    pthread_t thread;
    char ports[32];
    int port = world_free_port();
    snprintf(ports, sizeof(ports), "%d-%d", port, port + 9);
    for (int rank = 0; rank < 2; rank++)
        members[rank].options = (weft_agent_options){
            .has_rank = true, .rank = rank, .world_size = 2, .master_port = port, .ports = ports, .threads = 1};
    assert_int_equal(pthread_create(&thread, NULL, open_member, &members[1]), 0);
    usleep(100000); /* a head start: it has most likely chosen its port; if it has not, nothing fails */
    open_member(&members[0]);
    pthread_join(thread, NULL);
    assert_int_equal(pthread_create(&thread, NULL, close_member, &members[1]), 0);
    close_member(&members[0]);
    pthread_join(thread, NULL);
}

/* ---- A name that is this machine's loopback ------------------------------------------------------------------- */

static int warnings;

static void count_warnings(weft_log_level level, const char *line, void *arg)
{
    warnings += level == WEFT_LOG_WARN && strstr(line, "loopback") && strstr(line, "MASTER_ADDR");
}

/* How many warnings rank 0 of a job of so many gets while the others do not come. */
static int warnings_of(const char *master_addr, int world_size)
{
    weft_agent *agent;
    weft_error *error = NULL;
    weft_agent_options options = {.has_rank = true,
                                  .world_size = world_size,
                                  .master_addr = master_addr,
                                  .master_port = world_free_port(),
                                  .rendezvous_timeout_ms = 1};
    warnings = 0;
    weft_logging_set_sink(count_warnings, NULL);
    weft_status status = weft_agent_open(&options, &agent, &error);
    weft_logging_set_sink(NULL, NULL);
    weft_error_unref(error);
    if (!status)
        weft_agent_stop(agent);
    return warnings;
}

/* 0x7f000001 is an address that only its resolving shows to be 127.0.0.1, as with a name in /etc/hosts. */
static void a_loopback_that_does_not_look_like_one_is_said(void **state)
{
    assert_int_equal(warnings_of("0x7f000001", 2), 1);
    assert_int_equal(warnings_of("0x7f000001", 1), 0);
    assert_int_equal(warnings_of("127.0.0.1", 2), 0);
    assert_int_equal(warnings_of("localhost", 2), 0);
    setenv("LOCAL_WORLD_SIZE", "2", 1); /* all are here */
    assert_int_equal(warnings_of("0x7f000001", 2), 0);
    setenv("LOCAL_WORLD_SIZE", "1", 1); /* one is elsewhere, says the launcher */
    assert_int_equal(warnings_of("127.0.0.1", 2), 1);
    unsetenv("LOCAL_WORLD_SIZE");
}

/* ---- A rank 0 that never comes -------------------------------------------------------------------------------- */

static void count_waiting(weft_log_level level, const char *line, void *arg)
{
    warnings += level == WEFT_LOG_WARN && strstr(line, "waiting for rank 0's store on 127.0.0.1 port ") != NULL;
}

static void who_waits_for_the_store_says_so(void **state)
{
    weft_agent *agent = NULL;
    weft_agent_options options = {.has_rank = true,
                                  .rank = 1,
                                  .world_size = 2,
                                  .master_addr = "127.0.0.1",
                                  .master_port = world_free_port(),
                                  .rendezvous_timeout_ms = 400};
    warnings = 0;
    weft_logging_set_sink(count_waiting, NULL);
    weft_status status = weft_agent_open(&options, &agent, NULL);
    weft_logging_set_sink(NULL, NULL);
    assert_int_equal(status, WEFT_ERR_RENDEZVOUS);
    assert_int_equal(warnings, 1);
}

UNIT_MAIN(rank_0_finds_the_stores_port_free, nobody_takes_the_stores_port,
          a_loopback_that_does_not_look_like_one_is_said, who_waits_for_the_store_says_so)
