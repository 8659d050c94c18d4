/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_fabrics.c - nets with several fabrics: the dialler leaves one that fails, and returns to it; workers with
 * different lists; what is said of the choice.
 */
#include "net/net_bulk.h"

enum { SEEDS = 8, GO = 0 /* of net_world.turns */ };

#define SECOND_NS UINT64_C(1000000000)
#define MIB ((size_t)1 << 20)

static const size_t one_large[] = {24 * MIB};

typedef struct scene {
    bulk source, target; /* rank 0's, which is read by rank 1 */
    atomic_int exposed, pulled, cut;
} scene;

static void cut_verbs(weft_sim *sim, bool cut)
{
    for (int from = 0; from < 2; from++)
        assert_int_equal((cut ? weft_sim_fabric_cut : weft_sim_fabric_heal)(sim, from, 1 - from, "sim-verbs"), WEFT_OK);
}

static void expect_on(net_host *host, wfi_lane_kind kind, const char *wanted)
{
    char text[256];
    wfi_net_lock(host->net);
    wfi_peer_fabric_text(host_peer(host, 1 - host->rank), kind, text, sizeof(text));
    wfi_net_unlock(host->net);
    if (strcmp(text, wanted) != 0)
        fprintf(stderr, "rank %d: the fabric is \"%s\", not \"%s\"\n", host->rank, text, wanted);
    assert_string_equal(text, wanted);
}

/* Each host sends the other a message, and both arrive. `so_far`: what arrived before. */
static void greet(net_host *host, int so_far)
{
    assert_int_equal(host_send_free(host, 1 - host->rank, (uint64_t)so_far, 100), WEFT_OK);
    host_until(host, &host->done_ok, so_far + 1);
    host_until(host, &host->arrived, so_far + 1);
    assert_int_equal(host->done_failed, 0);
}

static void expose_source(net_host *host, scene *s)
{
    bulk_create(&s->source, host, 1, one_large, 1);
    bulk_fill(&s->source, 3);
    bulk_expose(&s->source, WFI_REMOTE_READ);
    atomic_fetch_add(&s->exposed, 1);
}

static void release_source(net_host *host, scene *s, int pulled)
{
    host_until(host, &s->pulled, pulled);
    bulk_withdraw(&s->source, true);
    bulk_destroy(&s->source);
}

static void pull(net_host *host, scene *s, int exposed)
{
    host_until(host, &s->exposed, exposed);
    bulk_create(&s->target, host, 0, one_large, 1);
    assert_int_equal(bulk_begin(&s->target, &s->source, WFI_PULL), WEFT_OK);
    assert_int_equal(bulk_await(&s->target), WEFT_OK);
    assert_true(bulk_is(&s->target, 3));
    bulk_destroy(&s->target);
    atomic_fetch_add(&s->pulled, 1);
}

static void play(void (*body)(net_host *host), void (*director)(weft_sim *sim, int rank, void *world),
                 const char *const *fabrics)
{
    static const char *const both[] = {"sim-verbs,sim", "sim-verbs,sim"};
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        scene s = {0};
        net_world world = {
            .user = &s, .fabrics = fabrics ? fabrics : both, .on_message = host_check_order, .death_timeout_ms = 2000};
        world_sim(&world, seed, 2, body, director);
    }
}

/* ---- Attempts that cross ----------------------------------------------------------------------------------------- */

/* Both send at once, and prefer different fabrics. Worker 0's attempt would stay, because its number is higher. */
static void greet_at_once(net_host *host)
{
    if (host->rank == 0)
        inside_count_up(host->net, 1, 100);
    host_meet(host, &host->world->turns[GO]);
    uint64_t began = weft_sim_now(host->world->sim);
    greet(host, 0);
    assert_true(weft_sim_now(host->world->sim) - began < 20000000); /* without the end of any attempt's time */
}

static void greet_with_both(net_host *host)
{
    greet_at_once(host);
    host_meet(host, &host->world->finished);
}

static void cut_rdm_and_greet(net_host *host)
{
    if (host->rank == 0)
        for (int from = 0; from < 2; from++)
            assert_int_equal(weft_sim_fabric_cut(host->world->sim, from, 1 - from, "sim-rdm"), WEFT_OK);
    greet_at_once(host);
    expect_on(host, WFI_CONTROL,
              host->rank == 0 ? "sim (sim-rdm: the connection in use is older, or worker 1 chose it)" : "sim");
    host_meet(host, &host->world->finished);
}

