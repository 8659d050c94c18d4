/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_registering.c - registering memory takes long: meanwhile the lock is free, and transfers and exposures may
 * end. Runs on sim-verbs, whose registrations take virtual time here. If the lock were held, the simulation would stop.
 * The linker puts wfi_fabric_find below in the place of the library's.
 */
#include "net/net_bulk.h"

#include "mem/storage.h"

enum { SEEDS = 10 };

#define MIB ((size_t)1 << 20)
#define SLOW_NS UINT64_C(50000000)

const wfi_fabric_ops *__real_wfi_fabric_find(const char *name);
const wfi_fabric_ops *__wrap_wfi_fabric_find(const char *name);

typedef struct scene {
    bulk source, target; /* rank 0's, which is exposed to rank 1 */
    wfi_transfer_kind kind;
    weft_sim *sim;
    bool is_slow;            /* registrations of large memory take SLOW_NS */
    atomic_int begun, ended; /* such registrations */
    atomic_int exposed, withdrawn, over;
} scene;

static scene *stage;
static wfi_fabric_ops slow_ops;

static weft_status region_open_slowly(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    bool is_slow = stage->is_slow && memory->size >= MIB;
    if (is_slow) {
        atomic_fetch_add(&stage->begun, 1);
        weft_sim_sleep(stage->sim, SLOW_NS / 2 + wfi_sim_random(stage->sim) % SLOW_NS);
        atomic_fetch_add(&stage->ended, 1);
    }
    return wfi_fabric_sim_verbs.region_open(fabric, memory, access, out);
}

const wfi_fabric_ops *__wrap_wfi_fabric_find(const char *name)
{
    const wfi_fabric_ops *found = __real_wfi_fabric_find(name);
    if (found != &wfi_fabric_sim_verbs)
        return found;
    slow_ops = wfi_fabric_sim_verbs;
    slow_ops.region_open = region_open_slowly;
    return &slow_ops;
}

static const size_t large[] = {MIB + 4097, 0, MIB, 100};

/* The same body on both hosts. `lists`: their fabrics; NULL: sim-verbs for both. */
static void play(void (*body)(net_host *host), void (*director)(weft_sim *sim, int rank, void *world),
                 const char *const *lists)
{
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        scene s = {.kind = seed % 2 ? WFI_PULL : WFI_PUSH};
        net_world world = {.user = &s,
                           .fabric = "sim-verbs",
                           .fabrics = lists,
                           .on_message = host_check_order,
                           .death_timeout_ms = 2000};
        stage = &s;
        wfi_slab_trim(0); /* no recycled memory, which may be registered */
        world_sim(&world, seed, 2, body, director);
    }
}

static void begin_scene(net_host *host, scene *s)
{
    s->sim = host->world->sim;
    bulk *mine = host->rank ? &s->target : &s->source;
    bulk_create(mine, host, 1 - host->rank, large, 4);
    bool is_read = host->rank == (s->kind == WFI_PULL ? 0 : 1);
    bulk_fill(mine, is_read ? 3 : 0);
    if (host->rank == 0)
        bulk_expose(mine, s->kind == WFI_PULL ? WFI_REMOTE_READ : WFI_REMOTE_WRITE);
    host_meet(host, &s->exposed);
    s->is_slow = true;
}

/* ---- The lock is free -------------------------------------------------------------------------------------------- */

/* Messages pass while the memory of a transfer is being registered. */
static void talk_meanwhile(net_host *host)
{
    scene *s = host->world->user;
    begin_scene(host, s);
    if (host->rank == 1) {
        assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_OK);
        host_until(host, &s->begun, 1);
        assert_int_equal(host_send_free(host, 0, 0, 100), WEFT_OK);
        host_until(host, &host->done_ok, 1);
        assert_int_equal(atomic_load(&s->ended), 0);
        assert_int_equal(bulk_await(&s->target), WEFT_OK);
        assert_int_equal(atomic_load(&s->ended), 2); /* two large segments */
    }
    host_meet(host, &s->over);
    bulk *mine = host->rank ? &s->target : &s->source;
    assert_true(bulk_is(mine, 3));
    if (host->rank == 0)
        bulk_withdraw(mine, true);
    bulk_destroy(mine);
    host_meet(host, &host->world->finished);
}

