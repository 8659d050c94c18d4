/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_rref_faults.c - references when messages come twice or late, and when workers die and come again; then
 * random programs of forks, drops and reads with resets of links and a death, over many seeds. All on sim.
 *
 * usage: test_rpc_rref_faults [--seeds N [--first F]]: the random programs alone
 */
#include "rpc/inside.h"
#include "rpc/rref_counts.h"
#include "rpc/rref_functions.h"
#include "prng.h"

static weft_function functions[RREF_FUNCTIONS + 4];

static void tell(weft_agent *agent, int rank, const char *function, weft_args args)
{
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), function, args, NULL, NULL));
}

static void expect(weft_agent *agent, int rank, int64_t values, int64_t forks)
{
    await_number(shared.w, agent, rank, "value_count", values);
    await_number(shared.w, agent, rank, "fork_count", forks);
}

/* ---- Twice, and late ------------------------------------------------------------------------------------------ */

/* As if rank 1 had sent it to us. */
static void arrive(weft_agent *agent, uint8_t type, inside_name name, uint64_t fork, bool gave_up)
{
    uint8_t room[64];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof(room));
    inside_write_name(&writer, &name);
    wfi_write_u64(&writer, fork);
    if (type == INSIDE_DROP)
        wfi_write_u8(&writer, gave_up);
    inside_arrive(agent, 1, type, room, writer.size);
}

/* A call that asks for a value that is gone is told so. */
static void ask_in_vain(weft_agent *agent, const char *function, inside_name name)
{
    uint8_t room[64];
    wfi_writer writer;
    weft_error *error = NULL;
    wfi_writer_init(&writer, room, sizeof(room));
    inside_write_name(&writer, &name);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), function, WEFT_VALUES(weft_of_bytes(room, writer.size)),
                          &(weft_rpc_options){.error = &error}, NULL),
            WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_NOT_FOUND);
    MUST(strstr(weft_error_message(error), "rank 0 does not have the value of this reference, or has freed it"));
    weft_error_unref(error);
}

static void twice_and_late(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rref_create(agent, weft_of_i64(1), &rref, NULL));
    inside_name name = inside_name_of(rref), old = name;
    for (int i = 0; i < 3; i++)
        arrive(agent, INSIDE_FORK, name, 100, false);
    MUST(dump_number(agent, "fork_count") == 1);
    arrive(agent, INSIDE_DROP, name, 100, false);
    arrive(agent, INSIDE_DROP, name, 100, false);
    arrive(agent, INSIDE_FORK, name, 100, false); /* late: it has been dropped */
    arrive(agent, INSIDE_FORK, name, 99, false);  /* older still */
    MUST(dump_number(agent, "fork_count") == 0);
    arrive(agent, INSIDE_FORK, name, 101, false);
    MUST(dump_number(agent, "fork_count") == 1);
    weft_rref_unref(rref);
    MUST(dump_number(agent, "value_count") == 1);
    arrive(agent, INSIDE_DROP, name, 101, false);
    MUST(dump_number(agent, "value_count") == 0);
    arrive(agent, INSIDE_FORK, name, 102, false); /* of a value that is gone */
    arrive(agent, INSIDE_FORK, name, UINT64_C(1) << 50, false);
    name.owner_incarnation++;
    arrive(agent, INSIDE_FORK, name, 103, false); /* another incarnation's */
    name.owner = 2;
    arrive(agent, INSIDE_FORK, name, 104, false); /* another worker's */
    MUST(dump_number(agent, "value_count") == 0 && dump_number(agent, "fork_count") == 0);
    ask_in_vain(agent, "weft:fetch", old);
    ask_in_vain(agent, "weft:made", old);
}

