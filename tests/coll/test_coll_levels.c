/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_levels.c - operations of groups with several members on each of several hosts, on the simulation: random
 * programs with an exact oracle, in which several operations are in progress at once; the messages that they send; and
 * members that call different operations. A few of the random groups are on one host.
 *
 * test_coll_levels [--seeds N] [--first S]: as many runs of each random program.
 */
#include "coll/coll.h"
#include "coll/group.h"
#include "prng.h"
#include "tensors.h"

enum { MOST = 9, OPERATIONS = 24, WINDOW = 6, WARM = 5, SLOT = 16384 /* float32 that fit a slot */, PERIOD = 61 };

typedef struct scene {
    world w;
    uint64_t seed;
    int order[MOST]; /* the rank of each member: the members of a host need not be consecutive */
    int odd;         /* the member that calls another operation; -1: none */
} scene;

/* What a member calls, and what it gets. */
typedef struct call {
    int kind;
    size_t root;
    int64_t count;
    bool in_place;
    uint64_t salt;
    weft_tensor *in, *out;
    weft_future *done;
} call;

enum { BARRIER, ALLREDUCE, REDUCE, BROADCAST, GATHER, SCATTER, ALLGATHER, KINDS };

static uint64_t chance_of(uint64_t seed, uint64_t number)
{
    return prng_mix(seed * UINT64_C(0x9e3779b97f4a7c15) + number);
}

static weft_group *open_group(weft_agent *agent, const scene *s)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, "all", s->order, (size_t)s->w.size, 0, &group, NULL));
    return group;
}

/* ---- The oracle ----------------------------------------------------------------------------------------------- */

static float element(const call *c, size_t member, int64_t i)
{
    return (float)((c->salt + member * 31 + (uint64_t)i * 7) % PERIOD);
}

static float sum(const call *c, size_t size, int64_t i)
{
    float all = 0;
    for (size_t member = 0; member < size; member++)
        all += element(c, member, i);
    return all;
}

static void fill(const call *c, weft_tensor *x, int64_t at, size_t member, int64_t first)
{
    for (int64_t i = 0; i < c->count; i++)
        ((float *)weft_tensor_data(x))[at + i] = element(c, member, first + i);
}

static void is(const call *c, const weft_tensor *x, int64_t i, float wanted)
{
    float got = ((const float *)weft_tensor_data(x))[i];
    if (got == wanted)
        return;
    fprintf(stderr, "operation of kind %d, root %zu, %lld elements: element %lld is %g, not %g\n", c->kind, c->root,
            (long long)c->count, (long long)i, (double)got, (double)wanted);
    abort();
}

/* All elements of up to 100, otherwise some of each part, and the last one. */
static int64_t next_of(const call *c, int64_t i)
{
    return i + 1 < c->count && i + c->count / 100 + 1 >= c->count ? c->count - 1 : i + c->count / 100 + 1;
}

static void check_part(const call *c, const weft_tensor *x, int64_t at, size_t member, int64_t first)
{
    for (int64_t i = 0; i < c->count; i = next_of(c, i))
        is(c, x, at + i, element(c, member, first + i));
}

static void check(const call *c, size_t size, size_t me)
{
    bool at_root = me == c->root;
    for (int64_t i = 0; i < c->count && (c->kind == ALLREDUCE || c->kind == REDUCE); i = next_of(c, i))
        is(c, c->in, i, c->kind == ALLREDUCE || at_root ? sum(c, size, i) : element(c, me, i));
    if (c->kind == BROADCAST)
        check_part(c, c->in, 0, c->root, 0);
    if (c->kind == SCATTER)
        check_part(c, c->out, 0, c->root, (int64_t)me * c->count);
    for (size_t k = 0; k < size && (c->kind == ALLGATHER || (c->kind == GATHER && at_root)); k++)
        check_part(c, c->out, (int64_t)k * c->count, k, 0);
}

/* ---- Calls ---------------------------------------------------------------------------------------------------- */

