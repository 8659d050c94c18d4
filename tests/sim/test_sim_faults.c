/* SPDX-License-Identifier: Apache-2.0 */
/* test_sim_faults.c - deaths, pauses, cuts and resets, as the fabric and the programs of a world see them. */
#include "sim_host.h"
#include "lanes.h"
#include "make.h"

#include <stdlib.h>

typedef struct pair {
    sim_host a, b;
    wfi_lane *lane_a, *lane_b;
} pair;

static void join(pair *p, weft_sim *sim)
{
    host_open(&p->a, sim, 0);
    host_open(&p->b, sim, 1);
    host_join(&p->a, &p->b, &p->lane_a, &p->lane_b);
}

static void part(pair *p)
{
    p->a.ops->lane_close(p->lane_a);
    p->b.ops->lane_close(p->lane_b);
    host_close(&p->a);
    host_close(&p->b);
}

/* ---- Deaths ---------------------------------------------------------------------------------------------------- */

static void peer_dies(weft_sim *sim)
{
    pair p;
    wfi_fabric_op receive, send, read;
    char buffer[8], memory[8];
    wfi_region *region;
    join(&p, sim);
    assert_int_equal(p.b.ops->region_open(p.b.fabric, &WFI_HOST_MEMORY(memory, 8), WFI_REMOTE_READ, &region), WEFT_OK);
    uint64_t base = region->base, key = region->key;
    uint8_t address[WFI_ADDRESS_MAX];
    size_t size = host_address(&p.b, address);
    assert_int_equal(p.a.ops->post_recv(p.lane_a, &receive, &(wfi_receive_buffer){buffer, sizeof(buffer), NULL}, 1),
                     WEFT_OK);
    assert_int_equal(p.a.ops->read(p.lane_a, &read, buffer, 8, NULL, base, key), WEFT_OK);
    weft_sim_kill(sim, 1);
    uint64_t start = weft_sim_now(sim);
    assert_int_equal(host_send(&p.a, p.lane_a, &send, "late"), WEFT_OK); /* as tcp: no proof of arrival */
    host_expect(&p.a, &send, WEFT_OK);
    assert_int_equal(host_event(&p.a, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    assert_in_range(weft_sim_now(sim) - start, 2000, 20000);
    host_expect(&p.a, &receive, WEFT_ERR_UNREACHABLE);
    host_expect(&p.a, &read, WEFT_ERR_UNREACHABLE);
    p.a.ops->lane_close(p.lane_a);
    assert_int_equal(lanes_connect(p.a.fabric, address, size, NULL, 0, NULL, &p.lane_a), WEFT_OK);
    assert_int_equal(host_event(&p.a, WFI_EVENT_CLOSED).status, WEFT_ERR_UNREACHABLE);
    p.a.ops->lane_close(p.lane_a);
    host_close(&p.a);
    host_open(&p.b, sim, 1); /* another life of that rank */
    host_close(&p.b);
}

static void test_peer_dies(void **state)
{
    for (uint64_t seed = 0; seed < 10; seed++)
        host_world(&(weft_sim_options){.seed = seed}, peer_dies);
}

typedef struct lives {
    int steps[3];
    bool after_suicide;
} lives;

static void victim(weft_sim *sim, int rank, void *arg)
{
    lives *l = arg;
    void *mine = malloc(100); /* never freed: dead programs own what they owned */
    assert_non_null(mine);
    for (;;) {
        l->steps[rank]++;
        weft_sim_sleep(sim, 1000000);
        memset(mine, rank, 100);
    }
}

static void suicide(weft_sim *sim, int rank, void *arg)
{
    lives *l = arg;
    void *mine = malloc(100);
    weft_sim_sleep(sim, 1000000);
    weft_sim_kill(sim, rank);
    l->after_suicide = true;
    free(mine);
}

static void killer(weft_sim *sim, int rank, void *arg)
{
    lives *l = arg;
    weft_sim_sleep(sim, 10500000);
    weft_sim_kill(sim, 1);
    weft_sim_kill(sim, 77); /* nobody */
    weft_sim_kill(sim, -1);
    weft_sim_sleep(sim, 10000000);
    assert_int_equal(l->steps[1], 11);
}

static void test_killed_programs_stop(void **state)
{
    lives l = {0};
    weft_sim *sim = sim_open(NULL);
    assert_int_equal(weft_sim_spawn(sim, 0, killer, &l), WEFT_OK);
    assert_int_equal(weft_sim_spawn(sim, 1, victim, &l), WEFT_OK);
    assert_int_equal(weft_sim_spawn(sim, 2, suicide, &l), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, 1000), WEFT_OK);
    assert_false(l.after_suicide);
    assert_int_equal(weft_sim_spawn(sim, 2, victim, &l), WEFT_OK); /* another life */
    assert_int_equal(weft_sim_run(sim, 1000), WEFT_ERR_TIMEOUT);
    assert_in_range(l.steps[2], 900, 1000);
    weft_sim_kill(sim, 2); /* from outside */
    assert_int_equal(weft_sim_run(sim, 1000), WEFT_OK);
    weft_sim_close(sim);
}

/* ---- Pauses ---------------------------------------------------------------------------------------------------- */

static void silent_while_paused(weft_sim *sim)
{
    pair p;
    wfi_fabric_op send, receive, read, write;
    uint8_t memory[8] = "before", buffer[8] = "", text[8] = "after";
    wfi_region *region;
    join(&p, sim);
    assert_int_equal(
        p.b.ops->region_open(p.b.fabric, &WFI_HOST_MEMORY(memory, 8), WFI_REMOTE_READ | WFI_REMOTE_WRITE, &region),
        WEFT_OK);
    assert_int_equal(p.b.ops->post_recv(p.lane_b, &receive, &(wfi_receive_buffer){buffer, 8, NULL}, 1), WEFT_OK);
    weft_sim_pause(sim, 1);
    weft_sim_pause(sim, 1);
    assert_int_equal(host_send(&p.a, p.lane_a, &send, "held"), WEFT_OK);
    host_expect(&p.a, &send, WEFT_OK); /* it left */
    assert_int_equal(p.a.ops->write(p.lane_a, &write, text, 8, NULL, region->base, region->key), WEFT_OK);
    host_silence(&p.a, 5 * SECOND_NS); /* no answer, and no sign of a break */
    int calls = p.b.calls;
    host_silence(&p.b, 0);
    assert_string_equal((char *)memory, "before");
    weft_sim_resume(sim, 1);
    weft_sim_resume(sim, 1);
    host_expect(&p.a, &write, WEFT_OK);
    host_expect(&p.b, &receive, WEFT_OK);
    assert_int_equal(p.b.calls, calls + 1);
    assert_string_equal((char *)memory, "after");
    uint8_t back[8];
    assert_int_equal(p.a.ops->read(p.lane_a, &read, back, 8, NULL, region->base, region->key), WEFT_OK);
    host_expect(&p.a, &read, WEFT_OK);
    assert_string_equal((char *)back, "after");
    p.b.ops->region_close(p.b.fabric, region);
    part(&p);
}

static void test_silent_while_paused(void **state)
{
    host_world(NULL, silent_while_paused);
}

/* What came before a pause, but was not announced, is announced after it. */
static void announces_after_resume(weft_sim *sim)
{
    pair p;
    wfi_fabric_op send;
    join(&p, sim);
    weft_sim_pause(sim, 0);
    int calls = p.a.calls;
    assert_int_equal(host_send(&p.a, p.lane_a, &send, "x"), WEFT_OK); /* completes at departure, pause or not */
    weft_sim_sleep(sim, SECOND_NS);
    assert_int_equal(p.a.calls, calls);
    weft_sim_resume(sim, 0);
    weft_sim_sleep(sim, 1);
    assert_int_equal(p.a.calls, calls + 1);
    host_expect(&p.a, &send, WEFT_OK);
    part(&p);
}

static void test_announces_after_resume(void **state)
{
    host_world(NULL, announces_after_resume);
}

static void pauser(weft_sim *sim, int rank, void *arg)
{
    lives *l = arg;
    weft_sim_sleep(sim, 10500000);
    weft_sim_pause(sim, 1);
    weft_sim_sleep(sim, SECOND_NS);
    assert_int_equal(l->steps[1], 11);
    weft_sim_resume(sim, 1);
    weft_sim_sleep(sim, 10000000);
    assert_in_range(l->steps[1], 20, 22);
    weft_sim_pause(sim, 1);
    weft_sim_kill(sim, 1); /* stopped and killed */
}

static void test_paused_programs_stand(void **state)
{
    lives l = {0};
    weft_sim *sim = sim_open(NULL);
    assert_int_equal(weft_sim_spawn(sim, 0, pauser, &l), WEFT_OK);
    assert_int_equal(weft_sim_spawn(sim, 1, victim, &l), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, WEFT_FOREVER), WEFT_OK);
    weft_sim_close(sim);
}