/* A fork that comes before the value's call waits for it; one of a value whose creator gave it up does not. */
static void before_the_value(weft_agent *agent, void *arg)
{
    weft_rref *mine;
    if (weft_agent_rank(agent) != 0)
        return;
    MUST_OK(weft_rref_create(agent, weft_of_i64(1), &mine, NULL));
    inside_name name = inside_name_of(mine);
    weft_rref_unref(mine);
    weft_worker creator = weft_agent_worker(agent, 1);
    name.creator = 1;
    name.creator_incarnation = creator.incarnation;
    name.number = 1000;
    arrive(agent, INSIDE_FORK, name, 10, false);
    MUST(dump_number(agent, "value_count") == 1);
    char *text = dump_text(agent);
    MUST(strstr(text, "being made"));
    free(text);
    arrive(agent, INSIDE_DROP, name, 9, true); /* its call never left */
    text = dump_text(agent);
    MUST(strstr(text, "\"error\": \"CANCELLED\""));
    free(text);
    arrive(agent, INSIDE_DROP, name, 10, false);
    MUST(dump_number(agent, "value_count") == 0);
    arrive(agent, INSIDE_FORK, name, 11, false); /* not waited for again */
    name.number = 1001;
    name.creator_incarnation--;
    arrive(agent, INSIDE_FORK, name, 12, false); /* its creator is long gone */
    MUST(dump_number(agent, "value_count") == 0);
}

/* Rank 1, whose handle the owner no longer counts, passes it on: to the owner and to a third, as an argument and as
 * a result. Each time the call fails, and nobody sees the reference. */
static void not_kept(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    int rank = weft_agent_rank(agent), ran = checked_runs;
    if (rank == 0) {
        MUST_OK(weft_rref_create(agent, weft_of_i64(1), &rref, NULL));
        tell(agent, 1, "keep", WEFT_VALUES(weft_of_rref(rref)));
        weft_rref_unref(rref);
        arrive(agent, INSIDE_DROP, inside_name_of(shared.kept[1]), inside_fork_of(shared.kept[1]), false);
        MUST(dump_number(agent, "value_count") == 0 && dump_number(agent, "fork_count") == 0);
        shared.done = true;
    }
    while (!shared.done)
        world_sleep_ms(shared.w, 1);
    for (int to = 0; rank == 1 && to < 3; to += 2)
        MUST_BE(
            weft_rpc_sync(agent, weft_to_rank(to), "checked", WEFT_VALUES(weft_of_rref(shared.kept[1])), NULL, NULL),
            WEFT_ERR_NOT_FOUND);
    if (rank != 1) {
        weft_values *got = NULL;
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "show", WEFT_NO_VALUES, NULL, &got), WEFT_ERR_NOT_FOUND);
        MUST(!got);
        for (int i = 0; i < 1000 && dump_number(agent, "reference_count"); i++)
            world_sleep_ms(shared.w, 1); /* rank 1 may be calling us just now, with the reference */
        MUST(dump_number(agent, "reference_count") == 0 && dump_number(agent, "awaiting_confirmation") == 0);
    }
    MUST(checked_runs == ran && dump_number(agent, "handle_count") == 0);
    atomic_fetch_add(&shared.drops, 1);
    while (atomic_load(&shared.drops) < 3)
        world_sleep_ms(shared.w, 1);
    if (rank == 1)
        tell(agent, 1, "let go", WEFT_NO_VALUES);
}

/* ---- Rank 2 dies, and its seat is taken again ----------------------------------------------------------------- */

static atomic_int lives;
static atomic_bool over;

static void wait_for_end(weft_agent *agent, void *arg)
{
    while (!atomic_load(&over))
        world_sleep_ms(shared.w, 5);
}

static void second_life(weft_sim *sim, int rank, void *arg)
{
    weft_agent *agent;
    weft_agent_options options = {.functions = functions,
                                  .function_count = RREF_FUNCTIONS + 4,
                                  .has_rank = true,
                                  .rank = rank,
                                  .world_size = 3,
                                  .master_port = 1,
                                  .fabric = "sim",
                                  .sim = sim};
    MUST_OK(weft_agent_open(&options, &agent, NULL));
    atomic_fetch_add(&lives, 1);
    wait_for_end(agent, NULL);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
}

static void be_born_again(weft_agent *agent)
{
    uint32_t before = weft_agent_worker(agent, 2).incarnation;
    MUST_OK(weft_sim_spawn(shared.w->sim, 2, second_life, NULL));
    for (int rank = 0; rank < 2; rank++)
        while (!atomic_load(&lives) || weft_agent_worker(agent, 2).incarnation == before || !weft_agent_alive(agent, 2))
            world_sleep_ms(shared.w, 1);
}

