/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_hostile.c - a member that says nonsense: messages with the group's own name, and any words, numbers,
 * sizes and places in them, while operations are under way, before and after. The other member neither crashes nor
 * leaks nor hangs; what becomes of the group is the liar's affair.
 */
#include "coll/coll.h"
#include "rpc/inside.h"

#include "coll/group.h"
#include "prng.h"
#include "tensors.h"

enum { ROUNDS = 300, WORDS = 25 };

static uint64_t state_of_chance;
static struct {
    int protocol, state, timeout;
} seen; /* how operations ended */

static uint64_t chance(uint64_t below)
{
    return prng_below(&state_of_chance, below);
}

static uint64_t some_number(void)
{
    static const uint64_t odd[] = {0, 1, 2, 3, 64, 65, 66, 1000, UINT32_MAX, UINT64_MAX, UINT64_MAX / 2};
    return chance(4) ? chance(4) : odd[chance(sizeof(odd) / sizeof(*odd))];
}

static void write_words(wfi_writer *w, const wfi_group_key *key)
{
    unsigned word = (unsigned)chance(WFI_CREATED + 2);
    uint64_t attempt = word >= WFI_JOIN ? UINT64_C(1) << 40 : 0; /* not one of its own */
    wfi_write_u8(w, (uint8_t)word);
    wfi_write_u64(w, key->number + attempt + (chance(20) == 0)); /* the next one is not made */
    wfi_write_u32(w, key->incarnation + (uint32_t)(chance(20) == 0));
    wfi_write_u8(w, (uint8_t)chance(chance(10) ? 2 : 256)); /* space; an error's first byte */
    if (word == WFI_QUERY || word == WFI_STATE)
        wfi_write_u8(w, (uint8_t)chance(chance(10) ? 4 : 256)); /* whose sends; a state */
    wfi_write_u64(w, some_number());
    if (word != WFI_DATA) {
        for (uint64_t more = chance(3); more; more--)
            wfi_write_u64(w, some_number());
        return;
    }
    wfi_write_u8(w, chance(8) ? WFI_ALLREDUCE : (uint8_t)chance(256));
    wfi_write_u8(w, chance(8) ? WEFT_DTYPE_FLOAT64 : (uint8_t)chance(256));
    wfi_write_u8(w, chance(8) ? WEFT_OP_SUM : (uint8_t)chance(256));
    wfi_write_u8(w, (uint8_t)chance(chance(8) ? 2 : 256)); /* the algorithm */
    wfi_write_u32(w, (uint32_t)(chance(8) ? 0 : some_number()));
    wfi_write_u64(w, chance(4) ? 1000 : some_number());
    wfi_write_u32(w, (uint32_t)(chance(2) ? 0 : some_number()));
    wfi_write_u32(w, (uint32_t)some_number());
    bool is_eager = chance(2);
    uint64_t size = chance(2) ? 8000 : chance(3500);
    wfi_write_u8(w, is_eager);
    wfi_write_u64(w, chance(10) ? size : some_number());
    for (uint64_t i = 0; is_eager ? i < size % 3500 : i < WFI_RMA_BYTES; i++)
        wfi_write_u8(w, (uint8_t)chance(256));
}

static void hear(weft_agent *agent, const weft_group *group)
{
    uint8_t bytes[4000];
    wfi_writer w;
    for (uint64_t words = chance(2) ? WORDS : chance(3); words; words--) {
        wfi_writer_init(&w, bytes, sizeof(bytes));
        write_words(&w, &group->key);
        size_t cut = chance(6) && bytes[0] != WFI_JOIN ? 0 : 1 + chance(w.size - 1);
        inside_arrive(agent, 1, WFI_RPC_GROUP, bytes, w.size - cut);
    }
}

/* Calls for groups that nobody opens: some are kept. */
static void call_in_vain(weft_agent *agent)
{
    uint8_t bytes[32];
    wfi_writer w;
    for (uint64_t i = 1; i < 1000; i++) {
        wfi_writer_init(&w, bytes, sizeof(bytes));
        wfi_write_u8(&w, WFI_JOIN);
        wfi_write_u64(&w, (UINT64_C(1) << 40) + i);
        wfi_write_u64(&w, i);
        wfi_write_u64(&w, chance(2));
        inside_arrive(agent, 1, WFI_RPC_GROUP, bytes, w.size);
    }
}

/* The other one: it has all the groups, and says nothing. */
static void have_all(weft_agent *agent, weft_group *groups[ROUNDS])
{
    for (int round = 0; round < ROUNDS; round++) {
        char name[16];
        snprintf(name, sizeof(name), "lie-%d", round);
        MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &groups[round], NULL));
    }
}

static void listen_to_a_liar(weft_agent *agent, void *arg)
{
    weft_group *meet, *groups[ROUNDS] = {NULL};
    MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &meet, NULL));
    if (weft_agent_rank(agent) == 1)
        have_all(agent, groups);
    for (int round = 0; weft_agent_rank(agent) == 0 && round < ROUNDS; round++) {
        weft_group *group;
        weft_future *futures[3] = {NULL};
        weft_tensor *x = tensor_zeros(WEFT_SHAPE(1000), WEFT_DTYPE_FLOAT64);
        char name[16];
        snprintf(name, sizeof(name), "lie-%d", round);
        MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &group, NULL));
        uint64_t begun = chance(4);
        for (uint64_t i = 0; i < begun && i < 3; i++)
            if (weft_group_allreduce_async(group, x, WEFT_OP_SUM, 50, &futures[i]))
                futures[i] = NULL;
        hear(agent, group);
        for (int i = 0; i < 3; i++) {
            weft_status status = futures[i] ? weft_future_wait(futures[i], 20000) : WEFT_OK;
            MUST(!futures[i] || weft_future_done(futures[i]));
            seen.protocol += status == WEFT_ERR_PROTOCOL;
            seen.state += status == WEFT_ERR_STATE;
            seen.timeout += status == WEFT_ERR_TIMEOUT;
            weft_future_unref(futures[i]);
        }
        hear(agent, group);
        weft_group_close(group);
        weft_tensor_unref(x);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER)); /* who tells the truth in another group is heard there */
    if (weft_agent_rank(agent) == 0)
        call_in_vain(agent);
    for (int round = 0; round < ROUNDS; round++)
        weft_group_close(groups[round]);
    weft_group_close(meet);
}

static void test_a_liar(void **state)
{
    for (state_of_chance = 1; state_of_chance < 4; state_of_chance++) {
        uint64_t seed = state_of_chance;
        world w = {.fabric = WORLD_SIM, .size = 2, .seed = seed, .program = listen_to_a_liar, .close_may_fail = true};
        world_run(&w);
        state_of_chance = seed;
    }
    printf("%d ended by nonsense, %d by disagreement, %d by their time limit\n", seen.protocol, seen.state,
           seen.timeout);
    assert_true(seen.protocol && seen.state && seen.timeout);
}

UNIT_MAIN(test_a_liar)