static void killed_while_paused(weft_sim *sim)
{
    sim_host a, b;
    host_open(&a, sim, 0);
    host_open(&b, sim, 1);
    weft_sim_pause(sim, 1);
    wfi_lane *lane = host_connect(&a, &b, "");
    host_silence(&a, SECOND_NS);
    weft_sim_kill(sim, 1); /* what stood at its door is refused */
    assert_int_equal(host_event(&a, WFI_EVENT_CLOSED).status, WEFT_ERR_UNREACHABLE);
    a.ops->lane_close(lane);
    host_close(&a);
}

static void test_killed_while_paused(void **state)
{
    host_world(NULL, killed_while_paused);
}

/* ---- Links ----------------------------------------------------------------------------------------------------- */

enum { COUNT = 60 };

/* Messages before, during and after a cut arrive whole and in order, whenever it is healed. */
static void cut_keeps_order(weft_sim *sim)
{
    pair p;
    wfi_fabric_op sends[COUNT], receives[COUNT];
    uint8_t sent[COUNT], got[COUNT];
    join(&p, sim);
    for (int i = 0; i < COUNT; i++) {
        sent[i] = (uint8_t)i;
        assert_int_equal(p.b.ops->post_recv(p.lane_b, &receives[i], &(wfi_receive_buffer){&got[i], 1, NULL}, 1),
                         WEFT_OK);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(p.a.ops->send(p.lane_a, &sends[i], &(wfi_iov){&sent[i], 1, NULL}, 1), WEFT_OK);
        weft_sim_sleep(sim, wfi_sim_random(sim) % 4000);
        if (i % 10 == 5)
            weft_sim_cut(sim, 1, 0);
        if (i % 10 == 9)
            weft_sim_heal(sim, 0, 1);
    }
    for (int i = 0; i < COUNT; i++) {
        host_expect(&p.a, &sends[i], WEFT_OK);
        host_expect(&p.b, &receives[i], WEFT_OK);
    }
    assert_memory_equal(sent, got, COUNT);
    part(&p);
}

