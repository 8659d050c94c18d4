/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_coll_values.c - what operations of groups give, against sums that the test forms itself: every operation,
 * group sizes 1 to 9, all dtypes, from no elements on, all algorithms; the same bits on all members; and in place,
 * from views, into views.
 *
 * COLL_LARGE=1 in the environment (tools/check --long): sizes up to 64 MiB.
 */
#include "coll/coll.h"
#include "tensors.h"

#define MOST 9

typedef struct scene {
    world w;
    int64_t count; /* elements of one part */
    weft_dtype dtype;
    const char *algorithms; /* NULL: the table's */
    /* Of the last operation, from each member: the bits must be the same. */
    uint64_t hash[MOST];
} scene;

static weft_group *make(weft_agent *agent, const scene *s)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    if (s->algorithms)
        MUST_OK(weft_group_set_algorithms(group, s->algorithms));
    return group;
}

/* What member `rank` gives as element i: small whole numbers, so that sums are exact in every dtype. */
static double given(weft_dtype dtype, int rank, int64_t i)
{
    int64_t lowest = dtype == WEFT_DTYPE_UINT8 || dtype == WEFT_DTYPE_BOOL ? 0 : -1;
    return (double)((i * 7 + rank * 3) % 4 + lowest);
}

static weft_tensor *given_tensor(const scene *s, int rank, int64_t first, int64_t count)
{
    enum { PERIOD = 4 }; /* of `given` */
    weft_tensor *x = tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT64);
    double *data = weft_tensor_data(x);
    for (int64_t i = 0; i < count; i++)
        data[i] = i < PERIOD ? given(s->dtype, rank, first + i) : data[i - PERIOD];
    if (s->dtype == WEFT_DTYPE_FLOAT64)
        return x;
    weft_tensor *converted = coll_convert(x, s->dtype);
    weft_tensor_unref(x);
    return converted;
}

/* As an element of that dtype holds it; integers wrap. */
static double held(weft_dtype dtype, double value)
{
    switch (dtype) {
    case WEFT_DTYPE_BOOL:
        return value != 0;
    case WEFT_DTYPE_UINT8:
        return (double)(uint8_t)(int64_t)value;
    case WEFT_DTYPE_INT8:
        return (double)(int8_t)(int64_t)value;
    case WEFT_DTYPE_INT16:
        return (double)(int16_t)(int64_t)value;
    default:
        return value;
    }
}

static double combined(weft_dtype dtype, weft_op how, int size, int64_t i)
{
    double sum = how == WEFT_OP_PROD ? 1 : 0, low = 0, high = 0;
    for (int rank = 0; rank < size; rank++) {
        double x = held(dtype, given(dtype, rank, i));
        sum = how == WEFT_OP_PROD ? sum * x : sum + x;
        low = rank ? fmin(low, x) : x;
        high = rank ? fmax(high, x) : x;
    }
    switch (how) {
    case WEFT_OP_MIN:
        return low;
    case WEFT_OP_MAX:
        return high;
    case WEFT_OP_AVG:
        return sum / size;
    default:
        return held(dtype, sum);
    }
}

static void check(const scene *s, const weft_tensor *got, int64_t i, double wanted, const char *what)
{
    double is = weft_tensor_get_f64(got, i);
    double room = s->dtype == WEFT_DTYPE_BFLOAT16 ? 0.03 : s->dtype == WEFT_DTYPE_FLOAT16 ? 0.002 : 1e-6;
    if (fabs(is - wanted) > room * (1 + fabs(wanted))) {
        fprintf(stderr, "%s of %s, %d members, element %lld of %lld: %g, not %g (%s)\n", what,
                weft_dtype_name(s->dtype), s->w.size, (long long)i, (long long)s->count, is, wanted,
                s->algorithms ? s->algorithms : "");
        abort();
    }
}

/* Few of many. */
static int64_t step_of(int64_t count)
{
    return count < 2000 ? 1 : count / 997;
}