static call choose(const scene *s, uint64_t number)
{
    static const int64_t counts[] = {0, 1, 7, 1000, SLOT / 4, SLOT / 2, SLOT - 1, SLOT, SLOT + 1, 16 * SLOT};
    uint64_t chance = chance_of(s->seed, number);
    call c = {.kind = (int)(chance % KINDS),
              .root = chance / 8 % (uint64_t)s->w.size,
              .count = counts[chance / 64 % (chance / 4096 % 16 ? 9 : 10)],
              .in_place = chance / 1024 % 4 == 0,
              .salt = number};
    return c;
}

/* Makes the tensors: `in` alone if the operation has one tensor. */
static void make(call *c, size_t size, size_t me)
{
    int64_t all = c->count * (int64_t)size, own = (int64_t)me * c->count;
    bool at_root = me == c->root, gathers = c->kind == ALLGATHER || (c->kind == GATHER && at_root);
    if (c->kind == SCATTER) {
        c->in = at_root ? coll_empty(WEFT_DTYPE_FLOAT32, all) : NULL;
        c->out =
            at_root && c->in_place ? tensor_narrow(c->in, 0, own, c->count) : coll_empty(WEFT_DTYPE_FLOAT32, c->count);
        for (size_t k = 0; at_root && k < size; k++)
            fill(c, c->in, (int64_t)k * c->count, me, (int64_t)k * c->count);
        return;
    }
    c->out = gathers ? coll_empty(WEFT_DTYPE_FLOAT32, all) : NULL;
    c->in = gathers && c->in_place ? tensor_narrow(c->out, 0, own, c->count) : coll_empty(WEFT_DTYPE_FLOAT32, c->count);
    fill(c, c->in, 0, me, 0);
}

static weft_status begin(weft_group *group, call *c)
{
    make(c, weft_group_size(group), (size_t)weft_group_index(group));
    switch (c->kind) {
    case BARRIER:
        return weft_group_barrier_async(group, WEFT_FOREVER, &c->done);
    case ALLREDUCE:
        return weft_group_allreduce_async(group, c->in, WEFT_OP_SUM, WEFT_FOREVER, &c->done);
    case REDUCE:
        return weft_group_reduce_async(group, c->in, WEFT_OP_SUM, c->root, WEFT_FOREVER, &c->done);
    case BROADCAST:
        return weft_group_broadcast_async(group, c->in, c->root, WEFT_FOREVER, &c->done);
    case GATHER:
        return weft_group_gather_async(group, c->in, c->out, c->root, WEFT_FOREVER, &c->done);
    case SCATTER:
        return weft_group_scatter_async(group, c->in, c->out, c->root, WEFT_FOREVER, &c->done);
    default:
        return weft_group_allgather_async(group, c->in, c->out, WEFT_FOREVER, &c->done);
    }
}

static weft_status end(weft_group *group, call *c)
{
    weft_status status = c->done ? weft_future_wait(c->done, WEFT_FOREVER) : WEFT_OK;
    if (c->done && !status)
        check(c, weft_group_size(group), (size_t)weft_group_index(group));
    weft_future_unref(c->done);
    weft_tensor_unref(c->in);
    weft_tensor_unref(c->out);
    *c = (call){0};
    return status;
}

static void warm(weft_group *group)
{
    for (int i = 0; i < WARM; i++)
        MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
}

/* ---- Results -------------------------------------------------------------------------------------------------- */

/* Groups that get memory before, or in the middle. */
static void with_results(weft_agent *agent, void *arg)
{
    scene *s = arg;
    call calls[WINDOW] = {0};
    weft_group *group = open_group(agent, s);
    int window = 1 + (int)(chance_of(s->seed, 1) % WINDOW);
    if (chance_of(s->seed, 2) % 4)
        warm(group);
    for (int i = 0; i < OPERATIONS; i++) {
        call *c = &calls[i % window];
        MUST_OK(end(group, c));
        *c = choose(s, (uint64_t)i + 10);
        MUST_OK(begin(group, c));
    }
    for (int i = 0; i < window; i++)
        MUST_OK(end(group, &calls[(OPERATIONS + i) % window]));
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    weft_group_close(group);
}

