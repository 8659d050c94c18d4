/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_bootstrap.c - agents that find rank 0 without MASTER_PORT: by the program's functions, and by Slurm's
 * variables. Two agents of this process are the job.
 */
#include "unit.h"

#include <weft/agent.h>
#include <weft/log.h>

#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- Agents ------------------------------------------------------------------------------------------------------ */

/* One place for a record, as a runtime may keep it. */
static struct shelf {
    sem_t there;
    char key[32], record[WEFT_BOOTSTRAP_BYTES];
    weft_status answer; /* of publish */
} shelf;

static weft_status publish(const char *key, const void *data, size_t size, void *arg)
{
    assert_ptr_equal(arg, &shelf);
    assert_int_equal(size, sizeof(shelf.record));
    snprintf(shelf.key, sizeof(shelf.key), "%s", key);
    memcpy(shelf.record, data, size);
    sem_post(&shelf.there);
    return shelf.answer;
}

static weft_status lookup(const char *key, void *data, size_t size, int64_t timeout_ms, void *arg)
{
    assert_ptr_equal(arg, &shelf);
    assert_memory_equal(key, "weft/", 5);
    assert_true(timeout_ms > 0);
    sem_wait(&shelf.there);
    memcpy(data, shelf.record, size);
    return WEFT_OK;
}

typedef struct member {
    weft_agent_options options;
    pthread_t thread;
    weft_agent *agent;
    weft_status status;
    char message[512];
} member;

static void *open_member(void *arg)
{
    member *m = arg;
    weft_error *error = NULL;
    m->status = weft_agent_open(&m->options, &m->agent, &error);
    snprintf(m->message, sizeof(m->message), "%s", weft_error_message(error));
    weft_error_unref(error);
    return NULL;
}

static void *close_member(void *arg)
{
    member *m = arg;
    m->status = weft_agent_close(m->agent, WEFT_FOREVER);
    return NULL;
}

static void on_all(member *members, void *(*what)(void *))
{
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(pthread_create(&members[rank].thread, NULL, what, &members[rank]), 0);
    for (int rank = 0; rank < 2; rank++)
        pthread_join(members[rank].thread, NULL);
}

static void fill(member *members, const weft_bootstrap *bootstrap)
{
    memset(members, 0, 2 * sizeof(*members));
    for (int rank = 0; rank < 2; rank++)
        members[rank].options = (weft_agent_options){.has_rank = true,
                                                     .rank = rank,
                                                     .world_size = 2,
                                                     .threads = 1,
                                                     .no_binding = true,
                                                     .fabric = "tcp",
                                                     .rendezvous_timeout_ms = 60000,
                                                     .bootstrap = bootstrap};
}

static void expect_job(member *members)
{
    on_all(members, open_member);
    for (int rank = 0; rank < 2; rank++) {
        if (members[rank].status)
            fprintf(stderr, "rank %d: %s\n", rank, members[rank].message);
        assert_int_equal(members[rank].status, WEFT_OK);
        assert_int_equal(weft_agent_rank(members[rank].agent), rank);
    }
    on_all(members, close_member);
    for (int rank = 0; rank < 2; rank++)
        assert_int_equal(members[rank].status, WEFT_OK);
}

static const weft_bootstrap by_shelf = {.publish = publish, .lookup = lookup, .arg = &shelf};

static void functions_of_the_program_bring_workers_together(void **state)
{
    member members[2];
    for (int i = 0; i < 2; i++) { /* a process may be in one job after another */
        fill(members, &by_shelf);
        expect_job(members);
        assert_non_null(strstr(shelf.record, "\nsecret "));
    }
    fill(members, &by_shelf);
    for (int rank = 0; rank < 2; rank++) {
        members[rank].options.secret = "sixteen bytes, and some";
        members[rank].options.secret_size = 23;
    }
    expect_job(members);
    assert_null(strstr(shelf.record, "secret"));
}