static void messages_pass_while_memory_is_registered(void **state)
{
    play(talk_meanwhile, NULL, NULL);
}

/* ---- Ends meanwhile ---------------------------------------------------------------------------------------------- */

static void withdraw_source(net_host *host, scene *s)
{
    bulk_withdraw(&s->source, false);
    bulk_destroy(&s->source);
}

/* The transfer ends at once, and its memory may be released. Then the net closes, while the memory is still being
 * registered. */
static void cancel_meanwhile(net_host *host)
{
    scene *s = host->world->user;
    begin_scene(host, s);
    if (host->rank == 1) {
        assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_OK);
        host_until(host, &s->begun, 1);
        wfi_net_lock(host->net);
        wfi_transfer_cancel(&s->target.transfer);
        wfi_net_unlock(host->net);
        assert_int_equal(bulk_await(&s->target), WEFT_ERR_CANCELLED);
        assert_int_equal(atomic_load(&s->ended), 0);
        bulk_destroy(&s->target);
        return;
    }
    host_until(host, &s->begun, 1);
    host_pause(host, 3 * SLOW_NS);
    withdraw_source(host, s);
}

static void a_cancelled_transfer_leaves_its_registration_alone(void **state)
{
    play(cancel_meanwhile, NULL, NULL);
}

static void kill_exposer(weft_sim *sim, int rank, void *arg)
{
    const net_world *world = arg;
    const scene *s = world->user;
    while (!atomic_load(&s->begun))
        weft_sim_sleep(sim, 1000000);
    weft_sim_kill(sim, 0);
}

static void outlive_the_peer(net_host *host)
{
    scene *s = host->world->user;
    begin_scene(host, s);
    if (host->rank == 0) {
        host_pause(host, UINT64_C(30000000000)); /* is killed meanwhile */
        return;
    }
    assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_OK);
    weft_status end = bulk_await(&s->target);
    if (end != WEFT_ERR_PEER_DEAD && end != WEFT_ERR_STORE_LOST)
        fprintf(stderr, "%s\n", weft_status_name(end));
    assert_true(end == WEFT_ERR_PEER_DEAD || end == WEFT_ERR_STORE_LOST); /* rank 0 has the store */
    bulk_destroy(&s->target);
}

static void a_peer_dies_while_memory_is_registered(void **state)
{
    play(outlive_the_peer, kill_exposer, NULL);
}

/* ---- Refusals ---------------------------------------------------------------------------------------------------- */

static void refuse_meanwhile(weft_sim *sim, int rank, void *arg)
{
    const net_world *world = arg;
    const scene *s = world->user;
    while (!atomic_load(&s->begun))
        weft_sim_sleep(sim, 1000000);
    assert_int_equal(weft_sim_fabric_refuse_memory(sim, 1, "sim-verbs", true), WEFT_OK);
}

static const char *const both_fabrics[] = {"sim-verbs,sim", "sim-verbs,sim"};

static void move_in_spite(net_host *host)
{
    scene *s = host->world->user;
    begin_scene(host, s);
    if (host->rank == 1) {
        assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_OK);
        assert_int_equal(bulk_await(&s->target), WEFT_OK);
    }
    host_meet(host, &s->over);
    bulk *mine = host->rank ? &s->target : &s->source;
    assert_true(bulk_is(mine, 3));
    if (host->rank == 0)
        bulk_withdraw(mine, true);
    bulk_destroy(mine);
    host_meet(host, &host->world->finished);
}

static void refused_memory_is_moved_on_another_fabric(void **state)
{
    play(move_in_spite, refuse_meanwhile, both_fabrics);
}

static void lose_in_vain(net_host *host)
{
    scene *s = host->world->user;
    begin_scene(host, s);
    if (host->rank == 1) {
        assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_OK);
        assert_int_equal(bulk_await(&s->target), WEFT_ERR_MEMORY);
        assert_int_equal(weft_sim_fabric_refuse_memory(s->sim, 1, "sim-verbs", false), WEFT_OK);
        bulk_destroy(&s->target);
    }
    host_meet(host, &s->over);
    if (host->rank == 0)
        withdraw_source(host, s);
    host_meet(host, &host->world->finished);
}

