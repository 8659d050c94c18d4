/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_process.c - workers as processes: killed, stopped, continued; the store's process killed. */
#include "children.h"
#include "link_watch.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BOUND_MS 1200
#define PATIENCE_MS 30000 /* for what must happen: on a busy machine much later than in theory */

/* Joins, and says how its membership ends: 'e'victed, or 'l'ost the store. */
static void live(const link_place *place)
{
    link_watch watch;
    link_watch_init(&watch);
    link_watch_open(&watch, place);
    bool evicted = false;
    while (!evicted && !watch.status && !link_watch_await(&watch, &watch.store_lost, 1, 0))
        evicted = link_watch_await(&watch, &watch.evicted, 1, 10);
    child_say(evicted ? 'e' : 'l');
    link_watch_close(&watch);
    _exit(0);
}

static child start(const link_place *place)
{
    child worker = child_fork(place->rank ? "worker" : "store");
    if (worker.pid)
        return worker;
    if (place->rank != 0 && place->store_fd >= 0)
        close(place->store_fd);
    live(place);
    return worker;
}

static link_place place_of(int rank, int port, int fd)
{
    return (link_place){.rank = rank,
                        .world_size = 2,
                        .port = port,
                        .store_fd = fd,
                        .join_timeout_ms = 10000,
                        .death_timeout_ms = BOUND_MS};
}

static void depend_on(link_watch *watch, int rank)
{
    wfi_rendezvous_interest(watch->link, rank, wfi_rendezvous_members(watch->link)[rank].incarnation, true);
}

/* Rank 1 as a process, rank 0 here, which depends on it. */
static child join_with_a_process(link_watch *watch)
{
    int port, fd = link_watch_listen(&port);
    link_place mine = place_of(0, port, fd), theirs = place_of(1, port, fd);
    child other = start(&theirs);
    link_watch_init(watch);
    link_watch_open(watch, &mine);
    assert_int_equal(watch->status, WEFT_OK);
    depend_on(watch, 1);
    return other;
}

static void a_killed_worker_is_dead_at_once(void **state)
{
    link_watch watch;
    child other = join_with_a_process(&watch);
    double before = link_watch_ms();
    child_signal(&other, SIGKILL);
    assert_true(link_watch_await(&watch, &watch.died, 1, PATIENCE_MS));
    print_message("noticed in %.2f ms\n", link_watch_ms() - before);
    assert_int_equal(watch.last_rank, 1);
    child_kill(&other);
    link_watch_close(&watch);
}

static void a_stopped_worker_is_dead_within_the_bound_and_learns_that_it_was_evicted(void **state)
{
    link_watch watch;
    child other = join_with_a_process(&watch);
    double before = link_watch_ms();
    child_signal(&other, SIGSTOP);
    assert_true(link_watch_await(&watch, &watch.died, 1, PATIENCE_MS));
    print_message("noticed in %.2f ms\n", link_watch_ms() - before);
    usleep(300 * 1000);
    child_signal(&other, SIGCONT);
    child_hear(&other, 'e');
    child_must_end_well(&other, 1);
    link_watch_close(&watch);
}

static void a_suspected_stopped_worker_is_dead_in_half_the_bound(void **state)
{
    link_watch watch;
    child other = join_with_a_process(&watch);
    uint32_t incarnation = wfi_rendezvous_members(watch.link)[1].incarnation;
    child_signal(&other, SIGSTOP);
    usleep(10 * 1000);
    wfi_rendezvous_suspect(watch.link, 1, incarnation, "no answer");
    assert_true(link_watch_await(&watch, &watch.died, 1, PATIENCE_MS));
    assert_non_null(strstr(watch.why, "rank 0 suspected it: no answer"));
    child_kill(&other);
    link_watch_close(&watch);
}

static void a_killed_store_is_lost_to_the_others(void **state)
{
    int port, fd = link_watch_listen(&port);
    link_place store = place_of(0, port, fd), mine = place_of(1, port, -1);
    child other = start(&store);
    close(fd);
    link_watch watch;
    link_watch_init(&watch);
    link_watch_open(&watch, &mine);
    assert_int_equal(watch.status, WEFT_OK);
    child_signal(&other, SIGKILL);
    assert_true(link_watch_await(&watch, &watch.store_lost, 1, PATIENCE_MS));
    assert_false(link_watch_await(&watch, &watch.store_lost, 2, 100));
    child_kill(&other);
    link_watch_close(&watch);
}

/* A store whose process stands still for longer than the bound and goes on: nobody is lost, on either side. */
static void a_stopped_store_that_goes_on_in_time_loses_nobody(void **state)
{
    int port, fd = link_watch_listen(&port);
    link_place store = place_of(0, port, fd), mine = place_of(1, port, -1);
    child other = start(&store);
    close(fd);
    link_watch watch;
    link_watch_init(&watch);
    link_watch_open(&watch, &mine);
    assert_int_equal(watch.status, WEFT_OK);
    depend_on(&watch, 0);
    for (int i = 0; i < 2; i++) {
        child_signal(&other, SIGSTOP);
        assert_false(link_watch_await(&watch, &watch.store_lost, 1, BOUND_MS * 3 / 2));
        child_signal(&other, SIGCONT);
        assert_false(link_watch_await(&watch, &watch.store_lost, 1, BOUND_MS));
    }
    assert_int_equal(watch.evicted + watch.died, 0);
    child_signal(&other, SIGKILL);
    assert_true(link_watch_await(&watch, &watch.store_lost, 1, PATIENCE_MS));
    child_kill(&other);
    link_watch_close(&watch);
}

static void a_stopped_store_is_lost_within_four_bounds(void **state)
{
    int port, fd = link_watch_listen(&port);
    link_place store = place_of(0, port, fd), mine = place_of(1, port, -1);
    child other = start(&store);
    close(fd);
    link_watch watch;
    link_watch_init(&watch);
    link_watch_open(&watch, &mine);
    assert_int_equal(watch.status, WEFT_OK);
    depend_on(&watch, 0);
    child_signal(&other, SIGSTOP);
    assert_true(link_watch_await(&watch, &watch.store_lost, 1, PATIENCE_MS));
    assert_string_equal(watch.why, "the store is silent");
    child_kill(&other);
    link_watch_close(&watch);
}

UNIT_MAIN(a_killed_worker_is_dead_at_once, a_stopped_worker_is_dead_within_the_bound_and_learns_that_it_was_evicted,
          a_suspected_stopped_worker_is_dead_in_half_the_bound, a_killed_store_is_lost_to_the_others,
          a_stopped_store_that_goes_on_in_time_loses_nobody, a_stopped_store_is_lost_within_four_bounds)