static void an_attempt_on_a_dead_fabric_refuses_no_other(void **state)
{
    static const char *const crossed[] = {"sim-rdm,sim", "sim,sim-rdm"};
    play(cut_rdm_and_greet, NULL, crossed);
    play(greet_with_both, NULL, crossed);
}

/* ---- A fabric that is cut ---------------------------------------------------------------------------------------- */

static void cut_first(net_host *host)
{
    if (host->rank == 0)
        cut_verbs(host->world->sim, true);
    host_meet(host, &host->world->turns[GO]);
    greet(host, 0);
    if (host->rank == 0)
        expect_on(host, WFI_CONTROL, "sim (sim-verbs: avoided, the connection was not answered)");
    host_meet(host, &host->world->finished);
}

static void a_fabric_that_is_cut_is_left_by_the_first_connection(void **state)
{
    play(cut_first, NULL, NULL);
}

static void cut_while_moving(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    scene *s = world->user;
    while (!atomic_load(&s->exposed))
        weft_sim_sleep(sim, 10000);
    while (!inside_moving(world->hosts[1].net, 0))
        weft_sim_sleep(sim, 1000);
    weft_sim_sleep(sim, wfi_sim_random(sim) % 1000000);
    cut_verbs(sim, true);
    atomic_store(&s->cut, !atomic_load(&s->pulled));
}

static void move_and_return(net_host *host)
{
    scene *s = host->world->user;
    greet(host, 0);
    if (host->rank == 0) {
        expose_source(host, s);
        release_source(host, s, 1);
    } else {
        pull(host, s, 1);
        assert_int_equal(atomic_load(&s->cut), 1); /* in the middle of it */
        expect_on(host, WFI_BULK, "sim (sim-verbs: avoided, the connection was not answered)");
        cut_verbs(host->world->sim, false);
    }
    host_pause(host, 15 * SECOND_NS); /* the lane is closed, and the time to avoid it is over */
    if (host->rank == 0) {
        expose_source(host, s);
        release_source(host, s, 2);
    } else {
        expect_on(host, WFI_BULK, "sim-verbs");
        pull(host, s, 2);
        expect_on(host, WFI_BULK, "sim-verbs");
    }
    host_meet(host, &host->world->finished);
}

static void a_transfer_ends_on_another_fabric_and_the_next_one_returns(void **state)
{
    play(move_and_return, cut_while_moving, NULL);
}

/* Only the bulk lane is on the fabric that is cut, and that announces nothing. */
static void cut_sim_while_moving(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    scene *s = world->user;
    while (!atomic_load(&s->exposed) || !inside_moving(world->hosts[1].net, 0))
        weft_sim_sleep(sim, 1000);
    for (int from = 0; from < 2; from++) {
        assert_int_equal(weft_sim_fabric_refuse_memory(sim, from, "sim-verbs", false), WEFT_OK);
        assert_int_equal(weft_sim_fabric_cut(sim, from, 1 - from, "sim"), WEFT_OK);
    }
    atomic_store(&s->cut, !atomic_load(&s->pulled));
}

static void move_stalled(net_host *host)
{
    scene *s = host->world->user;
    greet(host, 0);
    expect_on(host, WFI_CONTROL, "sim-verbs");
    assert_int_equal(weft_sim_fabric_refuse_memory(host->world->sim, host->rank, "sim-verbs", true), WEFT_OK);
    host_meet(host, &host->world->turns[GO]);
    if (host->rank == 0) {
        expose_source(host, s);
        release_source(host, s, 1);
    } else {
        pull(host, s, 1);
        assert_int_equal(atomic_load(&s->cut), 1);
        expect_on(host, WFI_BULK, "sim-verbs");
    }
    host_meet(host, &host->world->finished);
}

static void a_stalled_bulk_lane_is_left(void **state)
{
    play(move_stalled, cut_sim_while_moving, NULL);
}

/* ---- Memory that is refused -------------------------------------------------------------------------------------- */

static int refuser;

