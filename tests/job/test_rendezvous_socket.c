/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_socket.c - links over real sockets, the ranks of a job as threads of one process; strangers. */
#include "link_watch.h"

#include "base/socket.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORKERS 8

typedef struct job {
    int port, count;
    link_watch watches[WORKERS];
    link_place places[WORKERS];
} job;

typedef struct opening {
    link_watch *watch;
    const link_place *place;
} opening;

static void *open_one(void *arg)
{
    opening *one = arg;
    link_watch_open(one->watch, one->place);
    return NULL;
}

/* Opens all at once; ranks whose place was changed before may fail. */
static void open_all(job *at)
{
    pthread_t threads[WORKERS];
    opening openings[WORKERS];
    for (int i = 0; i < at->count; i++) {
        openings[i] = (opening){&at->watches[i], &at->places[i]};
        assert_int_equal(pthread_create(&threads[i], NULL, open_one, &openings[i]), 0);
    }
    for (int i = 0; i < at->count; i++)
        pthread_join(threads[i], NULL);
}

static void plan(job *at, int count, int64_t death_timeout_ms)
{
    memset(at, 0, sizeof(*at));
    at->count = count;
    int fd = link_watch_listen(&at->port);
    for (int i = 0; i < count; i++) {
        link_watch_init(&at->watches[i]);
        at->places[i] = (link_place){.rank = i,
                                     .world_size = count,
                                     .port = at->port,
                                     .store_fd = fd,
                                     .join_timeout_ms = 10000,
                                     .death_timeout_ms = death_timeout_ms};
    }
}

static void close_from(job *at, int first)
{
    for (int i = at->count - 1; i >= first; i--)
        link_watch_close(&at->watches[i]);
}

static void eight_ranks_in_one_process_join(void **state)
{
    job at;
    plan(&at, WORKERS, 2000);
    open_all(&at);
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(at.watches[i].status, WEFT_OK);
        const wfi_member *members = wfi_rendezvous_members(at.watches[i].link);
        assert_string_equal(members[5].name, "worker5");
        assert_memory_equal(members[5].addresses, "there", 5);
        assert_memory_equal(wfi_rendezvous_job_key(at.watches[i].link), wfi_rendezvous_job_key(at.watches[0].link),
                            WFI_JOB_KEY_BYTES);
    }
    close_from(&at, 0);
}

static void who_closes_is_reported_as_left(void **state)
{
    job at;
    plan(&at, 3, 2000);
    open_all(&at);
    link_watch_close(&at.watches[2]);
    assert_true(link_watch_await(&at.watches[0], &at.watches[0].left, 1, 5000));
    assert_true(link_watch_await(&at.watches[1], &at.watches[1].left, 1, 5000));
    assert_int_equal(at.watches[0].last_rank, 2);
    assert_int_equal(at.watches[0].died + at.watches[0].store_lost, 0);
    at.count = 2;
    close_from(&at, 0);
}

static void all_closing_ends_in_terminated(void **state)
{
    job at;
    plan(&at, WORKERS, 2000);
    for (int i = 0; i < WORKERS; i++)
        at.watches[i].answers_probes = true;
    open_all(&at);
    for (int i = 0; i < WORKERS; i++)
        wfi_rendezvous_closing(at.watches[i].link);
    for (int i = 0; i < WORKERS; i++)
        assert_true(link_watch_await(&at.watches[i], &at.watches[i].terminated, 1, 5000));
    close_from(&at, 0);
}

/* Rank 0 reaches the store in its own process in the same way. */
static void a_sync_is_answered(void **state)
{
    job at;
    plan(&at, 2, 2000);
    open_all(&at);
    for (int i = 0; i < 2; i++) {
        wfi_rendezvous_sync(at.watches[i].link, 7);
        wfi_rendezvous_sync(at.watches[i].link, 8);
        assert_true(link_watch_await(&at.watches[i], &at.watches[i].synced, 2, 5000));
        assert_int_equal(at.watches[i].last_synced, 8);
    }
    close_from(&at, 0);
}

static void need_all(job *at)
{
    for (int i = 0; i < at->count; i++)
        for (int rank = 0; rank < at->count; rank++)
            wfi_rendezvous_interest(at->watches[i].link, rank,
                                    wfi_rendezvous_members(at->watches[i].link)[rank].incarnation, true);
}

static void heartbeats_keep_a_quiet_job_alive(void **state)
{
    job at;
    plan(&at, 3, 400);
    open_all(&at);
    need_all(&at);
    assert_false(link_watch_await(&at.watches[1], &at.watches[1].store_lost, 1, 1200));
    assert_int_equal(at.watches[0].died + at.watches[1].died + at.watches[2].died, 0);
    close_from(&at, 0);
}

static void a_suspicion_of_a_living_one_is_harmless(void **state)
{
    job at;
    plan(&at, 2, 600);
    open_all(&at);
    wfi_rendezvous_suspect(at.watches[0].link, 1, wfi_rendezvous_members(at.watches[0].link)[1].incarnation, "doubt");
    assert_true(link_watch_await(&at.watches[1], &at.watches[1].dials, 1, 60000));
    assert_int_equal(at.watches[1].last_rank, 0);
    assert_false(link_watch_await(&at.watches[0], &at.watches[0].died, 1, 800));
    close_from(&at, 0);
}

