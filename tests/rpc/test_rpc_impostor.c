/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_impostor.c - a member that says of other members' calls and references what only these may say, well formed
 * and with the right ids: nothing of it counts.
 *
 * The caller's call is with the callee, which holds it. The impostor has nothing to do with it.
 */
#include "rpc/inside.h"
#include "rpc/rref_counts.h"

enum { CALLER, IMPOSTOR, CALLEE, SIZE };
enum { IDS = 12 }; /* from the first on: what the caller does here takes fewer */

static struct scene {
    world w;
    weft_agent *caller;
    weft_call *held;
    uint64_t first_id;
    inside_name name;
    uint64_t fork;
    int items, said, over;
} scene;

static weft_status run_hold(weft_call *call, void *user)
{
    scene.held = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static weft_status run_seven(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(7)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "hold", .gives = {WEFT_TYPE_I64}, .run = run_hold},
    {.name = "seven", .gives = {WEFT_TYPE_I64}, .run = run_seven},
    {.name = "take", .takes = {WEFT_TYPE_RREF}, .run = world_run_nothing},
    {.name = "nothing", .run = world_run_nothing, .flags = WEFT_FUNCTION_INLINE},
};

/* ---- What the impostor says -------------------------------------------------------------------------------------- */

static void say(weft_agent *agent, int to, uint8_t type, uint64_t id)
{
    uint8_t bytes[64];
    wfi_writer w;
    wfi_writer_init(&w, bytes, sizeof(bytes));
    if (type >= INSIDE_FORK && type <= INSIDE_DROP) {
        inside_write_name(&w, &scene.name);
        wfi_write_u64(&w, scene.fork);
    } else {
        wfi_write_u64(&w, id);
    }
    if (type == INSIDE_ITEM || type == INSIDE_TOOK)
        wfi_write_u32(&w, 0);
    if (type == INSIDE_FORKED)
        wfi_write_u32(&w, (uint32_t)WEFT_ERR_NOT_FOUND);
    if (type == INSIDE_REPLY || type == INSIDE_ITEM || type == INSIDE_CANCEL || type == INSIDE_DROP)
        wfi_write_u8(&w, 0);
    if (type == INSIDE_REPLY)
        wfi_write_u32(&w, 0);
    if (type == INSIDE_REPLY || type == INSIDE_ITEM)
        inside_write_body(&w, WEFT_VALUES(weft_of_i64(666)), NULL);
    MUST(!w.failed);
    MUST_OK(inside_send(agent, to, type, false, bytes, w.size));
}

static void say_all(weft_agent *agent)
{
    static const uint8_t to_caller[] = {INSIDE_ITEM, INSIDE_REPLY, INSIDE_FORKED},
                         to_callee[] = {INSIDE_CANCEL, INSIDE_DONE, INSIDE_TOOK, INSIDE_DROP};
    for (uint64_t id = scene.first_id; id < scene.first_id + IDS; id++) {
        for (size_t i = 0; i < sizeof(to_caller); i++)
            say(agent, CALLER, to_caller[i], id);
        for (size_t i = 0; i < sizeof(to_callee); i++)
            say(agent, CALLEE, to_callee[i], id);
    }
    for (int rank = 0; rank < SIZE; rank++) /* answered behind all that */
        if (rank != IMPOSTOR)
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(rank), "nothing", WEFT_NO_VALUES, NULL, NULL));
}

/* ---- What comes of it -------------------------------------------------------------------------------------------- */

static void note_item(const weft_values *item, void *arg)
{
    scene.items++;
}

static int64_t number_of(const weft_values *values)
{
    int64_t number = 0;
    MUST_OK(weft_values_get_i64(values, 0, &number));
    return number;
}

static void call_and_hear_the_callee(weft_agent *agent)
{
    weft_future *future;
    weft_rref *rref;
    weft_values *values;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(CALLEE), "seven", WEFT_NO_VALUES, NULL, &rref));
    MUST_OK(weft_rref_to_here(rref, WEFT_FOREVER, &values, NULL));
    weft_values_unref(values);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(CALLEE), "hold", WEFT_NO_VALUES,
                           &(weft_rpc_options){.on_item = note_item}, &future));
    while (!scene.held)
        world_sleep_ms(&scene.w, 1);
    scene.name = inside_name_of(rref);
    scene.fork = inside_fork_of(rref);
    scene.first_id = (inside_next_call_id(agent) >> 40 << 40) + 1;
    MUST(inside_next_call_id(agent) < scene.first_id + IDS);
    while (!scene.said)
        world_sleep_ms(&scene.w, 1);
    MUST(!weft_future_done(future) && scene.items == 0 && !weft_call_cancelled(scene.held));
    weft_call_give(scene.held, WEFT_VALUES(weft_of_i64(1)));
    weft_call_finish(scene.held, WEFT_OK);
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    MUST(number_of(weft_future_values(future)) == 1);
    MUST_OK(weft_rref_to_here(rref, WEFT_FOREVER, &values, NULL)); /* it was not dropped */
    MUST(number_of(values) == 7);
    weft_values_unref(values);
    weft_future_unref(future);
    weft_rref_unref(rref);
}

