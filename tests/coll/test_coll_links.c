/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_links.c - links that break and heal while groups work: several operations at once in groups that
 * overlap, of sizes around those at which the way of a piece changes. And hundreds at once of members that are slow,
 * or stand still. None may fail, and every element must be right.
 *
 * The same over several fabrics, to which faults are done; one works always.
 *
 * test_coll_links [--seeds N] [--first S] [--fabrics]: as many runs of the random program; the default is for
 * tools/check. --fabrics: only the program with several fabrics.
 */
#include "coll/coll.h"
#include "rpc/spoiler.h"
#include "sim/sim.h"
#include "prng.h"

enum { MOST = 6, ROUNDS = 6, AT_ONCE = 4, GROUPS = 2 };

typedef enum kind { ALLREDUCE, BROADCAST, REDUCE, ALLGATHER, REDUCE_SCATTER, ALL_TO_ALL, GATHER, SCATTER, KINDS } kind;

typedef struct operation {
    kind kind;
    size_t size, me, root;
    int64_t count; /* elements of a member's part */
    int32_t salt;
    weft_tensor *given, *result; /* the same one where an operation has one tensor; NULL: this member has none */
    weft_future *future;
} operation;

static int32_t value(const operation *op, size_t member, int64_t i)
{
    return (int32_t)(member + 1) * (int32_t)(i % 1021 + 1) + op->salt;
}

static int32_t sum(const operation *op, int64_t i)
{
    int32_t total = 0;
    for (size_t member = 0; member < op->size; member++)
        total += value(op, member, i);
    return total;
}

static int32_t expected(const operation *op, int64_t i)
{
    int64_t part = op->count ? i / op->count : 0, at = op->count ? i % op->count : 0,
            mine = (int64_t)op->me * op->count;
    switch (op->kind) {
    case ALLREDUCE:
    case REDUCE:
        return sum(op, i);
    case BROADCAST:
        return value(op, op->root, i);
    case REDUCE_SCATTER:
        return sum(op, mine + i);
    case ALL_TO_ALL:
        return value(op, (size_t)part, mine + at);
    case SCATTER:
        return value(op, op->root, mine + i);
    default: /* ALLGATHER, GATHER */
        return value(op, (size_t)part, at);
    }
}

static weft_tensor *of_parts(const operation *op, size_t parts)
{
    return coll_empty(WEFT_DTYPE_INT32, op->count * (int64_t)parts);
}

static void begin(weft_group *group, operation *op)
{
    bool is_root = op->me == op->root;
    kind k = op->kind;
    weft_tensor *x = NULL, *y = NULL;
    if (k != SCATTER || is_root)
        x = of_parts(op, k == REDUCE_SCATTER || k == ALL_TO_ALL || k == SCATTER ? op->size : 1);
    for (int64_t i = 0; x && i < weft_tensor_numel(x); i++)
        ((int32_t *)weft_tensor_data(x))[i] = value(op, op->me, i);
    if (k == ALLREDUCE || k == BROADCAST || k == REDUCE)
        y = weft_tensor_ref(x);
    else if (k != GATHER || is_root)
        y = of_parts(op, k == REDUCE_SCATTER || k == SCATTER ? 1 : op->size);
    weft_status status =
        k == ALLREDUCE        ? weft_group_allreduce_async(group, x, WEFT_OP_SUM, WEFT_FOREVER, &op->future)
        : k == BROADCAST      ? weft_group_broadcast_async(group, x, op->root, WEFT_FOREVER, &op->future)
        : k == REDUCE         ? weft_group_reduce_async(group, x, WEFT_OP_SUM, op->root, WEFT_FOREVER, &op->future)
        : k == ALLGATHER      ? weft_group_allgather_async(group, x, y, WEFT_FOREVER, &op->future)
        : k == REDUCE_SCATTER ? weft_group_reduce_scatter_async(group, x, y, WEFT_OP_SUM, WEFT_FOREVER, &op->future)
        : k == ALL_TO_ALL     ? weft_group_all_to_all_async(group, x, y, WEFT_FOREVER, &op->future)
        : k == GATHER         ? weft_group_gather_async(group, x, y, op->root, WEFT_FOREVER, &op->future)
                              : weft_group_scatter_async(group, x, y, op->root, WEFT_FOREVER, &op->future);
    MUST_OK(status);
    op->given = x;
    op->result = y;
}