static void failing_functions_fail_the_opening(void **state)
{
    const weft_bootstrap half = {.publish = publish};
    member members[2];
    fill(members, &half);
    open_member(&members[1]);
    assert_int_equal(members[1].status, WEFT_ERR_INVALID);
    assert_non_null(strstr(members[1].message, "lookup"));

    shelf.answer = WEFT_ERR_IO;
    fill(members, &by_shelf);
    open_member(&members[0]);
    shelf.answer = WEFT_OK;
    sem_wait(&shelf.there);
    assert_int_equal(members[0].status, WEFT_ERR_IO);
    assert_non_null(strstr(members[0].message, "publish"));

    /* Rank 0 cannot open its store: the others get its reason. */
    fill(members, &by_shelf);
    members[0].options.iface = "nosuch0";
    open_member(&members[0]);
    assert_int_equal(members[0].status, WEFT_ERR_INVALID);
    open_member(&members[1]);
    assert_int_equal(members[1].status, WEFT_ERR_RENDEZVOUS);
    assert_non_null(
        strstr(members[1].message, "rank 0 failed before the job began: iface (WEFT_IFACE) is \"nosuch0\""));

    static const char *const records[] = {"",
                                          "weft 2\nport 5\naddress 127.0.0.1\n",
                                          "weft 1\nport 0\naddress 127.0.0.1\n",
                                          "weft 1\nport 5\n",
                                          "weft 1\nport 5\naddress 127.0.0.1\nsecret zz\n",
                                          "weft 1\nnonsense\n"};
    for (size_t i = 0; i < sizeof(records) / sizeof(*records); i++) {
        memset(shelf.record, 0, sizeof(shelf.record));
        strcpy(shelf.record, records[i]);
        sem_post(&shelf.there);
        fill(members, &by_shelf);
        open_member(&members[1]);
        assert_int_equal(members[1].status, WEFT_ERR_PROTOCOL);
    }
}

static void an_address_that_nobody_answers_is_named(void **state)
{
    member members[2];
    memset(shelf.record, 0, sizeof(shelf.record));
    strcpy(shelf.record,
           "weft 1\nport 1\nsecret 00112233445566778899aabbccddeeff\naddress 127.0.0.1\naddress 127.0.0.2\n");
    sem_post(&shelf.there);
    fill(members, &by_shelf);
    members[1].options.rendezvous_timeout_ms = 50;
    open_member(&members[1]);
    assert_int_equal(members[1].status, WEFT_ERR_RENDEZVOUS);
    assert_non_null(strstr(members[1].message, "port 1 of 127.0.0.1, 127.0.0.2"));
}

/* ---- Slurm ---------------------------------------------------------------------------------------------------- */

static void set_slurm(const char *job, const char *nodes, const char *list)
{
    setenv("SLURM_JOB_ID", job, 1);
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_NODES", nodes, 1);
    setenv("SLURM_STEP_NODELIST", list, 1);
    setenv("SLURM_NODEID", "0", 1);
}

