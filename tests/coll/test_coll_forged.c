/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_forged.c - messages of a member that are well formed and wrong in one thing: each is refused for that,
 * or does no harm. (test_coll_hostile.c has those that are wrong in any way.) Member 0 receives them as if member 1
 * had sent them.
 */
#include "coll/coll.h"
#include "rpc/inside.h"

#include "coll/group.h"
#include "tensors.h"

#include <string.h>

/* An allreduce of two members goes in three messages, of slots 0 to 2. */
#define DOUBLING "recursive_doubling"
enum { ELEMENTS = 9000, FIRST_BYTES = WFI_GROUP_LONG, LIMIT_MS = 20000, LONG_BYTES = WFI_GROUP_CHUNK };

static wfi_data first_part(void)
{
    wfi_data part = {.space = WFI_SPACE_COLLECTIVE, .number = 1, .is_eager = true, .size = FIRST_BYTES};
    part.signature =
        (wfi_signature){.kind = WFI_ALLREDUCE, .dtype = WEFT_DTYPE_FLOAT64, .how = WEFT_OP_SUM, .count = ELEMENTS};
    while (strcmp(wfi_algorithm_name(part.signature.algorithm), DOUBLING))
        part.signature.algorithm++;
    return part;
}

static void begin_message(wfi_writer *w, const weft_group *group, unsigned word)
{
    wfi_writer_init_growing(w);
    wfi_write_u8(w, (uint8_t)word);
    wfi_write_u64(w, group->key.number);
    wfi_write_u32(w, group->key.incarnation);
    wfi_write_u8(w, WFI_SPACE_COLLECTIVE);
}

static void receive(weft_agent *agent, wfi_writer *w)
{
    MUST(!w->failed);
    inside_arrive(agent, 1, WFI_RPC_GROUP, w->data, w->size);
    wfi_writer_fini(w);
}

static void receive_data(weft_agent *agent, const weft_group *group, const wfi_data *data)
{
    wfi_writer w;
    begin_message(&w, group, WFI_DATA);
    wfi_write_u64(&w, data->number);
    wfi_write_u8(&w, data->signature.kind);
    wfi_write_u8(&w, data->signature.dtype);
    wfi_write_u8(&w, data->signature.how);
    wfi_write_u8(&w, data->signature.algorithm);
    wfi_write_u32(&w, data->signature.root);
    wfi_write_u64(&w, data->signature.count);
    wfi_write_u32(&w, data->slot);
    wfi_write_u32(&w, data->token);
    wfi_write_u8(&w, data->is_eager);
    wfi_write_u64(&w, data->size);
    for (uint64_t i = 0; data->is_eager ? i < data->size : i < WFI_RMA_BYTES; i++)
        wfi_write_u8(&w, 0);
    receive(agent, &w);
}

static weft_group *make(weft_agent *agent, const char *name)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &group, NULL));
    MUST_OK(weft_group_set_algorithms(group, "allreduce * * " DOUBLING));
    return group;
}

/* An operation under way at member 0, which member 1 never calls. */
typedef struct scene {
    weft_group *group;
    weft_future *future;
    weft_tensor *x;
} scene;

static scene begin(weft_agent *agent, const char *name, int64_t elements)
{
    scene s = {.group = make(agent, name), .x = tensor_zeros(WEFT_SHAPE(elements), WEFT_DTYPE_FLOAT64)};
    MUST_OK(weft_group_allreduce_async(s.group, s.x, WEFT_OP_SUM, LIMIT_MS, &s.future));
    return s;
}

static void end(scene *s, weft_status wanted, const char *words)
{
    MUST_BE(weft_future_wait(s->future, WEFT_FOREVER), wanted);
    const char *message = weft_error_message(weft_future_error(s->future));
    if (!strstr(message, words))
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", message, words);
    MUST(strstr(message, words) && weft_error_worker(weft_future_error(s->future)) == 1);
    weft_future_unref(s->future);
    weft_group_close(s->group);
    weft_tensor_unref(s->x);
}

static const char not_a_part[] = "rank 1 sent a part that this operation does not have, or has already";

/* A part longer than its place, or shorter; one that came before. */
static void wrong_parts(weft_agent *agent)
{
    wfi_data part = first_part();
    scene s = begin(agent, "longer", ELEMENTS);
    part.slot = 2; /* the rest, of 6,464 bytes */
    receive_data(agent, s.group, &part);
    end(&s, WEFT_ERR_PROTOCOL, not_a_part);

    s = begin(agent, "shorter", ELEMENTS);
    part.slot = 0;
    part.size = FIRST_BYTES - 8;
    receive_data(agent, s.group, &part);
    end(&s, WEFT_ERR_PROTOCOL, not_a_part);

    s = begin(agent, "twice", ELEMENTS);
    part.slot = 1;
    part.size = FIRST_BYTES;
    receive_data(agent, s.group, &part);
    MUST(!weft_future_done(s.future));
    receive_data(agent, s.group, &part);
    end(&s, WEFT_ERR_PROTOCOL, not_a_part);
}

/* Of an address that nobody exposed. */
static void reads_nothing(weft_agent *agent)
{
    scene s = begin(agent, "nothing", LONG_BYTES / 8);
    wfi_data part = first_part();
    part.signature.count = LONG_BYTES / 8;
    part.is_eager = false;
    part.size = LONG_BYTES; /* one piece */
    receive_data(agent, s.group, &part);
    end(&s, WEFT_ERR_PROTOCOL, "a transfer from rank 1");
}

static void receive_ack(weft_agent *agent, const weft_group *group, uint32_t token)
{
    wfi_writer w;
    begin_message(&w, group, WFI_ACK);
    wfi_write_u64(&w, 1);
    wfi_write_u32(&w, token);
    receive(agent, &w);
}