static void test_cut_keeps_order(void **state)
{
    for (uint64_t seed = 0; seed < 100; seed++)
        host_world(&(weft_sim_options){.seed = seed}, cut_keeps_order);
}

static void cut_is_silent(weft_sim *sim)
{
    pair p;
    sim_host c;
    wfi_fabric_op read;
    uint8_t memory[4] = "abc", back[4];
    wfi_lane *lane, *lane_c, *lane_d;
    wfi_region *region;
    join(&p, sim);
    host_open(&c, sim, 2);
    assert_int_equal(p.b.ops->region_open(p.b.fabric, &WFI_HOST_MEMORY(memory, 4), WFI_REMOTE_READ, &region), WEFT_OK);
    weft_sim_cut(sim, 0, 1);
    weft_sim_cut(sim, 0, 1);
    assert_int_equal(p.a.ops->read(p.lane_a, &read, back, 4, NULL, region->base, region->key), WEFT_OK);
    lane = host_connect(&p.a, &p.b, "");
    host_silence(&p.a, 5 * SECOND_NS);
    host_silence(&p.b, 0);
    host_join(&p.a, &c, &lane_c, &lane_d); /* other links are whole */
    weft_sim_heal(sim, 0, 1);
    weft_sim_heal(sim, 0, 1);
    host_expect(&p.a, &read, WEFT_OK);
    assert_string_equal((char *)back, "abc");
    p.b.ops->reject(p.b.fabric, host_event(&p.b, WFI_EVENT_REQUEST).request);
    host_event(&p.a, WFI_EVENT_CLOSED);
    p.a.ops->lane_close(lane);
    p.a.ops->lane_close(lane_c);
    c.ops->lane_close(lane_d);
    p.b.ops->region_close(p.b.fabric, region);
    host_close(&c);
    part(&p);
}

