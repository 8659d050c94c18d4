/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_idle.c - a net with nothing to do sends nothing and wakes nobody; of its interest in a peer it speaks
 * only after that has changed.
 */
#include "net/net_host.h"

#include <dirent.h>
#include <stdio.h>

#define SETTLE_NS 500000000
#define IDLE_NS 999000000

/* How often this process's threads of that name have gone to sleep. */
static unsigned long sleeps_of(const char *name)
{
    unsigned long sum = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        char path[300], line[128], comm[64] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (file && fgets(line, sizeof(line), file)) {
            unsigned long count;
            (void)sscanf(line, "Name: %63s", comm);
            if (strcmp(comm, name) == 0 && sscanf(line, "voluntary_ctxt_switches: %lu", &count) == 1)
                sum += count;
        }
        if (file)
            fclose(file);
    }
    closedir(dir);
    return sum;
}

static uint64_t frames(net_host *host)
{
    weft_stats stats = inside_stats(host->net);
    return stats.frames_sent + stats.frames_received;
}

static void idle(net_host *host)
{
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(host_send_free(host, 1 - host->rank, i, 100), WEFT_OK);
    host_until(host, &host->done_ok, 20);
    host_meet(host, &host->world->turns[0]);
    host_pause(host, SETTLE_NS);
    uint64_t before = frames(host);
    assert_int_equal(inside_timers(host->net), 0);
    unsigned long poller = host->world->sim ? 0 : sleeps_of("weft-poll");
    unsigned long events = host->world->sim ? 0 : sleeps_of("weft-cm");
    host_pause(host, IDLE_NS);
    if (!host->world->sim) {
        poller = sleeps_of("weft-poll") - poller;
        events = sleeps_of("weft-cm") - events;
        if (poller + events > 4) /* of both hosts, with what this test's own threads do to them */
            fprintf(stderr, "the pollers slept %lu times in a second, the event threads %lu\n", poller, events);
        assert_true(poller + events <= 4);
    }
    assert_int_equal(frames(host), before);
    assert_int_equal(inside_timers(host->net), 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(an_idle_net_is_silent, idle, 2, 1, true, .on_message = host_check_order, .death_timeout_ms = 400)

/* ---- Interest -------------------------------------------------------------------------------------------------- */

static void add_interest(net_host *host, int change)
{
    wfi_net_lock(host->net);
    wfi_peer_interest(host_peer(host, 1), change);
    wfi_net_unlock(host->net);
}

/* What the store was told, once the look that was due is over. */
static bool told(net_host *host)
{
    for (int i = 0; inside_timers(host->net) && i < 20000; i++)
        host_pause(host, 1000000);
    assert_int_equal(inside_timers(host->net), 0);
    return inside_interested(host->net, 1);
}

static void interest_changes(net_host *host)
{
    if (host->rank == 0) {
        assert_int_equal(inside_timers(host->net), 0);
        add_interest(host, 1);
        assert_int_equal(inside_timers(host->net), 1);
        assert_true(told(host));
        add_interest(host, 1);
        assert_int_equal(inside_timers(host->net), 0); /* it knows */
        add_interest(host, -1);
        assert_int_equal(inside_timers(host->net), 0);
        assert_true(told(host));
        for (int i = 0; i < 1000; i++) { /* calls that follow each other */
            add_interest(host, -1);
            add_interest(host, 1);
        }
        assert_int_equal(inside_timers(host->net), 1);
        assert_true(told(host));
        add_interest(host, -1);
        assert_false(told(host));
        add_interest(host, 1);
        add_interest(host, -1); /* over before anybody looked */
        assert_false(told(host));
    }
    host_meet(host, &host->world->finished);
}

static void the_store_hears_of_what_lasts(void **state)
{
    net_world world = {.death_timeout_ms = 200};
    world_sim(&world, 1, 2, interest_changes, NULL);
    net_world tcp = {.death_timeout_ms = 400};
    world_tcp(&tcp, 2, interest_changes);
}

static void unbounded(net_host *host)
{
    if (host->rank == 0) {
        add_interest(host, 1);
        assert_int_equal(inside_timers(host->net), 0); /* nobody is declared dead for silence: nothing to ask for */
        add_interest(host, -1);
    }
    host_meet(host, &host->world->finished);
}

NET_TEST(without_a_bound_nobody_is_needed, unbounded, 2, 1, false, .death_timeout_ms = -1)

UNIT_MAIN(an_idle_net_is_silent, the_store_hears_of_what_lasts, without_a_bound_nobody_is_needed)