static void refused_memory_fails_where_there_is_no_other_fabric(void **state)
{
    play(lose_in_vain, refuse_meanwhile, NULL);
}

/* ---- Questions --------------------------------------------------------------------------------------------------- */

/* Rank 0 exposes on sim, and rank 1 connects over sim-verbs: it asks, and rank 0 registers before it answers. */
static const char *const crossed[] = {"sim,sim-verbs", "sim-verbs,sim"};

static void fail_verbs(weft_sim *sim, int rank, void *arg)
{
    const net_world *world = arg;
    const scene *s = world->user;
    while (!atomic_load(&s->begun))
        weft_sim_sleep(sim, 1000000);
    assert_int_equal(weft_sim_fabric_fail(sim, 0, "sim-verbs"), WEFT_OK);
}

static void refuse_the_exposer(weft_sim *sim, int rank, void *arg)
{
    assert_int_equal(weft_sim_fabric_refuse_memory(sim, 0, "sim-verbs", false), WEFT_OK);
    const net_world *world = arg;
    const scene *s = world->user;
    while (!atomic_load(&s->begun))
        weft_sim_sleep(sim, 1000000);
    assert_int_equal(weft_sim_fabric_refuse_memory(sim, 0, "sim-verbs", true), WEFT_OK);
}

static void a_question_is_answered_when_the_memory_is_registered(void **state)
{
    play(move_in_spite, NULL, crossed);
}

static void a_question_about_refused_memory_is_answered(void **state)
{
    play(move_in_spite, refuse_the_exposer, crossed);
}

static void a_fabric_fails_while_memory_is_registered(void **state)
{
    play(move_in_spite, fail_verbs, both_fabrics);
    play(move_in_spite, fail_verbs, crossed);
}

/* Withdrawn while it is registered for the answer, which is then that it is gone. */
static void withdraw_meanwhile(net_host *host)
{
    scene *s = host->world->user;
    begin_scene(host, s);
    if (host->rank == 1) {
        assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_OK);
        assert_int_equal(bulk_await(&s->target), WEFT_ERR_PROTOCOL);
        bulk_destroy(&s->target);
    } else {
        host_until(host, &s->begun, 1);
        assert_int_equal(atomic_load(&s->ended), 0);
        withdraw_source(host, s);
    }
    host_meet(host, &host->world->finished);
}

static void memory_is_withdrawn_while_it_is_registered(void **state)
{
    play(withdraw_meanwhile, NULL, crossed);
}

/* The net closes, and with it the fabric's cache. */
static void close_meanwhile(net_host *host)
{
    scene *s = host->world->user;
    begin_scene(host, s);
    if (host->rank == 0) {
        host_until(host, &s->begun, 1);
        withdraw_source(host, s);
        return;
    }
    assert_int_equal(bulk_begin(&s->target, &s->source, s->kind), WEFT_OK);
    assert_int_not_equal(bulk_await(&s->target), WEFT_OK);
    bulk_destroy(&s->target);
}

static void a_net_closes_while_memory_is_registered(void **state)
{
    play(close_meanwhile, NULL, crossed);
}

/* ---- The same memory --------------------------------------------------------------------------------------------- */

/* One exposes it for reading, the other one for writing, and both register at once. */
static void prepare_twice(net_host *host)
{
    scene *s = host->world->user;
    s->sim = host->world->sim;
    if (host->rank == 0)
        bulk_create(&s->source, host, 1, large, 1);
    host_meet(host, &s->exposed);
    s->is_slow = true;
    wfi_storage *storage = s->source.storages[0];
    unsigned access = host->rank ? WFI_REMOTE_READ : WFI_REMOTE_WRITE;
    wfi_prepared prepared[2] = {{.count = 0}};
    wfi_exposure exposures[2];
    for (int i = 0; i < 2; i++) {
        wfi_net_lock(host->net);
        wfi_prepared_begin(&prepared[i], host_peer(host, 1 - host->rank));
        wfi_prepared_want(&prepared[i], storage, i ? WFI_REMOTE_READ | WFI_REMOTE_WRITE : access);
        wfi_net_unlock(host->net);
        assert_int_equal(wfi_prepared_open(&prepared[i]), WEFT_OK);
        wfi_net_lock(host->net);
        assert_int_equal(wfi_peer_expose(host_peer(host, 1 - host->rank), storage, wfi_storage_data(storage), MIB,
                                         access, &exposures[i]),
                         WEFT_OK);
        wfi_net_unlock(host->net);
    }
    wfi_net_lock(host->net);
    wfi_peer_withdraw(host_peer(host, 1 - host->rank), exposures, 2, true);
    for (int i = 0; i < 2; i++)
        wfi_prepared_put(&prepared[i]);
    wfi_net_unlock(host->net);
    host_meet(host, &s->over);
    for (int i = 0; i < 2; i++)
        wfi_prepared_fini(&prepared[i]);
    host_meet(host, &host->world->finished);
    if (host->rank == 0)
        bulk_destroy(&s->source);
}