static void move_refused(net_host *host)
{
    scene *s = host->world->user;
    greet(host, 0);
    host_meet(host, &host->world->turns[GO]);
    if (host->rank == refuser)
        assert_int_equal(weft_sim_fabric_refuse_memory(host->world->sim, refuser, "sim-verbs", true), WEFT_OK);
    host_meet(host, &host->world->turns[GO + 1]);
    if (host->rank == 0) {
        expose_source(host, s);
        release_source(host, s, 1);
    } else {
        pull(host, s, 1);
        expect_on(host, WFI_BULK,
                  refuser == 1 ? "sim (sim-verbs: avoided, it registers no more memory (ulimit -l))"
                               : "sim (sim-verbs: avoided, the peer registers no more memory)");
    }
    host_meet(host, &host->world->finished);
}

static void a_reader_without_memory_takes_another_fabric(void **state)
{
    refuser = 1;
    play(move_refused, NULL, NULL);
}

static void an_exposer_without_memory_takes_another_fabric(void **state)
{
    refuser = 0;
    play(move_refused, NULL, NULL);
}

/* sim-verbs is avoided for a minute. It works again long before, and sim does not. */
static void move_back_early(net_host *host)
{
    scene *s = host->world->user;
    weft_sim *sim = host->world->sim;
    greet(host, 0);
    assert_int_equal(weft_sim_fabric_refuse_memory(sim, host->rank, "sim-verbs", true), WEFT_OK);
    for (int round = 1; round <= 2; round++) {
        host_meet(host, &host->world->turns[GO + round]);
        if (host->rank == 0) {
            expose_source(host, s);
            release_source(host, s, round);
        } else {
            pull(host, s, round);
            expect_on(host, WFI_BULK,
                      round == 1 ? "sim (sim-verbs: avoided, the peer registers no more memory)" : "sim-verbs");
        }
        assert_int_equal(weft_sim_fabric_refuse_memory(sim, host->rank, "sim-verbs", false), WEFT_OK);
        host_pause(host, 15 * SECOND_NS); /* the lane is closed */
        if (host->rank == 1)
            for (int from = 0; from < 2; from++)
                assert_int_equal(weft_sim_fabric_cut(sim, from, 1 - from, "sim"), WEFT_OK);
    }
    host_meet(host, &host->world->finished);
}

static void avoided_fabrics_take_turns(void **state)
{
    play(move_back_early, NULL, NULL);
}