/* The user's forks go with it; those of its next life are its own. */
static void user_reborn(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    if (weft_agent_rank(agent) != 0) {
        wait_for_end(agent, NULL);
        return;
    }
    MUST_OK(weft_rref_create(agent, weft_of_i64(5), &rref, NULL));
    tell(agent, 2, "keep", WEFT_VALUES(weft_of_rref(rref)));
    expect(agent, 0, 1, 1);
    weft_sim_kill(shared.w->sim, 2);
    expect(agent, 0, 1, 0);
    be_born_again(agent);
    shared.kept[2] = NULL; /* of the one that died */
    tell(agent, 2, "keep", WEFT_VALUES(weft_of_rref(rref)));
    weft_rref_unref(rref);
    expect(agent, 0, 1, 1);
    tell(agent, 2, "let go", WEFT_NO_VALUES);
    expect(agent, 0, 0, 0);
    atomic_store(&over, true);
}

/* A reference to a value of the former owner means nothing of the next one's, even of the same number. */
static void owner_reborn(weft_agent *agent, void *arg)
{
    weft_error *error = NULL;
    weft_rref *old, *fresh, *unused;
    weft_value local;
    int64_t n;
    if (weft_agent_rank(agent) != 0) {
        wait_for_end(agent, NULL);
        return;
    }
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "double", WEFT_VALUES(weft_of_i64(4)), NULL, &old));
    MUST_OK(read_i64(old, 1000, &n));
    weft_sim_kill(shared.w->sim, 2);
    while (weft_agent_alive(agent, 2))
        world_sleep_ms(shared.w, 1);
    for (int again = 0; again < 2; again++) {
        MUST_BE(read_i64(old, 1000, &n), WEFT_ERR_PEER_DEAD);
        MUST_BE(weft_rref_local_value(old, 0, &local), WEFT_ERR_STATE);
        MUST_BE(weft_rref_rpc_sync(old, "read", WEFT_NO_VALUES, &(weft_rpc_options){.error = &error}, NULL),
                WEFT_ERR_PEER_DEAD);
        MUST(weft_error_worker(error) == 2 && strstr(weft_error_message(error), "rank 2"));
        weft_error_unref(error);
        MUST_BE(weft_rref_rpc_remote(old, "read", WEFT_NO_VALUES, NULL, &unused), WEFT_ERR_PEER_DEAD);
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "read", WEFT_VALUES(weft_of_rref(old)), NULL, NULL),
                WEFT_ERR_PEER_DEAD);
        weft_future *made = weft_rref_created(old);
        MUST_BE(weft_future_wait(made, 0), WEFT_ERR_PEER_DEAD);
        weft_future_unref(made);
        if (!again)
            be_born_again(agent);
    }
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "double", WEFT_VALUES(weft_of_i64(5)), NULL, &fresh));
    MUST_OK(read_i64(fresh, 1000, &n));
    MUST(n == 10);
    tell(agent, 1, "read", WEFT_VALUES(weft_of_rref(fresh)));
    weft_rref_unref(old);
    expect(agent, 2, 1, 1); /* what the old handle says does not touch it */
    weft_rref_unref(fresh);
    expect(agent, 2, 0, 0);
    atomic_store(&over, true);
}

/* ---- Random programs ------------------------------------------------------------------------------------------ */

static uint64_t state;

static uint64_t below(uint64_t limit)
{
    return prng_below(&state, limit);
}

static int mortal;      /* the rank that dies in this seed; -1: none */
static atomic_int busy; /* ranks that still run their programs */

static void some_steps(weft_agent *agent)
{
    enum { HELD = 6, STEPS = 25 };
    weft_rref *held[HELD] = {NULL};
    weft_rpc_options options = {.timeout_ms = 300};
    for (int step = 0; step < STEPS; step++) {
        weft_rref **at = &held[below(HELD)];
        int to = (int)below(3);
        int64_t n;
        weft_future *future;
        switch (below(7)) {
        case 0:
        case 1:
            weft_rref_unref(*at);
            *at = NULL;
            if (weft_rpc_remote(agent, weft_to_rank(to), below(3) ? "double" : "slow_or_not",
                                WEFT_VALUES(weft_of_i64(step)), &options, at))
                *at = NULL;
            break;
        case 2:
            weft_rref_unref(*at);
            MUST_OK(weft_rref_create(agent, weft_of_i64(step), at, NULL));
            break;
        case 3:
            if (*at &&
                !weft_rpc_async(agent, weft_to_rank(to), "read", WEFT_VALUES(weft_of_rref(*at)), &options, &future))
                weft_future_unref(future);
            break;
        case 4:
            if (*at)
                (void)!weft_rpc_sync(agent, weft_to_rank(to), "checked", WEFT_VALUES(weft_of_rref(*at)), &options,
                                     NULL);
            break;
        case 5:
            if (*at)
                (void)!read_i64(*at, 200, &n);
            break;
        default:
            weft_sim_reset_link(shared.w->sim, (int)below(3), (int)below(3));
        }
        if (mortal == 2 && step == STEPS / 2 && weft_agent_rank(agent) == 0)
            weft_sim_kill(shared.w->sim, 2);
    }
    for (int i = 0; i < HELD; i++)
        weft_rref_unref(held[i]);
}