static void unset_slurm(void)
{
    static const char *const names[] = {"SLURM_JOB_ID",         "SLURM_STEP_ID", "SLURM_STEP_NUM_NODES",
                                        "SLURM_STEP_NODELIST",  "SLURM_NODEID",  "SLURM_PROCID",
                                        "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS",  "MASTER_PORT"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        unsetenv(names[i]);
}

static const char *own_job(void) /* so that other runs of this test derive another port */
{
    static char job[32];
    snprintf(job, sizeof(job), "%d", (int)getpid());
    return job;
}

/* The port that slurm.c derives for the job. */
static int derived_port(void)
{
    return 20000 + (int)((unsigned long)getpid() * 61 % 10000);
}

static void slurms_variables_bring_workers_together(void **state)
{
    member members[2];
    set_slurm(own_job(), "1", "vm");
    fill(members, NULL);
    expect_job(members);
    unset_slurm();
}

static void *answer_nonsense(void *arg)
{
    int listener = *(int *)arg, fd;
    while ((fd = accept(listener, NULL, NULL)) >= 0) {
        (void)!write(fd, "220 mail\r\n", 10);
        close(fd);
    }
    return NULL;
}

/* The port is taken by a service that answers something else, the next one by one that says nothing. */
static void a_taken_port_is_passed_over(void **state)
{
    member members[2];
    int listeners[2], one = 1;
    pthread_t thread;
    for (int i = 0; i < 2; i++) {
        struct sockaddr_in at = {.sin_family = AF_INET,
                                 .sin_port = htons((uint16_t)(derived_port() + i)),
                                 .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        listeners[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        (void)setsockopt(listeners[i], SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
        if (bind(listeners[i], (struct sockaddr *)&at, sizeof(at)) ==
            0) /* else somebody else has it, which serves as well */
            assert_int_equal(listen(listeners[i], 16), 0);
    }
    assert_int_equal(pthread_create(&thread, NULL, answer_nonsense, &listeners[0]), 0);
    set_slurm(own_job(), "1", "vm");
    fill(members, NULL);
    expect_job(members);
    unset_slurm();
    shutdown(listeners[0], SHUT_RDWR);
    pthread_join(thread, NULL);
    close(listeners[0]);
    close(listeners[1]);
}

static void expect_refusal(member *m, const char *part)
{
    open_member(m);
    assert_int_equal(m->status, WEFT_ERR_INVALID);
    if (!strstr(m->message, part))
        fprintf(stderr, "\"%s\" does not have \"%s\"\n", m->message, part);
    assert_non_null(strstr(m->message, part));
}

static void what_slurm_does_not_say_is_named(void **state)
{
    member members[2];
    fill(members, NULL);
    set_slurm(own_job(), "2", "n[1-2]");
    expect_refusal(&members[0], "2 nodes and no secret");
    setenv("WEFT_INSECURE", "1", 1);
    setenv("SLURM_STEP_NODELIST", "n[1-", 1);
    expect_refusal(&members[0], "name no node");
    setenv("SLURM_STEP_NODELIST", "n[1-2]", 1);
    setenv("SLURM_NODEID", "1", 1);
    expect_refusal(&members[0], "rank 0 is on node 1");
    unsetenv("WEFT_INSECURE");
    unset_slurm();

    members[0].options.has_rank = false; /* as in a batch script, without srun */
    setenv("SLURM_JOB_ID", own_job(), 1);
    setenv("SLURM_PROCID", "0", 1);
    setenv("SLURM_NTASKS", "3", 1);
    expect_refusal(&members[0], "world size 3 comes from SLURM_NTASKS");
    setenv("SLURM_STEP_ID", "0", 1);
    setenv("SLURM_STEP_NUM_TASKS", "3", 1);
    setenv("SLURM_STEP_NUM_NODES", "2", 1);
    setenv("MASTER_PORT", "29500", 1); /* Slurm is asked for the address (hello_slurm_port has a whole job) */
    setenv("SLURM_STEP_NODELIST", "n[1-2]", 1);
    expect_refusal(&members[0], "has 2 nodes and no secret");
    unsetenv("MASTER_PORT");
    unsetenv("SLURM_STEP_NUM_NODES");
    setenv("SLURM_STEP_NODELIST", "n1", 1);
    expect_refusal(&members[0], "an unknown number of nodes and no secret");
    unset_slurm();
}

/* Their launchers say how many workers there are, and how many of them are on this node. */
static void workers_that_are_elsewhere_need_an_address(void **state)
{
    static const char *const says[][4] = {
        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI"},
        {"PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS", "MPICH"},
        {"PMI_RANK", "PMI_SIZE", "PMI_LOCAL_SIZE", "MPICH"},
        {"PMI_RANK", "PMI_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE", "MVAPICH"}};
    setenv("MASTER_PORT", "29500", 1);
    for (size_t i = 0; i < sizeof(says) / sizeof(*says); i++) {
        char sentence[128];
        member members[2];
        fill(members, NULL);
        snprintf(sentence, sizeof(sentence), "MASTER_ADDR is not, and %s started this job on several nodes",
                 says[i][3]);
        for (int rank = 0; rank < 2; rank++) {
            members[rank].options.has_rank = false;
            setenv(says[i][0], rank ? "1" : "0", 1);
            setenv(says[i][1], "5", 1);
            setenv(says[i][2], rank ? "1" : "4", 1); /* four on the first node, one on the second */
            expect_refusal(&members[rank], sentence);
        }
        for (size_t k = 0; k < 3; k++)
            unsetenv(says[i][k]);
    }
    unsetenv("MASTER_PORT");
}

static int begin(void **state)
{
    unset_slurm();
    return sem_init(&shelf.there, 0, 0);
}

static int end(void **state)
{
    return sem_destroy(&shelf.there);
}

UNIT_MAIN_WITH(begin, end, functions_of_the_program_bring_workers_together, failing_functions_fail_the_opening,
               an_address_that_nobody_answers_is_named, slurms_variables_bring_workers_together,
               a_taken_port_is_passed_over, what_slurm_does_not_say_is_named,
               workers_that_are_elsewhere_need_an_address)