static scene scene_of(uint64_t seed, void (*program)(weft_agent *agent, void *arg))
{
    uint64_t chance = chance_of(seed, 0);
    int size = 3 + (int)(chance % (MOST - 2)), shift = (int)(chance / 64 % (uint64_t)size);
    scene s = {.w = {.fabric = WORLD_SIM,
                     .size = size,
                     .seed = seed,
                     .program = program,
                     .ranks_per_host = 2 + (int)(chance / 8 % (uint64_t)(size - 1))},
               .seed = seed,
               .odd = -1};
    for (int i = 0; i < size; i++)
        s.order[i] = (i + shift) % size; /* the host at the end may be cut in two: a run at each end */
    for (int i = size - 1; chance / 4096 % 3 == 0 && i > 0; i--) {
        int other = (int)(chance_of(seed, 100 + (uint64_t)i) % (uint64_t)(i + 1)), rank = s.order[i];
        s.order[i] = s.order[other];
        s.order[other] = rank;
    }
    return s;
}

static uint64_t seeds = 150, first_seed = 1;

static void test_results(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + world_seeds(seeds); seed++) {
        scene s = scene_of(seed, with_results);
        s.w.arg = &s;
        world_run(&s.w);
    }
}

/* ---- Each operation, each root, each size --------------------------------------------------------------------- */

static void with_each(weft_agent *agent, void *arg)
{
    static const int64_t counts[] = {1, SLOT / 2, SLOT - 1, SLOT, SLOT + 1, 16 * SLOT};
    scene *s = arg;
    weft_group *group = open_group(agent, s);
    warm(group);
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t root = 0; root < weft_group_size(group); root++)
            for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
                call c = {.kind = kind, .root = root, .count = counts[i], .in_place = root % 2, .salt = root + i};
                MUST_OK(begin(group, &c));
                MUST_OK(end(group, &c));
            }
    weft_group_close(group);
}

static void test_each(void **state)
{
    static const struct {
        int size, per_host, order[MOST];
    } groups[] = {
        {4, 3, {0, 1, 2, 3}},    {4, 3, {3, 0, 1, 2}},       {5, 2, {4, 0, 1, 2, 3}}, /* 3 + 1; 1 + 3; 1 + 2 + 2 */
        {5, 2, {0, 2, 4, 1, 3}}, {6, 3, {0, 3, 1, 4, 2, 5}},                          /* one after the other */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++) {
        scene s = {.w = {.fabric = WORLD_SIM,
                         .size = groups[i].size,
                         .seed = i + 1,
                         .program = with_each,
                         .ranks_per_host = groups[i].per_host}};
        memcpy(s.order, groups[i].order, sizeof(s.order));
        s.w.arg = &s;
        world_run(&s.w);
    }
}

/* ---- Messages ------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 40, PER_HOST = 3, HOSTS = 3 };

static const wfi_operation_kind rooted[] = {WFI_REDUCE, WFI_BROADCAST, WFI_GATHER, WFI_SCATTER};

typedef struct crossings {
    size_t between, inside; /* messages between hosts, and between members of one host */
} crossings;

/* Adds the messages that member `me` sends. */
static void count_sends(wfi_operation_kind kind, size_t me, size_t root, const size_t *hosts, crossings *out)
{
    uint8_t which;
    const wfi_rules none = {0};
    wfi_schedule schedule;
    wfi_collective what = {
        .kind = kind, .members = HOSTS * PER_HOST, .me = me, .root = root, .count = 20, .element = 4};
    what.hosts = hosts;
    what.spans_hosts = what.has_levels = what.hosts_may_share = what.uses_memory = true;
    what.chunk = wfi_chunk_for(&what, wfi_part_bytes(&what));
    wfi_schedule_init(&schedule, what.members);
    wfi_rules_choose(&none, &what, &which)(&what, &schedule);
    assert_false(schedule.failed);
    for (size_t i = 0; i < schedule.step_count; i++)
        if (schedule.steps[i].kind == WFI_STEP_SEND)
            ++*(hosts[schedule.steps[i].peer] == hosts[me] ? &out->inside : &out->between);
    wfi_schedule_fini(&schedule);
}