static void test_cut_is_silent(void **state)
{
    host_world(NULL, cut_is_silent);
}

static void cut_hides_death(weft_sim *sim)
{
    pair p;
    join(&p, sim);
    weft_sim_cut(sim, 0, 1);
    weft_sim_kill(sim, 1);
    host_silence(&p.a, 5 * SECOND_NS);
    weft_sim_heal(sim, 0, 1);
    host_event(&p.a, WFI_EVENT_CLOSED);
    p.a.ops->lane_close(p.lane_a);
    host_close(&p.a);
}

static void test_cut_hides_death(void **state)
{
    host_world(NULL, cut_hides_death);
}

static void resets(weft_sim *sim)
{
    pair p;
    wfi_fabric_op receive, other_receive;
    char buffer[4];
    sim_host c;
    wfi_lane *waiting, *lane_c, *lane_d;
    join(&p, sim);
    host_open(&c, sim, 2);
    host_join(&c, &p.b, &lane_c, &lane_d);
    assert_int_equal(p.b.ops->post_recv(p.lane_b, &receive, &(wfi_receive_buffer){buffer, 4, NULL}, 1), WEFT_OK);
    assert_int_equal(p.b.ops->post_recv(lane_d, &other_receive, &(wfi_receive_buffer){buffer, 4, NULL}, 1), WEFT_OK);
    waiting = host_connect(&p.a, &p.b, "");
    weft_sim_reset_link(sim, 1, 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(host_event(&p.a, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    assert_int_equal(host_event(&p.b, WFI_EVENT_CLOSED).status, WEFT_ERR_FABRIC);
    host_expect(&p.b, &receive, WEFT_ERR_UNREACHABLE);
    host_silence(&c, SECOND_NS); /* other links are whole */
    host_silence(&p.b, SECOND_NS);
    p.a.ops->lane_close(waiting);
    p.a.ops->lane_close(p.lane_a);
    p.b.ops->lane_close(p.lane_b);
    host_join(&p.a, &p.b, &p.lane_a, &p.lane_b); /* they may connect again */
    c.ops->lane_close(lane_c);
    p.b.ops->lane_close(lane_d);
    host_expect(&p.b, &other_receive, WEFT_ERR_CANCELLED);
    host_close(&c);
    part(&p);
}

static void test_resets(void **state)
{
    host_world(NULL, resets);
}

UNIT_MAIN(test_peer_dies, test_killed_programs_stop, test_silent_while_paused, test_announces_after_resume,
          test_paused_programs_stand, test_killed_while_paused, test_cut_keeps_order, test_cut_is_silent,
          test_cut_hides_death, test_resets)