static void end(operation *op)
{
    MUST_OK(weft_future_wait(op->future, WEFT_FOREVER));
    const int32_t *data = op->result ? weft_tensor_data(op->result) : NULL;
    for (int64_t i = 0; data && i < weft_tensor_numel(op->result); i++)
        if ((op->kind != REDUCE || op->me == op->root) && data[i] != expected(op, i)) {
            fprintf(stderr,
                    "operation %d of %zu members, %lld elements, root %zu: member %zu has %d in place %lld, not %d\n",
                    op->kind, op->size, (long long)op->count, op->root, op->me, data[i], (long long)i, expected(op, i));
            abort();
        }
    weft_future_unref(op->future);
    weft_tensor_unref(op->given);
    weft_tensor_unref(op->result);
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

typedef struct scene {
    world w;
    int over;         /* members that are through */
    bool has_fabrics; /* several, and `fabrics` does harm to them */
    spoiler fabrics;
} scene;

/* Bytes at which a message becomes too long, or a piece has to be cut; a few elements more or less. */
static int64_t draw_count(uint64_t *state)
{
    static const int64_t bytes[] = {16, 3584, 32 << 10, 64 << 10, 128 << 10, 256 << 10};
    int64_t count =
        bytes[prng_next(state) % (sizeof(bytes) / sizeof(*bytes))] / 4 + (int64_t)(prng_next(state) % 7) - 3;
    return prng_next(state) % 4 ? count : (int64_t)(prng_next(state) % 3000);
}

static operation draw_operation(uint64_t *state, const weft_group *group)
{
    operation op = {.kind = prng_next(state) % 2 ? ALLREDUCE : (kind)(prng_next(state) % KINDS),
                    .size = weft_group_size(group)};
    op.root = prng_next(state) % op.size;
    op.count = draw_count(state);
    op.salt = (int32_t)(prng_next(state) % 1000);
    op.me = (size_t)weft_group_index(group);
    if (op.kind >= ALLGATHER)
        op.count /= (int64_t)op.size;
    return op;
}

static void trouble(weft_sim *sim, int rank, void *arg)
{
    scene *s = arg;
    int size = s->w.size;
    while (s->over < size) {
        weft_sim_sleep(sim, wfi_sim_random(sim) % (s->has_fabrics ? 300000000 : 300000));
        int a = (int)(wfi_sim_random(sim) % (uint64_t)size), b = (int)(wfi_sim_random(sim) % (uint64_t)size);
        if (a == b)
            continue;
        if (wfi_sim_random(sim) % 3) {
            weft_sim_reset_link(sim, a, b);
        } else {
            weft_sim_cut(sim, a, b);
            weft_sim_sleep(sim, wfi_sim_random(sim) % 1000000);
            weft_sim_heal(sim, a, b);
        }
    }
}

/* All are in the first group, all but the last in the second. */
static void work(weft_agent *agent, void *arg)
{
    static const char *const tables[] = {"",
                                         "allreduce * * recursive_doubling",
                                         "allreduce * * rabenseifner",
                                         "allreduce * * ring",
                                         "allreduce * * tree; broadcast * * chain",
                                         "allreduce * * two_level"};
    scene *s = arg;
    int ranks[MOST] = {0, 1, 2, 3, 4, 5}, me = weft_agent_rank(agent);
    size_t groups = me < s->w.size - 1 ? GROUPS : 1;
    weft_group *group[GROUPS];
    if (me == 0)
        MUST_OK(weft_sim_spawn(s->w.sim, 0, trouble, s));
    for (size_t g = 0; g < groups; g++) {
        MUST_OK(weft_group_open(agent, g ? "most" : "all", ranks, (size_t)s->w.size - g, 0, &group[g], NULL));
        MUST_OK(weft_group_set_algorithms(group[g], tables[(s->w.seed + g) % (sizeof(tables) / sizeof(*tables))]));
    }
    for (int round = 0; round < ROUNDS; round++) {
        operation ops[GROUPS][AT_ONCE];
        for (size_t g = 0; g < groups; g++) {
            uint64_t state = s->w.seed * 1000 + (uint64_t)round * 10 + g;
            for (int i = 0; i < AT_ONCE; i++) {
                ops[g][i] = draw_operation(&state, group[g]);
                begin(group[g], &ops[g][i]);
            }
        }
        for (size_t g = 0; g < groups; g++)
            for (int i = 0; i < AT_ONCE; i++)
                end(&ops[g][i]);
    }
    s->over++;
    for (size_t g = 0; g < groups; g++) {
        MUST_OK(weft_group_barrier(group[g], WEFT_FOREVER));
        weft_group_close(group[g]);
    }
}

/* ---- Far apart --------------------------------------------------------------------------------------------------- */

enum { FLOOD = 200 };

static void stop_one(weft_sim *sim, int rank, void *arg)
{
    scene *s = arg;
    for (int i = 0; i < 3 && s->over < s->w.size; i++) {
        int victim = 1 + (int)(wfi_sim_random(sim) % (uint64_t)(s->w.size - 1)); /* this program runs at 0 */
        weft_sim_sleep(sim, wfi_sim_random(sim) % 3000000);
        weft_sim_pause(sim, victim);
        weft_sim_sleep(sim, wfi_sim_random(sim) % 3000000);
        weft_sim_resume(sim, victim);
    }
}

/* Many operations at once, of members of which one is slow and others stand still for a while: they wait for each
 * other's turns. */
static void run_apart(weft_agent *agent, void *arg)
{
    scene *s = arg;
    int me = weft_agent_rank(agent);
    uint64_t state = s->w.seed, pace = s->w.seed * 77 + (uint64_t)me;
    operation *ops = calloc(FLOOD, sizeof(*ops));
    weft_group *group;
    MUST(ops);
    if (me == 0)
        MUST_OK(weft_sim_spawn(s->w.sim, 0, stop_one, s));
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    for (int i = 0; i < FLOOD; i++) {
        ops[i] = draw_operation(&state, group);
        ops[i].count %= 1000;
        if (me == s->w.size - 1 || prng_next(&pace) % 50 == 0)
            weft_sim_sleep(s->w.sim, prng_next(&pace) % 50000);
        begin(group, &ops[i]);
    }
    for (int i = 0; i < FLOOD; i++)
        end(&ops[i]);
    s->over++;
    MUST_OK(weft_group_barrier(group, WEFT_FOREVER));
    weft_group_close(group);
    free(ops);
}

static uint64_t seeds = 40, first_seed = 1;

static void adjust(weft_agent_options *options, void *arg)
{
    scene *s = arg;
    options->death_timeout_ms = s->has_fabrics ? 2000 : 20000;
    if (s->has_fabrics)
        spoiler_choose(&s->fabrics, options);
}

static void play(void (*program)(weft_agent *agent, void *arg), bool has_fabrics)
{
    for (uint64_t seed = first_seed; seed < first_seed + world_seeds(seeds); seed++) {
        scene s = {.w = {.fabric = WORLD_SIM,
                         .size = 3 + (int)(seed % (MOST - 2)),
                         .ranks_per_host = 1 + (int)(seed / 4 % 4), /* members of a host share memory */
                         .seed = seed,
                         .program = program,
                         .adjust = adjust},
                   .has_fabrics = has_fabrics};
        s.w.arg = &s;
        spoiler_init(&s.fabrics, seed, s.w.size);
        world_run(&s.w);
    }
}

static void test_links(void **cmocka)
{
    play(work, false);
}

static void test_fabrics(void **cmocka)
{
    play(work, true);
}

static void test_far_apart(void **cmocka)
{
    play(run_apart, false);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest on_fabrics[] = {cmocka_unit_test(test_fabrics)};
    const struct CMUnitTest all[] = {cmocka_unit_test(test_links), cmocka_unit_test(test_far_apart),
                                     cmocka_unit_test(test_fabrics)};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--seeds"))
            seeds = strtoull(argv[i + 1], NULL, 10);
        else if (!strcmp(argv[i], "--first"))
            first_seed = strtoull(argv[i + 1], NULL, 10);
    }
    if (argc > 1 && !strcmp(argv[argc - 1], "--fabrics"))
        return cmocka_run_group_tests(on_fabrics, NULL, NULL);
    return cmocka_run_group_tests(all, NULL, NULL);
}