static void random_program(weft_agent *agent, void *arg)
{
    int rank = weft_agent_rank(agent);
    some_steps(agent);
    atomic_fetch_sub(&busy, 1);
    if (rank == 2 && mortal == 2)
        world_sleep_ms(shared.w, 3600 * 1000);
    while (atomic_load(&busy) > (mortal == 2))
        world_sleep_ms(shared.w, 5);
    /* Everybody has let go of everything: so do the owners, soon. */
    static const char *const keys[] = {"value_count", "fork_count", "reference_count", "awaiting_confirmation"};
    for (int i = 0; i < 4; i++)
        await_number(shared.w, agent, rank, keys[i], 0);
}

static void begin(world *w)
{
    memset(&shared, 0, sizeof(shared));
    shared.w = w;
    atomic_store(&lives, 0);
    atomic_store(&over, false);
}

#define SCENE .size = 3, WORLD_FUNCTIONS(functions), .adjust = world_leaks_fail, .begin = begin

static void run_random(uint64_t seed)
{
    state = seed;
    mortal = below(2) ? 2 : -1;
    atomic_store(&busy, 3);
    world w = {.seed = seed, .program = random_program, SCENE};
    begin(&w);
    world_run(&w);
}

WORLD_TEST(twice_and_late, 3, 0, SCENE)
WORLD_TEST(before_the_value, 3, 0, SCENE)
WORLD_TEST(not_kept, 5, 0, SCENE)
WORLD_TEST(user_reborn, 10, 0, SCENE)
WORLD_TEST(owner_reborn, 10, 0, SCENE)

static void test_random(void **s)
{
    for (uint64_t seed = 1; seed <= 300; seed++)
        run_random(seed);
}

static weft_status run_slow_or_not(weft_call *call, void *user)
{
    world_sleep_ms(shared.w, (int)(weft_call_i64(call, 0) % 3) * 200); /* some take longer than their creators wait */
    weft_call_give(call, WEFT_VALUES(weft_of_i64(1)));
    return WEFT_OK;
}

static weft_status run_show(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_rref(shared.kept[weft_agent_rank(weft_call_agent(call))])));
    return WEFT_OK;
}

int main(int argc, char **argv)
{
    memcpy(functions, rref_functions, sizeof(rref_functions));
    functions[RREF_FUNCTIONS] = count_functions[0];
    functions[RREF_FUNCTIONS + 1] = count_functions[1];
    functions[RREF_FUNCTIONS + 2] = (weft_function){
        .name = "slow_or_not", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_slow_or_not};
    functions[RREF_FUNCTIONS + 3] = (weft_function){.name = "show", .gives = {WEFT_TYPE_RREF}, .run = run_show};
    if (argc > 2 && strcmp(argv[1], "--seeds") == 0) {
        uint64_t count = strtoull(argv[2], NULL, 10);
        uint64_t first = argc > 4 && strcmp(argv[3], "--first") == 0 ? strtoull(argv[4], NULL, 10) : 1;
        for (uint64_t seed = first; seed < first + count; seed++) {
            fprintf(stderr, "seed %llu\r", (unsigned long long)seed);
            run_random(seed);
        }
        printf("%llu seeds: all as it must be\n", (unsigned long long)count);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twice_and_late), cmocka_unit_test(test_before_the_value), cmocka_unit_test(test_not_kept),
        cmocka_unit_test(test_user_reborn),    cmocka_unit_test(test_owner_reborn),     cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
