/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_process.c - workers as processes: killed, stopped, continued; the store's process killed. */
#include "link_watch.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define BOUND_MS 1200
#define PATIENCE_MS 30000 /* for what must happen: on a busy machine much later than in theory */

typedef struct worker { /* a process that joins, then reports its end through a pipe: 'e'victed, 'l'ost, 't'ime */
    pid_t pid;
    int pipe;
} worker;

static void live(const link_place *place, int report)
{
    link_watch watch;
    char word = 't';
    link_watch_init(&watch);
    link_watch_open(&watch, place);
    for (int i = 0; i < 1000 && !watch.status && word == 't'; i++) {
        if (link_watch_await(&watch, &watch.evicted, 1, 10))
            word = 'e';
        else if (link_watch_await(&watch, &watch.store_lost, 1, 0))
            word = 'l';
    }
    (void)!write(report, &word, 1);
    _exit(0);
}

static worker start(const link_place *place)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(ends[0]);
        if (place->rank != 0 && place->store_fd >= 0)
            close(place->store_fd);
        live(place, ends[1]);
    }
    close(ends[1]);
    return (worker){pid, ends[0]};
}

/* The worker's last word; 0 if none came in time. */
static char last_word(const worker *who, int timeout_ms)
{
    struct pollfd wait = {.fd = who->pipe, .events = POLLIN};
    char word = 0;
    if (poll(&wait, 1, timeout_ms) > 0 && read(who->pipe, &word, 1) != 1)
        word = 0;
    return word;
}

static void end(const worker *who)
{
    kill(who->pid, SIGKILL);
    assert_int_equal(waitpid(who->pid, NULL, 0), who->pid);
    close(who->pipe);
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
static worker join_with_a_process(link_watch *watch)
{
    int port, fd = link_watch_listen(&port);
    link_place mine = place_of(0, port, fd), other = place_of(1, port, fd);
    worker child = start(&other);
    link_watch_init(watch);
    link_watch_open(watch, &mine);
    assert_int_equal(watch->status, WEFT_OK);
    depend_on(watch, 1);
    return child;
}

static void a_killed_worker_is_dead_at_once(void **state)
{
    link_watch watch;
    worker child = join_with_a_process(&watch);
    double before = link_watch_ms();
    kill(child.pid, SIGKILL);
    assert_true(link_watch_await(&watch, &watch.died, 1, PATIENCE_MS));
    print_message("noticed in %.2f ms\n", link_watch_ms() - before);
    assert_int_equal(watch.last_rank, 1);
    end(&child);
    link_watch_close(&watch);
}

static void a_stopped_worker_is_dead_within_the_bound_and_learns_that_it_was_evicted(void **state)
{
    link_watch watch;
    worker child = join_with_a_process(&watch);
    double before = link_watch_ms();
    kill(child.pid, SIGSTOP);
    assert_true(link_watch_await(&watch, &watch.died, 1, PATIENCE_MS));
    print_message("noticed in %.2f ms\n", link_watch_ms() - before);
    usleep(300 * 1000);
    kill(child.pid, SIGCONT);
    assert_int_equal(last_word(&child, PATIENCE_MS), 'e');
    end(&child);
    link_watch_close(&watch);
}

static void a_suspected_stopped_worker_is_dead_in_half_the_bound(void **state)
{
    link_watch watch;
    worker child = join_with_a_process(&watch);
    uint32_t incarnation = wfi_rendezvous_members(watch.link)[1].incarnation;
    kill(child.pid, SIGSTOP);
    usleep(10 * 1000);
    wfi_rendezvous_suspect(watch.link, 1, incarnation, "no answer");
    assert_true(link_watch_await(&watch, &watch.died, 1, PATIENCE_MS));
    assert_non_null(strstr(watch.why, "rank 0 suspected it: no answer"));
    end(&child);
    link_watch_close(&watch);
}

static void a_killed_store_is_lost_to_the_others(void **state)
{
    int port, fd = link_watch_listen(&port);
    link_place store = place_of(0, port, fd), mine = place_of(1, port, -1);
    worker child = start(&store);
    close(fd);
    link_watch watch;
    link_watch_init(&watch);
    link_watch_open(&watch, &mine);
    assert_int_equal(watch.status, WEFT_OK);
    kill(child.pid, SIGKILL);
    assert_true(link_watch_await(&watch, &watch.store_lost, 1, PATIENCE_MS));
    assert_false(link_watch_await(&watch, &watch.store_lost, 2, 100));
    end(&child);
    link_watch_close(&watch);
}

/* A store whose process stands still for longer than the bound and goes on: nobody is lost, on either side. */
static void a_stopped_store_that_goes_on_in_time_loses_nobody(void **state)
{
    int port, fd = link_watch_listen(&port);
    link_place store = place_of(0, port, fd), mine = place_of(1, port, -1);
    worker child = start(&store);
    close(fd);
    link_watch watch;
    link_watch_init(&watch);
    link_watch_open(&watch, &mine);
    assert_int_equal(watch.status, WEFT_OK);
    depend_on(&watch, 0);
    for (int i = 0; i < 2; i++) {
        kill(child.pid, SIGSTOP);
        assert_false(link_watch_await(&watch, &watch.store_lost, 1, BOUND_MS * 3 / 2));
        kill(child.pid, SIGCONT);
        assert_false(link_watch_await(&watch, &watch.store_lost, 1, BOUND_MS));
    }
    assert_int_equal(watch.evicted + watch.died, 0);
    kill(child.pid, SIGKILL);
    assert_true(link_watch_await(&watch, &watch.store_lost, 1, PATIENCE_MS));
    end(&child);
    link_watch_close(&watch);
}

static void a_stopped_store_is_lost_within_four_bounds(void **state)
{
    int port, fd = link_watch_listen(&port);
    link_place store = place_of(0, port, fd), mine = place_of(1, port, -1);
    worker child = start(&store);
    close(fd);
    link_watch watch;
    link_watch_init(&watch);
    link_watch_open(&watch, &mine);
    assert_int_equal(watch.status, WEFT_OK);
    depend_on(&watch, 0);
    kill(child.pid, SIGSTOP);
    assert_true(link_watch_await(&watch, &watch.store_lost, 1, PATIENCE_MS));
    assert_string_equal(watch.why, "the store is silent");
    end(&child);
    link_watch_close(&watch);
}

UNIT_MAIN(a_killed_worker_is_dead_at_once, a_stopped_worker_is_dead_within_the_bound_and_learns_that_it_was_evicted,
          a_suspected_stopped_worker_is_dead_in_half_the_bound, a_killed_store_is_lost_to_the_others,
          a_stopped_store_that_goes_on_in_time_loses_nobody, a_stopped_store_is_lost_within_four_bounds)