static void a_taken_port_is_named(void **state)
{
    int port, fd = link_watch_listen(&port);
    char expected[256];
    link_watch watch;
    link_watch_init(&watch);
    link_place place = {.world_size = 1, .port = port, .store_fd = -1, .join_timeout_ms = 1000, .death_timeout_ms = -1};
    link_watch_open(&watch, &place);
    snprintf(
        expected, sizeof(expected),
        "MASTER_PORT %d on 127.0.0.1 is in use; choose another, or end the process that has it (ss -ltnp): it may be "
        "a forked child of a former rank 0",
        port);
    assert_int_equal(watch.status, WEFT_ERR_EXISTS);
    assert_string_equal(watch.error, expected);
    link_watch_close(&watch);
    close(fd);
}

static void a_missing_rank_is_named_to_everybody(void **state)
{
    job at;
    plan(&at, 3, 2000);
    at.count = 2;
    for (int i = 0; i < 2; i++)
        at.places[i].join_timeout_ms = 300;
    open_all(&at);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(at.watches[i].status, WEFT_ERR_RENDEZVOUS);
        assert_non_null(strstr(at.watches[i].error, "rank 2 did not come within"));
    }
    at.count = 3;
    at.watches[2].status = WEFT_ERR_STATE; /* never opened */
    close_from(&at, 0);
}

static void a_rank_twice_is_refused_and_the_job_goes_on(void **state)
{
    job at;
    plan(&at, 4, 2000);
    at.places[3].rank = 2; /* either of the two is refused */
    at.places[3].name = "other";
    for (int i = 0; i < 4; i++)
        at.places[i].world_size = 3;
    open_all(&at);
    assert_int_equal(at.watches[0].status, WEFT_OK);
    assert_int_equal(at.watches[2].status + at.watches[3].status, WEFT_ERR_EXISTS);
    close_from(&at, 0);
}

static void no_store_is_an_error_that_says_so(void **state)
{
    int port;
    close(link_watch_listen(&port));
    link_watch watch;
    link_watch_init(&watch);
    link_place place = {.rank = 1, .world_size = 2, .port = port, .join_timeout_ms = 200, .death_timeout_ms = -1};
    link_watch_open(&watch, &place);
    assert_int_equal(watch.status, WEFT_ERR_RENDEZVOUS);
    assert_non_null(strstr(watch.error, "rank 0's store on 127.0.0.1"));
    link_watch_close(&watch);
}

static void a_link_without_threads_is_pumped(void **state)
{
    job at;
    plan(&at, 2, 1000);
    at.places[1].no_threads = true;
    open_all(&at);
    need_all(&at);
    double until = link_watch_ms() + 2500;
    while (link_watch_ms() < until) {
        uint64_t due_ns;
        struct pollfd wait = {.fd = wfi_rendezvous_pump(at.watches[1].link, &due_ns), .events = POLLIN};
        poll(&wait, 1, wfi_poll_timeout(wfi_now(&wfi_clock_real), due_ns));
    }
    assert_int_equal(at.watches[0].died, 0);
    close_from(&at, 0);
}

/* ---- Strangers ------------------------------------------------------------------------------------------------- */

static int dial(int port)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&where, sizeof(where)), 0);
    return fd;
}

static void *open_rank_0(void *arg)
{
    job *at = arg;
    link_watch_open(&at->watches[0], &at->places[0]);
    return NULL;
}

/* How long rank 1 takes to join while `count` strangers hold connections on which they said `words`. */
static double join_among_strangers(int count, const void *words, size_t size)
{
    job at;
    pthread_t first;
    int fds[256];
    plan(&at, 2, 2000);
    assert_int_equal(pthread_create(&first, NULL, open_rank_0, &at), 0);
    for (int i = 0; i < count; i++) {
        fds[i] = dial(at.port);
        if (size)
            assert_int_equal(send(fds[i], words, size, MSG_NOSIGNAL), size);
    }
    usleep(50 * 1000); /* they hold their connections: what a burst of them costs the kernel is another matter */
    double before = link_watch_ms();
    link_watch_open(&at.watches[1], &at.places[1]);
    double took = link_watch_ms() - before;
    pthread_join(first, NULL);
    assert_int_equal(at.watches[0].status, WEFT_OK);
    assert_int_equal(at.watches[1].status, WEFT_OK);
    for (int i = 0; i < count; i++)
        close(fds[i]);
    close_from(&at, 0);
    return took;
}

/* The best of three: what the machine's other work adds is not the strangers' doing. */
static void expect_no_delay(int count, const void *words, size_t size)
{
    double best = 1e9;
    for (int i = 0; i < 3 && best > 20; i++) {
        double took = join_among_strangers(count, words, size);
        best = took < best ? took : best;
    }
    print_message("joined in %.2f ms\n", best);
    assert_true(best <= 20);
}

static void a_silent_stranger_delays_nobody(void **state)
{
    expect_no_delay(1, NULL, 0);
}

static void half_a_head_delays_nobody(void **state)
{
    expect_no_delay(1, "WS\1", 3);
}

static void garbage_delays_nobody(void **state)
{
    expect_no_delay(1, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
}

static void two_hundred_strangers_delay_nobody(void **state)
{
    expect_no_delay(200, "WS\1\1", 4);
}

UNIT_MAIN(eight_ranks_in_one_process_join, who_closes_is_reported_as_left, all_closing_ends_in_terminated,
          a_sync_is_answered, heartbeats_keep_a_quiet_job_alive, a_suspicion_of_a_living_one_is_harmless,
          a_taken_port_is_named, a_missing_rank_is_named_to_everybody, a_rank_twice_is_refused_and_the_job_goes_on,
          no_store_is_an_error_that_says_so, a_link_without_threads_is_pumped, a_silent_stranger_delays_nobody,
          half_a_head_delays_nobody, garbage_delays_nobody, two_hundred_strangers_delay_nobody)