static void check_reduced(scene *s, const weft_tensor *got, weft_op how, int64_t first, const char *what)
{
    int64_t count = weft_tensor_numel(got);
    for (int64_t i = 0; i < count; i += step_of(count))
        check(s, got, i, combined(s->dtype, how, s->w.size, first + i), what);
    if (count)
        check(s, got, count - 1, combined(s->dtype, how, s->w.size, first + count - 1), what);
}

static void same_bits(scene *s, weft_group *group, const weft_tensor *got)
{
    weft_values *all;
    uint64_t hash = coll_hash(got);
    MUST_OK(weft_group_allgather_values(group, WEFT_VALUES(weft_of_i64((int64_t)hash)), 60000, &all));
    for (int i = 0; i < s->w.size; i++) {
        weft_args list;
        MUST_OK(weft_values_get_list(all, (size_t)i, &list));
        MUST(list.items[0].as.i64 == (int64_t)hash);
    }
    weft_values_unref(all);
}

static void reductions(weft_agent *agent, weft_group *group, scene *s)
{
    int me = weft_agent_rank(agent), size = s->w.size;
    for (weft_op how = WEFT_OP_SUM; how <= WEFT_OP_PROD; how++) {
        if (!coll_can(s->dtype, how))
            continue;
        weft_tensor *x = given_tensor(s, me, 0, s->count);
        MUST_OK(weft_group_allreduce(group, x, how, 60000));
        check_reduced(s, x, how, 0, "allreduce");
        same_bits(s, group, x);
        weft_tensor_unref(x);
    }
    for (int root = 0; root<size; root += size> 3 ? 3 : 1) {
        weft_tensor *x = given_tensor(s, me, 0, s->count);
        uint64_t before = coll_hash(x);
        MUST_OK(weft_group_reduce(group, x, WEFT_OP_SUM, (size_t)root, 60000));
        if (me == root)
            check_reduced(s, x, WEFT_OP_SUM, 0, "reduce");
        else
            MUST(coll_hash(x) == before);
        weft_tensor_unref(x);
    }
    weft_tensor *in = given_tensor(s, me, 0, s->count * size), *out = coll_empty(s->dtype, s->count);
    MUST_OK(weft_group_reduce_scatter(group, in, out, WEFT_OP_SUM, 60000));
    check_reduced(s, out, WEFT_OP_SUM, me * s->count, "reduce_scatter");
    weft_tensor_unref(in);
    weft_tensor_unref(out);
}

static void check_given(scene *s, const weft_tensor *got, int64_t at, int rank, int64_t first, const char *what)
{
    for (int64_t i = 0; i < s->count; i += step_of(s->count)) {
        check(s, got, at + i, held(s->dtype, given(s->dtype, rank, first + i)), what);
    }
}

static void moves_to_all(weft_agent *agent, weft_group *group, scene *s)
{
    int me = weft_agent_rank(agent), size = s->w.size;
    for (int root = 0; root<size; root += size> 3 ? 3 : 1) {
        weft_tensor *x = given_tensor(s, me, 0, s->count);
        MUST_OK(weft_group_broadcast(group, x, (size_t)root, 60000));
        check_given(s, x, 0, root, 0, "broadcast");
        weft_tensor_unref(x);
    }
    weft_tensor *in = given_tensor(s, me, 0, s->count), *out = coll_empty(s->dtype, s->count * size);
    MUST_OK(weft_group_allgather(group, in, out, 60000));
    for (int rank = 0; rank < size; rank++)
        check_given(s, out, rank * s->count, rank, 0, "allgather");
    weft_tensor_unref(out);
    /* In place: the input is this member's part of the output. */
    out = coll_empty(s->dtype, s->count * size);
    weft_tensor *part = tensor_narrow(out, 0, me * s->count, s->count);
    MUST_OK(weft_tensor_assign(part, in));
    MUST_OK(weft_group_allgather(group, part, out, 60000));
    for (int rank = 0; rank < size; rank++)
        check_given(s, out, rank * s->count, rank, 0, "allgather in place");
    weft_tensor_unref(part);
    weft_tensor_unref(out);
    weft_tensor_unref(in);
}