/* One message for each other host, and none between members of a host. */
static void test_messages(void **state)
{
    static const size_t hosts[] = {0, 0, 0, 3, 3, 3, 6, 6, 6};
    (void)state;
    for (size_t k = 0; k < sizeof(rooted) / sizeof(*rooted); k++)
        for (size_t root = 0; root < HOSTS * PER_HOST; root++) {
            crossings all = {0};
            for (size_t me = 0; me < HOSTS * PER_HOST; me++)
                count_sends(rooted[k], me, root, hosts, &all);
            assert_int_equal(all.between, HOSTS - 1);
            assert_int_equal(all.inside, 0);
        }
}

/* A member that leads no host sends nothing, in a group that has memory. */
static void with_silence(weft_agent *agent, void *arg)
{
    static const int kinds[] = {REDUCE, BROADCAST, GATHER, SCATTER};
    scene *s = arg;
    int me = weft_agent_rank(agent);
    weft_group *group = open_group(agent, s);
    warm(group);
    for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
        for (int root = 0; root < s->w.size; root += 4) {
            uint64_t before = world_stats(agent).frames_sent;
            for (int i = 0; i < ROUNDS; i++) {
                call c = {.kind = kinds[k], .root = (size_t)root, .count = 20, .salt = (uint64_t)i};
                MUST_OK(begin(group, &c));
                MUST_OK(end(group, &c));
                MUST_OK(weft_group_barrier(group, WEFT_FOREVER)); /* otherwise a frame has several messages */
            }
            MUST(me == root || me % PER_HOST == 0 || world_stats(agent).frames_sent - before < ROUNDS / 4);
        }
    weft_group_close(group);
}

static void test_silence(void **state)
{
    (void)state;
    scene s = {.w = {.fabric = WORLD_SIM,
                     .size = HOSTS * PER_HOST,
                     .seed = 1,
                     .program = with_silence,
                     .ranks_per_host = PER_HOST},
               .order = {0, 1, 2, 3, 4, 5, 6, 7, 8}};
    s.w.arg = &s;
    world_run(&s.w);
}

/* ---- Members that do not agree -------------------------------------------------------------------------------- */

/* One member calls another kind, root or count. All hear of it soon. */
static void with_disagreement(weft_agent *agent, void *arg)
{
    scene *s = arg;
    weft_group *group = open_group(agent, s);
    uint64_t chance = chance_of(s->seed, 3);
    call c = choose(s, 4);
    c.count += c.count == 0;
    warm(group);
    world_sleep_ms(&s->w, 10); /* until all have noticed that the last barrier has ended */
    if (weft_group_index(group) == s->odd && chance % 3 == 0)
        c.root = (c.root + 1 + chance / 4 % (uint64_t)(s->w.size - 1)) % (uint64_t)s->w.size;
    else if (weft_group_index(group) == s->odd && chance % 3 == 1)
        c.count += c.count < 1000 || chance / 4 % 2 ? 1 : -1;
    else if (weft_group_index(group) == s->odd)
        c.kind = (c.kind + 1 + (int)(chance / 4 % (KINDS - 1))) % KINDS;
    bool matters = chance % 3 || (c.kind != BARRIER && c.kind != ALLREDUCE && c.kind != ALLGATHER);
    matters = matters && (chance % 3 != 1 || c.kind != BARRIER);
    weft_status status = begin(group, &c);
    if (status)
        (void)end(group, &c);
    else
        status = end(group, &c);
    for (int i = 0; i < 2 && !status; i++) {
        status = weft_group_barrier(group, WEFT_FOREVER);
        world_sleep_ms(&s->w, 10); /* a message may come after the barrier of others */
    }
    MUST_BE(status, matters ? WEFT_ERR_STATE : WEFT_OK);
    weft_group_close(group);
}

static void test_disagreement(void **state)
{
    (void)state;
    for (uint64_t seed = first_seed; seed < first_seed + world_seeds(seeds); seed++) {
        scene s = scene_of(seed, with_disagreement);
        s.odd = (int)(chance_of(seed, 5) % (uint64_t)s.w.size);
        s.w.arg = &s;
        world_run(&s.w);
    }
}

int main(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2)
        *(strcmp(argv[i], "--first") == 0 ? &first_seed : &seeds) = strtoull(argv[i + 1], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results), cmocka_unit_test(test_each),         cmocka_unit_test(test_messages),
        cmocka_unit_test(test_silence), cmocka_unit_test(test_disagreement),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