/* It acknowledges what nobody sent. */
static void takes_nothing(weft_agent *agent)
{
    scene s = begin(agent, "ack", LONG_BYTES / 8);
    receive_ack(agent, s.group, 1000);
    end(&s, WEFT_ERR_PROTOCOL, "rank 1 sent word that it took what was not sent to it");
}

/* The same of what is being sent to member 2: its memory stays exposed until that one says so. */
static void takes_anothers(weft_agent *agent, void *arg)
{
    (void)arg;
    weft_group *meet = make(agent, "meet");
    if (weft_agent_rank(agent) == 0) {
        scene s = {.group = make(agent, "three"), .x = tensor_zeros(WEFT_SHAPE(LONG_BYTES / 8), WEFT_DTYPE_FLOAT64)};
        MUST_OK(weft_group_set_algorithms(s.group, "broadcast * * tree")); /* it sends to both */
        MUST_OK(weft_group_broadcast_async(s.group, s.x, 0, LIMIT_MS, &s.future));
        for (uint32_t token = 0; token < 20; token++)
            receive_ack(agent, s.group, token);
        end(&s, WEFT_ERR_PROTOCOL, "rank 1 sent word that it took what was not sent to it");
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    } else {
        weft_group *three = make(agent, "three");
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_group_close(three);
    }
    weft_group_close(meet);
}

static void ends_by(weft_group *group)
{
    const weft_error *error = weft_group_error(group);
    MUST(error && weft_error_code(error) == WEFT_ERR_PROTOCOL && weft_error_worker(error) == 1);
    MUST(strstr(weft_error_message(error), "rank 1 sent a malformed message"));
    weft_group_close(group);
}

/* Far ahead of what any member sends: nothing of it is kept, and the group is over. */
static void far_ahead(weft_agent *agent)
{
    weft_group *group = make(agent, "ahead");
    wfi_data part = first_part();
    uint64_t before = world_stats(agent).bytes_held;
    for (part.number = WFI_GROUP_AHEAD + 1; part.number < WFI_GROUP_AHEAD + 50; part.number++)
        receive_data(agent, group, &part);
    MUST(world_stats(agent).bytes_held == before);
    ends_by(group);
}

/* It says that it has begun what no member ever can. */
static void has_begun_all(weft_agent *agent)
{
    weft_group *group = make(agent, "all");
    wfi_writer w;
    begin_message(&w, group, WFI_BEGUN);
    wfi_write_u64(&w, UINT64_MAX);
    receive(agent, &w);
    ends_by(group);
}

static void listen(weft_agent *agent, void *arg)
{
    static const char *const names[] = {"longer", "shorter", "twice", "nothing", "ack", "ahead", "all"};
    enum { NAMES = sizeof(names) / sizeof(*names) };
    weft_group *meet = make(agent, "meet"), *groups[NAMES] = {NULL};
    for (int i = 0; weft_agent_rank(agent) == 1 && i < NAMES; i++)
        groups[i] = make(agent, names[i]);
    if (weft_agent_rank(agent) == 0) {
        wrong_parts(agent);
        reads_nothing(agent);
        takes_nothing(agent);
        far_ahead(agent);
        has_begun_all(agent);
    }
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    for (int i = 0; i < NAMES; i++)
        weft_group_close(groups[i]);
    weft_group_close(meet);
}

WORLD_TEST(listen, 3, 1, .size = 2, .close_may_fail = true)
WORLD_TEST(takes_anothers, 3, 1, .size = 3, .close_may_fail = true)
/* ---- Two CREATED for one call --------------------------------------------------------------------------------- */

enum { OPENERS = 8 };

static world *opening;

/* The coordinator makes the group of `count` workers of which nobody has heard. */
static void forge_made(weft_agent *agent, int count)
{
    wfi_writer w;
    wfi_writer_init_growing(&w);
    inside_lock(agent);
    wfi_write_u8(&w, WFI_CREATED);
    wfi_write_u64(&w, wfi_groups_of(agent)->last_attempt);
    wfi_write_u64(&w, 77);
    wfi_write_u32(&w, wfi_peer_incarnation(wfi_net_peer(agent->net, 0)));
    for (int i = 0; i < count; i++) {
        wfi_write_u32(&w, (uint32_t)i);
        wfi_write_u32(&w, 1000);
    }
    inside_unlock(agent);
    MUST(!w.failed);
    inside_arrive(agent, 0, WFI_RPC_GROUP, w.data, w.size);
    wfi_writer_fini(&w);
}

/* The second one is longer than the memory for the first. */
static void make_twice(weft_sim *sim, int rank, void *arg)
{
    (void)rank;
    weft_sim_sleep(sim, 5000000);
    forge_made(arg, 1);
    weft_sim_sleep(sim, 5000000);
    forge_made(arg, OPENERS);
}

static void open_alone(weft_agent *agent, void *arg)
{
    (void)arg;
    weft_group *all, *group = NULL;
    MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &all, NULL));
    if (weft_agent_rank(agent) == 1) {
        MUST_OK(weft_sim_spawn(opening->sim, 1, make_twice, agent));
        MUST(weft_group_open(agent, "g", NULL, 0, 100, &group, NULL));
    }
    weft_status status = weft_group_barrier(all, 1000); /* the forger may be cut off */
    (void)status;
    weft_group_close(all);
}

static void test_made_twice(void **state)
{
    world w = {.fabric = WORLD_SIM, .size = OPENERS, .seed = 1, .program = open_alone, .close_may_fail = true};
    opening = &w;
    world_run(&w);
}

UNIT_MAIN(test_listen, test_takes_anothers, test_made_twice)