static void moves(weft_agent *agent, weft_group *group, scene *s)
{
    int me = weft_agent_rank(agent), size = s->w.size;
    int64_t all = s->count * size;
    for (int root = 0; root<size; root += size> 3 ? 3 : 1) {
        weft_tensor *in = given_tensor(s, me, 0, s->count), *out = me == root ? coll_empty(s->dtype, all) : NULL;
        MUST_OK(weft_group_gather(group, in, out, (size_t)root, 60000));
        for (int rank = 0; rank < size && out; rank++)
            check_given(s, out, rank * s->count, rank, 0, "gather");
        weft_tensor_unref(in);
        weft_tensor_unref(out);
        in = me == root ? given_tensor(s, me, 0, all) : NULL;
        out = coll_empty(s->dtype, s->count);
        MUST_OK(weft_group_scatter(group, in, out, (size_t)root, 60000));
        check_given(s, out, 0, root, me * s->count, "scatter");
        weft_tensor_unref(in);
        weft_tensor_unref(out);
    }
    weft_tensor *in = given_tensor(s, me, 0, all), *out = coll_empty(s->dtype, all);
    MUST_OK(weft_group_all_to_all(group, in, out, 60000));
    for (int rank = 0; rank < size; rank++)
        check_given(s, out, rank * s->count, rank, me * s->count, "all_to_all");
    weft_tensor_unref(in);
    weft_tensor_unref(out);
}

/* Each to its next one, and back. */
static void between_two(weft_agent *agent, weft_group *group, scene *s)
{
    int me = weft_agent_rank(agent), size = s->w.size;
    if (size < 2)
        return;
    size_t right = (size_t)(me + 1) % (size_t)size, left = (size_t)(me + size - 1) % (size_t)size;
    weft_tensor *mine = given_tensor(s, me, 0, s->count), *got = coll_empty(s->dtype, s->count);
    weft_future *sent;
    MUST_OK(weft_group_send_async(group, mine, right, 60000, &sent));
    MUST_OK(weft_group_recv(group, got, left, 60000));
    MUST_OK(weft_future_wait(sent, WEFT_FOREVER));
    check_given(s, got, 0, (int)left, 0, "recv");
    weft_future_unref(sent);
    weft_tensor_unref(mine);
    weft_tensor_unref(got);
}

static void all_operations(weft_agent *agent, void *arg)
{
    scene *s = arg;
    weft_group *group = make(agent, s);
    reductions(agent, group, s);
    moves_to_all(agent, group, s);
    moves(agent, group, s);
    between_two(agent, group, s);
    MUST_OK(weft_group_barrier(group, 60000));
    weft_group_close(group);
}

static int ranks_per_host = 1;

static void run(world_fabric fabric, int size, weft_dtype dtype, int64_t count, const char *algorithms)
{
    scene s = {
        .w = {.fabric = fabric, .size = size, .seed = (uint64_t)(size * 31 + count % 7 + 1), .program = all_operations},
        .count = count,
        .dtype = dtype,
        .algorithms = algorithms};
    s.w.arg = &s;
    s.w.ranks_per_host = ranks_per_host;
    world_run(&s.w);
}

/*
 * Elements of float64: CHUNKS are sent in three chunks, TWO_CHUNKS in two. An operation of n members moves up to n * n
 * parts, so large groups have the smaller number, and not every size has a large part.
 */
#if defined(__SANITIZE_THREAD__) /* there fibers cost a hundred times as much, and have no threads to race */
enum { STRIDE = 4, CHUNKS = 40000, TWO_CHUNKS = 40000 };
#elif defined(__SANITIZE_ADDRESS__) /* memory goes wrong by the kind of step more than by the count of members */
enum { STRIDE = 2, CHUNKS = 150000, TWO_CHUNKS = 70001 };
#else
enum { STRIDE = 1, CHUNKS = 150000, TWO_CHUNKS = 70001 };
#endif