/* Worker 0's frames cannot be registered with sim-verbs, on which the connection is. */
static void send_unregistered(net_host *host)
{
    weft_sim *sim = host->world->sim;
    if (host->rank == 1) {
        assert_int_equal(host_send_free(host, 0, 0, 100), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        host_until(host, &host->arrived, 1);
    } else {
        host_until(host, &host->arrived, 1);
        assert_int_equal(weft_sim_fabric_refuse_memory(sim, 0, "sim-verbs", true), WEFT_OK);
        expect_on(host, WFI_CONTROL, "sim-verbs");
        assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        assert_int_equal(host->done_failed, 0);
        expect_on(host, WFI_CONTROL, "sim (sim-verbs: avoided, no memory could be registered for what is sent)");
    }
    host_meet(host, &host->world->finished);
}

static void frames_without_memory_take_another_fabric(void **state)
{
    play(send_unregistered, NULL, NULL);
}

/* Attempts fail because sim is cut, others because sim-verbs registers nothing. Neither is lack on all fabrics. */
static void lack_and_cut(net_host *host)
{
    weft_sim *sim = host->world->sim;
    if (host->rank == 0) {
        assert_int_equal(weft_sim_fabric_refuse_memory(sim, 0, "sim-verbs", true), WEFT_OK);
        for (int from = 0; from < 2; from++)
            assert_int_equal(weft_sim_fabric_cut(sim, from, 1 - from, "sim"), WEFT_OK);
        assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
        host_pause(host, 4 * SECOND_NS);
        assert_int_equal(host->done_failed, 0);
        for (int from = 0; from < 2; from++)
            assert_int_equal(weft_sim_fabric_heal(sim, from, 1 - from, "sim"), WEFT_OK);
        host_until(host, &host->done_ok, 1);
    }
    host_meet(host, &host->world->finished);
}

static void lack_on_one_fabric_fails_nothing(void **state)
{
    play(lack_and_cut, NULL, NULL);
}

static void lack_on_all(net_host *host)
{
    weft_sim *sim = host->world->sim;
    if (host->rank == 0) {
        assert_int_equal(weft_sim_fabric_refuse_memory(sim, 0, "sim-verbs", true), WEFT_OK);
        assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
        host_until(host, &host->done_failed, 1);
        assert_int_equal(host->why, WEFT_ERR_MEMORY);
        assert_int_equal(weft_sim_fabric_refuse_memory(sim, 0, "sim-verbs", false), WEFT_OK);
        assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
        host_until(host, &host->done_ok, 1);
    }
    host_meet(host, &host->world->finished);
}

static void lack_on_every_fabric_of_the_peer_fails(void **state)
{
    static const char *const shared[] = {"sim-verbs,sim", "sim-verbs"};
    play(lack_on_all, NULL, shared);
}

/* ---- Different lists --------------------------------------------------------------------------------------------- */

static const char *wanted_texts[2]; /* of both lanes at each rank */

static void move_with_lists(net_host *host)
{
    scene *s = host->world->user;
    if (host->rank == 0)
        assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
    host_until(host, host->rank == 0 ? &host->done_ok : &host->arrived, 1);
    if (host->rank == 0) {
        expect_on(host, WFI_CONTROL, wanted_texts[0]);
        expose_source(host, s);
        release_source(host, s, 1);
    } else {
        pull(host, s, 1);
        expect_on(host, WFI_BULK, wanted_texts[1]);
    }
    host_meet(host, &host->world->finished);
}

static void workers_with_different_lists_meet(void **state)
{
    static const char *const one_more[] = {"sim-verbs,sim", "sim"},
                             *const crossed[] = {"sim-reads,sim", "sim,sim-reads"},
                             *const longer[] = {"sim", "sim-rdm,sim-verbs,sim"};
    wanted_texts[0] = "sim (sim-verbs: no address of worker 1)";
    wanted_texts[1] = "sim";
    play(move_with_lists, NULL, one_more);
    wanted_texts[0] = "sim-reads";
    wanted_texts[1] = "sim";
    play(move_with_lists, NULL, crossed);
    wanted_texts[0] = "sim";
    wanted_texts[1] = "sim (sim-rdm: no address of worker 0; sim-verbs: no address of worker 0)";
    play(move_with_lists, NULL, longer);
}

/* The lane that worker 1 has dialled is on the fabric that it prefers. */
static void dialled_by_other(net_host *host)
{
    if (host->rank == 1)
        assert_int_equal(host_send_free(host, 0, 0, 100), WEFT_OK);
    host_until(host, host->rank == 1 ? &host->done_ok : &host->arrived, 1);
    if (host->rank == 0)
        expect_on(host, WFI_CONTROL, "sim (sim-reads: the connection in use is older, or worker 1 chose it)");
    else
        expect_on(host, WFI_CONTROL, "sim");
    host_meet(host, &host->world->finished);
}

static void the_dialler_chooses(void **state)
{
    static const char *const crossed[] = {"sim-reads,sim", "sim,sim-reads"};
    play(dialled_by_other, NULL, crossed);
}

static void strangers(net_host *host)
{
    if (host->rank == 0) {
        expect_on(host, WFI_CONTROL, "none (sim-verbs: no address of worker 1)");
        wfi_net_lock(host->net);
        wfi_peer_depend(host_peer(host, 1), 1, 0);
        wfi_net_unlock(host->net);
        assert_int_equal(host_send_free(host, 1, 0, 100), WEFT_OK);
        host_until(host, &host->unreachable, 1);
        wfi_net_lock(host->net);
        assert_non_null(strstr(host->unreachable_text, "it and this worker have no fabric in common"));
        wfi_peer_depend(host_peer(host, 1), -1, 0);
        wfi_net_unlock(host->net);
    }
    host_meet(host, &host->world->finished);
}

static void without_a_common_fabric_a_peer_is_unreachable(void **state)
{
    static const char *const none[] = {"sim-verbs", "sim"};
    play(strangers, NULL, none);
}

UNIT_MAIN(a_fabric_that_is_cut_is_left_by_the_first_connection,
          a_transfer_ends_on_another_fabric_and_the_next_one_returns, a_reader_without_memory_takes_another_fabric,
          an_exposer_without_memory_takes_another_fabric, a_stalled_bulk_lane_is_left, avoided_fabrics_take_turns,
          frames_without_memory_take_another_fabric, an_attempt_on_a_dead_fabric_refuses_no_other,
          lack_on_one_fabric_fails_nothing, lack_on_every_fabric_of_the_peer_fails, workers_with_different_lists_meet,
          the_dialler_chooses, without_a_common_fabric_a_peer_is_unreachable)