static void program(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == CALLER) {
        call_and_hear_the_callee(agent);
    } else if (weft_agent_rank(agent) == IMPOSTOR) {
        while (!scene.first_id)
            world_sleep_ms(&scene.w, 1);
        say_all(agent);
        scene.said = 1;
    }
}

static void play(void (*run)(weft_agent *agent, void *arg))
{
    for (uint64_t seed = 1; seed <= world_seeds(5); seed++) {
        scene = (struct scene){
            .w = {.fabric = WORLD_SIM, .size = SIZE, .seed = seed, WORLD_FUNCTIONS(functions), .program = run}};
        world_run(&scene.w);
    }
    assert_int_equal(inside_unsent, 0);
}

static void nothing_counts_but_what_the_other_side_says(void **state)
{
    play(program);
}

/* The caller asks the owner of a reference whether it knows of it, which cannot hear it; the impostor answers that it
 * does not. */
static void deny(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    weft_values *values;
    weft_future *future;
    if (weft_agent_rank(agent) == CALLER)
        scene.caller = agent;
    while (weft_agent_rank(agent) == CALLER && !scene.over)
        world_sleep_ms(&scene.w, 1);
    if (weft_agent_rank(agent) != IMPOSTOR)
        return;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(CALLEE), "seven", WEFT_NO_VALUES, NULL, &rref));
    MUST_OK(weft_rref_to_here(rref, WEFT_FOREVER, &values, NULL));
    weft_values_unref(values);
    weft_sim_cut(scene.w.sim, CALLER, CALLEE);
    MUST_OK(weft_rpc_async(agent, weft_to_rank(CALLER), "take", WEFT_VALUES(weft_of_rref(rref)), NULL, &future));
    world_sleep_ms(&scene.w, 10);
    scene.name = inside_name_of(rref);
    scene.fork = inside_next_fork(scene.caller);
    MUST(dump_number(scene.caller, "awaiting_confirmation") == 1);
    say(agent, CALLER, INSIDE_FORKED, 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(CALLER), "nothing", WEFT_NO_VALUES, NULL, NULL));
    weft_sim_heal(scene.w.sim, CALLER, CALLEE);
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    weft_future_unref(future);
    weft_rref_unref(rref);
    scene.over = 1;
}

static void only_its_owner_can_deny_a_reference(void **state)
{
    play(deny);
}

/* ---- One that asks very often ------------------------------------------------------------------------------------ */

enum { QUESTIONS = 70000, AT_ONCE = 1000 }; /* more than one who takes no answers is given */

/* It asks for a reference that never was, takes every answer, and gets the answer that matters after all these. */
static void ask_often(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    if (weft_agent_rank(agent) == IMPOSTOR) {
        scene.name = (inside_name){.owner = CALLEE, .creator = CALLER, .number = 1000};
        for (int i = 0; i < QUESTIONS; i++) {
            say(agent, CALLEE, INSIDE_FORK, 0);
            if (i % AT_ONCE == 0)
                MUST_OK(weft_rpc_sync(agent, weft_to_rank(CALLEE), "nothing", WEFT_NO_VALUES, NULL, NULL));
        }
        scene.said = 1;
    } else if (weft_agent_rank(agent) == CALLER) {
        while (!scene.said)
            world_sleep_ms(&scene.w, 1);
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(CALLEE), "seven", WEFT_NO_VALUES, NULL, &rref));
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(IMPOSTOR), "take", WEFT_VALUES(weft_of_rref(rref)),
                              &(weft_rpc_options){.timeout_ms = 10000}, NULL));
        weft_rref_unref(rref);
    }
}

/* The same with calls: of each the result is there. */
static void call_often(weft_agent *agent, void *arg)
{
    static weft_future *futures[AT_ONCE];
    for (int made = 0; weft_agent_rank(agent) == CALLER && made < QUESTIONS; made += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++)
            MUST_OK(weft_rpc_async(agent, weft_to_rank(CALLEE), "nothing", WEFT_NO_VALUES,
                                   &(weft_rpc_options){.timeout_ms = 10000, .wait_for_room = true}, &futures[i]));
        MUST_OK(weft_future_wait_all(futures, AT_ONCE, WEFT_FOREVER));
        for (int i = 0; i < AT_ONCE; i++)
            weft_future_unref(futures[i]);
    }
}

static void answers_count_until_they_are_taken(void **state)
{
    for (int calls = 0; calls < 2; calls++) {
        scene = (struct scene){.w = {.fabric = WORLD_SIM, .size = SIZE, .seed = 1, WORLD_FUNCTIONS(functions)}};
        scene.w.program = calls ? call_often : ask_often;
        world_run(&scene.w);
    }
    assert_int_equal(inside_unsent, 0);
}

UNIT_MAIN(nothing_counts_but_what_the_other_side_says, only_its_owner_can_deny_a_reference,
          answers_count_until_they_are_taken)