static int64_t chunks_for(int size)
{
    return size <= 4 ? CHUNKS : TWO_CHUNKS;
}

static void test_sizes_of_groups(void **state)
{
    static const int64_t counts[] = {0, 1, 2, 7, 1000, 33001}; /* the last one in a chunk, not in messages */
    for (int size = 1; size <= MOST; size += STRIDE)
        for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++)
            run(WORLD_SIM, size, WEFT_DTYPE_FLOAT32, counts[i], NULL);
}

static void test_dtypes(void **state)
{
    for (weft_dtype dtype = WEFT_DTYPE_FLOAT32; coll_is_dtype(dtype); dtype++) {
        run(WORLD_SIM, 4, dtype, 13, NULL);
        run(WORLD_SIM, 3, dtype, 5000, NULL);
    }
}

static void test_algorithms(void **state)
{
    static const char *const tables[] = {
        "allreduce * * recursive_doubling; reduce * * tree; broadcast * * tree; allgather * * direct; reduce_scatter * "
        "* direct",
        "allreduce * * rabenseifner; reduce * * chain; broadcast * * chain; allgather * * ring; reduce_scatter * * "
        "ring",
        "allreduce * * ring",
        "allreduce * * tree; allgather * * bruck",
    };
    for (size_t i = 0; i < sizeof(tables) / sizeof(*tables); i++)
        for (int size = 2; size <= MOST; size += STRIDE) {
            run(WORLD_SIM, size, WEFT_DTYPE_FLOAT32, 11, tables[i]);
            if (size <= 4 || size == MOST)
                run(WORLD_SIM, size, WEFT_DTYPE_FLOAT64, chunks_for(size), tables[i]);
        }
}

/* Zeros of both signs and numbers that are none: whichever of two is taken, it is the same one everywhere. */
static void odd_numbers(weft_agent *agent, void *arg)
{
    scene *s = arg;
    static const float odd[] = {0.0f, -0.0f, NAN, -NAN, INFINITY, -INFINITY, 1.0f};
    enum { ODD = sizeof(odd) / sizeof(*odd) };
    weft_group *group = make(agent, s);
    for (weft_op how = WEFT_OP_SUM; how <= WEFT_OP_PROD; how++) {
        weft_tensor *x = coll_empty(WEFT_DTYPE_FLOAT32, s->count);
        float *data = weft_tensor_data(x);
        for (int64_t i = 0; i < s->count; i++)
            data[i] = odd[(i * 5 + weft_agent_rank(agent) * (1 + i / ODD)) % ODD];
        MUST_OK(weft_group_allreduce(group, x, how, 60000));
        same_bits(s, group, x);
        weft_tensor_unref(x);
    }
    weft_group_close(group);
}

static void test_odd_numbers(void **state)
{
    static const char *const names[] = {"recursive_doubling", "rabenseifner", "ring", "tree", "two_level"};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        for (int size = 2; size <= MOST; size += 3) {
            char rules[64];
            snprintf(rules, sizeof(rules), "allreduce * * %s", names[i]);
            scene s = {.w = {.fabric = WORLD_SIM, .size = size, .program = odd_numbers, .seed = 1, .ranks_per_host = 2},
                       .count = 100,
                       .dtype = WEFT_DTYPE_FLOAT32,
                       .algorithms = rules};
            s.w.arg = &s;
            world_run(&s.w);
        }
}