static void memory_is_registered_twice_at_once(void **state)
{
    play(prepare_twice, NULL, NULL);
}

/* ---- For another access ------------------------------------------------------------------------------------------ */

static wfi_exposure both[2]; /* of one storage, for reading and for writing */
static bulk pushed;

static void expose_both(net_host *host, scene *s, size_t size)
{
    wfi_storage *storage = s->source.storages[0];
    bulk_fill(&s->source, 3);
    wfi_net_lock(host->net);
    for (int i = 0; i < 2; i++)
        assert_int_equal(wfi_peer_expose(host_peer(host, 1), storage, wfi_storage_data(storage), size,
                                         i ? WFI_REMOTE_WRITE : WFI_REMOTE_READ, &both[i]),
                         WEFT_OK);
    wfi_net_unlock(host->net);
}

/* A pull is cancelled while rank 0 registers its memory for the answer. Then a push asks about the same storage. */
static void push_after_pull(net_host *host)
{
    static const size_t one[] = {2 * MIB + 4097};
    scene *s = host->world->user;
    s->sim = host->world->sim;
    bulk_create(host->rank ? &s->target : &s->source, host, 1 - host->rank, one, 1);
    if (host->rank == 0)
        expose_both(host, s, one[0]);
    host_meet(host, &s->exposed);
    s->is_slow = true;
    if (host->rank == 1) {
        bulk named = s->source;
        char text[400];
        bulk_create(&pushed, host, 0, one, 1);
        bulk_fill(&pushed, 5);
        named.exposures[0] = both[0];
        assert_int_equal(bulk_begin(&s->target, &named, WFI_PULL), WEFT_OK);
        host_until(host, &s->begun, 1);
        host_pause(host, 2000000);
        wfi_net_lock(host->net);
        wfi_transfer_cancel(&s->target.transfer);
        wfi_net_unlock(host->net);
        assert_int_equal(bulk_await(&s->target), WEFT_ERR_CANCELLED);
        named.exposures[0] = both[1];
        assert_int_equal(bulk_begin(&pushed, &named, WFI_PUSH), WEFT_OK);
        assert_int_equal(bulk_await(&pushed), WEFT_OK);
        wfi_net_lock(host->net);
        wfi_peer_fabric_text(host_peer(host, 0), WFI_BULK, text, sizeof(text));
        wfi_net_unlock(host->net);
        assert_null(strstr(text, "avoided"));
        bulk_destroy(&pushed);
    }
    host_meet(host, &s->over);
    if (host->rank == 0) {
        assert_true(bulk_is(&s->source, 5));
        wfi_net_lock(host->net);
        wfi_peer_withdraw(host_peer(host, 1), both, 2, true);
        wfi_net_unlock(host->net);
    }
    bulk_destroy(host->rank ? &s->target : &s->source);
    host_meet(host, &host->world->finished);
}

static void memory_is_registered_for_another_access(void **state)
{
    play(push_after_pull, NULL, crossed);
}

UNIT_MAIN(messages_pass_while_memory_is_registered, a_cancelled_transfer_leaves_its_registration_alone,
          a_peer_dies_while_memory_is_registered, refused_memory_is_moved_on_another_fabric,
          refused_memory_fails_where_there_is_no_other_fabric, a_question_is_answered_when_the_memory_is_registered,
          a_question_about_refused_memory_is_answered, a_fabric_fails_while_memory_is_registered,
          memory_is_withdrawn_while_it_is_registered, a_net_closes_while_memory_is_registered,
          memory_is_registered_twice_at_once, memory_is_registered_for_another_access)