/* Hosts of one, two, three members, and one of all: whatever the roots. */
static void test_two_levels(void **state)
{
    static const int hosts[] = {1, 2, 3, 100};
    static const char all[] = "barrier * * two_level; allreduce * * two_level; reduce * * two_level;"
                              "broadcast * * two_level";
    for (size_t i = 0; i < sizeof(hosts) / sizeof(*hosts); i++)
        for (int size = 2; size <= MOST; size += STRIDE) {
            ranks_per_host = hosts[i];
            run(WORLD_SIM, size, WEFT_DTYPE_FLOAT32, 11, size % 2 ? NULL : all);
            if (size % 3 == 1 || STRIDE > 1)
                run(WORLD_SIM, size, WEFT_DTYPE_INT64, 17000, hosts[i] == 2 ? NULL : all);
        }
    ranks_per_host = 1;
}

/* A member that does not lead its host sends nothing for barriers, once its host has memory. */
static void must_send_little(weft_agent *agent, weft_group *group, const scene *s)
{
    enum { ROUNDS = 40 };
    int me = weft_agent_rank(agent);
    uint64_t before = world_stats(agent).frames_sent;
    for (int i = 0; i < ROUNDS; i++)
        MUST_OK(weft_group_barrier(group, 60000));
    MUST(me % s->w.ranks_per_host == 0 || world_stats(agent).frames_sent - before < ROUNDS / 2);
}

/*
 * The first operations are done by messages, the later ones in the memory of each host: the bits of a sum are the same.
 * The elements are rounded where they are added.
 */
static void same_sums(weft_agent *agent, void *arg)
{
    enum { ROUNDS = 8 };
    scene *s = arg;
    uint64_t first = 0;
    weft_group *group = make(agent, s);
    for (int round = 0; round < ROUNDS; round++) {
        weft_tensor *x = coll_empty(s->dtype, s->count);
        for (int64_t i = 0; i < s->count; i++)
            ((float *)weft_tensor_data(x))[i] = sinf((float)(i * 7 + 1 + 1000 * weft_agent_rank(agent)));
        MUST_OK(weft_group_allreduce(group, x, WEFT_OP_AVG, 60000));
        same_bits(s, group, x);
        MUST(!round || first == coll_hash(x));
        first = coll_hash(x);
        weft_tensor_unref(x);
    }
    must_send_little(agent, group, s);
    weft_group_close(group);
}

/* Of a few elements; of all that the memory holds; of one more. */
static void test_levels_in_memory(void **state)
{
    static const int64_t counts[] = {5, 16384, 16385};
    for (int hosts = 2; hosts <= 4; hosts++)
        for (int size = hosts + 1; size <= MOST; size += STRIDE) {
            scene s = {.w = {.fabric = WORLD_SIM, .size = size, .program = same_sums, .seed = (uint64_t)size},
                       .count = counts[size % 3],
                       .dtype = WEFT_DTYPE_FLOAT32};
            s.w.ranks_per_host = (size + hosts - 1) / hosts;
            s.w.arg = &s;
            world_run(&s.w);
        }
}

static void test_over_tcp(void **state)
{
    for (int size = 1; size <= MOST; size += size < 4 ? 1 : 4) {
        run(WORLD_TCP, size, WEFT_DTYPE_FLOAT32, 3, NULL);
        run(WORLD_TCP, size, WEFT_DTYPE_BFLOAT16, 70001, NULL);
        run(WORLD_TCP, size, WEFT_DTYPE_FLOAT64, size <= 3 ? 2 * CHUNKS : TWO_CHUNKS, NULL);
    }
}

static void test_large(void **state)
{
    if (!getenv("COLL_LARGE"))
        return;
    for (int size = 2; size <= MOST; size++)
        for (int64_t bytes = 1 << 20; bytes <= 64 << 20; bytes *= 4)
            run(WORLD_TCP, size, WEFT_DTYPE_FLOAT32, bytes / 4 / (size > 4 ? 4 : 1), NULL);
}

UNIT_MAIN(test_sizes_of_groups, test_dtypes, test_algorithms, test_odd_numbers, test_two_levels, test_levels_in_memory,
          test_over_tcp, test_large)
