/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_dist_random.c - random graphs over two to six simulated workers: computations spread by calls within calls,
 * values that are used often, once or never, several contexts and passes at once, workers that die in the middle.
 * Numbers are small integers, so that sums are exact in any order. What a pass leaves is compared with the gradients
 * that the root finds out by itself: each call says of what it did a line, and gradients are computed from the
 * lines.
 *
 * usage: test_dist_random [--fabrics]: only with several fabrics. WEFT_TEST_SEEDS and WEFT_TEST_FIRST name the seeds.
 *
 * Every computation is a sum of products: value = a * x + b * y, with a, b constants and x, y values here,
 * parameters of this worker, or values that came. So a gradient is found by going through the lines backwards.
 */
#include "rpc/spoiler.h"
#include "rpc/world.h"
#include "prng.h"
#include "tensors.h"

#include <math.h>

#define MOST 6
#define LINES 512
#define PASSES 2

/* ---- The book of one context: what was computed, wherever it was ---------------------------------------------- */

typedef struct line {
    int x, y; /* lines, or -1; a parameter's line has neither */
    double a, b;
    int parameter; /* its worker, or -1 */
} line;

typedef struct book {
    line lines[LINES];
    int count, calls;
    uint64_t state; /* of its random numbers */
} book;

static book books[MOST]; /* by root: one context at a time each. The simulation has one thread */
static weft_tensor *parameters[MOST];
static int workers;
static uint64_t seed;
static struct {
    int passes, gradients, calls; /* that were not 0; away */
} seen;

static weft_agent *agents[MOST];

static weft_agent *agent_of_book(const book *b)
{
    return agents[b - books];
}

static uint64_t draw(book *b, uint64_t below)
{
    return prng_below(&b->state, below);
}

static int write_line(book *b, line what)
{
    MUST(b->count < LINES);
    b->lines[b->count] = what;
    return b->count++;
}

/* The gradient of each line of which `roots` is the sum. */
static void expected(const book *b, const int *roots, int count, double *out)
{
    memset(out, 0, LINES * sizeof(*out));
    for (int i = 0; i < count; i++)
        out[roots[i]] += 1;
    for (int i = b->count - 1; i >= 0; i--) {
        if (b->lines[i].x >= 0)
            out[b->lines[i].x] += b->lines[i].a * out[i];
        if (b->lines[i].y >= 0)
            out[b->lines[i].y] += b->lines[i].b * out[i];
    }
}

/* ---- What goes wrong --------------------------------------------------------------------------------------------- */

static world *playing;
static int victim, moments; /* -1: nobody; how many more moments it lives */
static spoiler fabrics;     /* does harm to them, if there are several */

/* Something happens on this worker: perhaps the victim's time has come. */
static void pass_moment(const weft_agent *agent)
{
    if (victim < 0 || moments < 0 || weft_agent_rank(agent) == victim || moments-- > 0)
        return;
    weft_sim_kill(playing->sim, victim);
}

/* ---- Computing --------------------------------------------------------------------------------------------------- */

/* What one worker has at hand in a call: tensors and their lines. */
typedef struct hand {
    weft_tensor *tensors[64];
    int lines[64], count;
    weft_values *held[16]; /* results of calls */
    int held_count;
} hand;

static void take(hand *h, weft_tensor *tensor, int number)
{
    if (tensor && h->count < 64) {
        h->tensors[h->count] = tensor;
        h->lines[h->count++] = number;
    }
}

static void drop_hand(hand *h)
{
    for (int i = 0; i < h->held_count; i++)
        weft_values_unref(h->held[i]);
}

static void combine(weft_tape *t, book *b, hand *h)
{
    int x = (int)draw(b, (uint64_t)h->count), y = (int)draw(b, (uint64_t)h->count);
    double a = (double)draw(b, 3) - 1, c = (double)draw(b, 2) + 1;
    weft_tensor *z = weft_add(t, weft_scale(t, h->tensors[x], a), weft_scale(t, h->tensors[y], c));
    if (z)
        take(h, z, write_line(b, (line){h->lines[x], h->lines[y], a, c, -1}));
}

static int parameter_line(book *b, int worker)
{
    for (int i = 0; i < b->count; i++)
        if (b->lines[i].parameter == worker)
            return i;
    return write_line(b, (line){-1, -1, 0, 0, worker});
}

static weft_status call_away(weft_agent *agent, weft_tape *t, const weft_call *parent, int root, book *b, hand *h,
                             int depth);

/* Computes a little, calls others now and then. */
static weft_status work(weft_agent *agent, weft_tape *t, const weft_call *parent, int root, book *b, hand *h, int depth)
{
    int me = weft_agent_rank(agent), steps = 1 + (int)draw(b, 4);
    pass_moment(agent);
    weft_status status = WEFT_OK;
    if (draw(b, 2))
        take(h, parameters[me], parameter_line(b, me));
    for (int i = 0; i < steps && !status; i++) {
        if (h->count && draw(b, 3))
            combine(t, b, h);
        else if (depth < 4 && b->calls < 24)
            status = call_away(agent, t, parent, root, b, h, depth);
    }
    return status;
}

static weft_status call_away(weft_agent *agent, weft_tape *t, const weft_call *parent, int root, book *b, hand *h,
                             int depth)
{
    weft_value items[8];
    size_t count = 2, sent = h->count ? draw(b, 3) : 0;
    int to = (int)draw(b, (uint64_t)workers), lines[3];
    weft_values *results = NULL;
    items[0] = weft_of_i64(root);
    items[1] = weft_of_i64(depth + 1);
    for (size_t i = 0; i < sent; i++) {
        int which = (int)draw(b, (uint64_t)h->count);
        lines[i] = h->lines[which];
        items[count++] = weft_of_tensor(h->tensors[which]);
        items[count++] = weft_of_i64(lines[i]);
    }
    pass_moment(agent);
    b->calls++;
    seen.calls++;
    weft_rpc_options how = {.tape = t, .parent = parent, .retry.attempts = draw(b, 4) ? 0 : 2};
    weft_status status = weft_rpc_sync(agent, weft_to_rank(to), "work", (weft_args){items, count}, &how, &results);
    if (status)
        return status;
    for (size_t i = 0; i + 1 < weft_values_count(results); i += 2) {
        weft_tensor *tensor;
        int64_t at;
        MUST_OK(weft_values_get_tensor(results, i, &tensor));
        MUST_OK(weft_values_get_i64(results, i + 1, &at));
        take(h, tensor, (int)at);
    }
    if (h->held_count < 16)
        h->held[h->held_count++] = results;
    else
        weft_values_unref(results);
    return WEFT_OK;
}

/* (root, depth, tensor, line, ...) -> (tensor, line, ...) */
static weft_status serve_work(weft_call *call, void *user)
{
    (void)user;
    hand h = {.count = 0};
    int root = (int)weft_call_i64(call, 0);
    book *b = &books[root];
    for (size_t i = 2; i + 1 < weft_call_count(call); i += 2)
        take(&h, weft_call_tensor(call, i), (int)weft_call_i64(call, i + 1));
    weft_status status =
        work(weft_call_agent(call), weft_call_tape(call), call, root, b, &h, (int)weft_call_i64(call, 1));
    weft_value items[6];
    size_t count = 0, given = !status && h.count ? draw(b, 3) : 0;
    for (size_t i = 0; i < given; i++) {
        int which = (int)draw(b, (uint64_t)h.count);
        items[count++] = weft_of_tensor(h.tensors[which]);
        items[count++] = weft_of_i64(h.lines[which]);
    }
    if (!status)
        weft_call_give(call, (weft_args){items, count});
    drop_hand(&h);
    return status;
}

static weft_status serve_gradient(weft_call *call, void *user)
{
    (void)user;
    int me = weft_agent_rank(weft_call_agent(call));
    weft_tensor *gradient = weft_context_ref_grad(weft_tape_context(weft_call_tape(call)), parameters[me]);
    weft_call_give(call, WEFT_VALUES(weft_of_f64(gradient ? (double)*(float *)weft_tensor_data(gradient) : 0)));
    weft_tensor_unref(gradient);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "work",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_REST},
     .gives = {WEFT_TYPE_REST},
     .run = serve_work},
    {.name = "gradient", .gives = {WEFT_TYPE_F64}, .run = serve_gradient},
};

/* ---- One root ---------------------------------------------------------------------------------------------------- */

static void compare(weft_agent *agent, weft_tape *t, int me, const double *want)
{
    for (int rank = 0; rank < workers; rank++) {
        double got, sum = 0;
        weft_values *results;
        for (int i = 0; i < books[me].count; i++)
            sum += books[me].lines[i].parameter == rank ? want[i] : 0;
        weft_status status = weft_rpc_sync(agent, weft_to_rank(rank), "gradient", WEFT_NO_VALUES,
                                           &(weft_rpc_options){.tape = t}, &results);
        if (status)
            continue; /* it is gone: the pass had ended by then */
        MUST_OK(weft_values_get_f64(results, 0, &got));
        if (got != sum)
            fprintf(stderr, "seed %llu, root %d: the gradient at %d is %g, not %g\n", (unsigned long long)seed, me,
                    rank, got, sum);
        MUST(got == sum);
        seen.gradients += got != 0 && rank != me;
        weft_values_unref(results);
    }
}

/* Whether the values stay so small that float sums are exact. */
static bool is_exact(const double *want, int count)
{
    for (int i = 0; i < count; i++)
        if (fabs(want[i]) > 1e6)
            return false;
    return true;
}

/* A pass, by either function; where things go wrong anyhow it is also cancelled now and then. */
static weft_status backward(weft_context *c, weft_tape *t, weft_tensor *loss, book *b, bool retain)
{
    weft_pass_options how = {.retain = retain, .unordered = draw(b, 2), .timeout_ms = 30000};
    weft_future *future;
    if (!loss || draw(b, 2)) {
        weft_dist_backward(t, loss, &how);
        return weft_tape_status(t);
    }
    weft_values *seen_by_all = NULL; /* a call names the tape: what it recorded can be seen */
    weft_status status = weft_rpc_sync(agent_of_book(b), weft_to_rank(0), "gradient", WEFT_NO_VALUES,
                                       &(weft_rpc_options){.tape = t}, &seen_by_all);
    if (status)
        return status;
    weft_values_unref(seen_by_all);
    status = weft_context_backward(c, (weft_tensors){&loss, 1}, &how, &future);
    if (status)
        return status;
    if (victim >= 0 && !draw(b, 4)) {
        weft_status over = weft_future_cancel(future);
        (void)over; /* it may have ended */
    }
    status = weft_future_wait(future, WEFT_FOREVER);
    weft_future_unref(future);
    return status;
}

static void one_context(weft_agent *agent, bool may_fail)
{
    static double want[MOST][LINES];
    int me = weft_agent_rank(agent), roots[3];
    book *b = &books[me];
    hand h = {.count = 0};
    weft_context *c;
    b->count = b->calls = 0;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    take(&h, parameters[me], parameter_line(b, me));
    weft_status status = WEFT_OK;
    for (int i = 0; i < 3 && !status; i++)
        status = work(agent, t, NULL, me, b, &h, 0);
    combine(t, b, &h);
    MUST(!status || may_fail);
    weft_tensor *items[3];
    size_t count = 1 + draw(b, 3);
    for (size_t i = 0; i < count; i++) { /* what was computed last is recorded, whatever else is not */
        int which = i == 0 ? h.count - 1 : (int)draw(b, (uint64_t)h.count);
        roots[i] = h.lines[which];
        items[i] = h.tensors[which];
    }
    expected(b, roots, (int)count, want[me]);
    int passes = 1 + (int)draw(b, PASSES);
    for (int i = 0; i < passes && !status; i++) {
        weft_tensor *sum = items[0];
        for (size_t k = 1; k < count; k++)
            sum = weft_add(t, sum, items[k]);
        pass_moment(agent);
        status = backward(c, t, weft_sum(t, sum), b, i + 1 < passes);
        MUST(!status || may_fail);
        seen.passes += !status;
        for (int k = 0; k < b->count && !status && i > 0; k++)
            want[me][k] += want[me][k] / i;
    }
    if (!status && is_exact(want[me], b->count))
        compare(agent, t, me, want[me]);
    drop_hand(&h);
    weft_tape_close(t);
    weft_context_close(c, NULL);
}

static void program(weft_agent *agent, void *arg)
{
    (void)arg;
    int me = weft_agent_rank(agent);
    books[me].state = seed * 64 + (uint64_t)me;
    agents[me] = agent;
    if (me == 1 && workers > 2)
        return; /* it only serves */
    for (int i = 0; i < 3; i++)
        one_context(agent, victim >= 0);
    for (int rank = 0; weft_agent_contexts(agent, NULL) && rank < 20000; rank++)
        world_sleep_ms(playing, 1);
    size_t passes;
    if (weft_agent_contexts(agent, &passes))
        fprintf(stderr, "seed %llu rank %d of %d: %zu contexts and %zu passes are left\n", (unsigned long long)seed, me,
                workers, weft_agent_contexts(agent, NULL), passes);
    MUST(weft_agent_contexts(agent, &passes) == 0 ||
         weft_agent_status(agent)); /* nothing is left: others end theirs, or die */
}

static void begin_world(world *w)
{
    (void)w;
    for (int rank = 0; rank < MOST; rank++) {
        parameters[rank] = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32);
        *(float *)weft_tensor_data(parameters[rank]) = 1;
        weft_tensor_set_requires_grad(parameters[rank], true);
    }
}

static void end_world(world *w)
{
    (void)w;
    for (int rank = 0; rank < MOST; rank++)
        weft_tensor_unref(parameters[rank]);
}

static void choose_fabrics(weft_agent_options *options, void *arg)
{
    spoiler_choose(&fabrics, options);
}

static void play(bool with_deaths, bool with_fabrics)
{
    uint64_t seeds = world_seeds(300);
    const char *more = getenv("WEFT_TEST_SEEDS"), *first = getenv("WEFT_TEST_FIRST");
    if (more)
        seeds = strtoull(more, NULL, 10);
    seed = first ? strtoull(first, NULL, 10) : 1;
    for (uint64_t last = seed + seeds - 1; seed <= last; seed++) {
        workers = (with_deaths ? 3 : 2) + (int)(seed % (with_deaths ? MOST - 2 : MOST - 1));
        victim = with_deaths ? workers - 1 : -1;
        moments = with_deaths ? (int)(seed % 97) : 0;
        world w = {.fabric = WORLD_SIM, .size = workers, .seed = seed, WORLD_FUNCTIONS(functions), .program = program};
        w.arg = playing = &w;
        w.close_may_fail = with_deaths;
        spoiler_init(&fabrics, seed, workers);
        w.adjust = with_fabrics ? choose_fabrics : NULL;
        begin_world(&w);
        world_run(&w);
        end_world(&w);
    }
    fprintf(stderr, "%d calls, %d passes, %d gradients at others\n", seen.calls, seen.passes, seen.gradients);
    assert_true(seen.passes >= (int)seeds && seen.gradients >= (int)seeds);
}

static void test_random_graphs(void **state)
{
    (void)state;
    play(false, false);
}

static void test_random_graphs_and_a_death(void **state)
{
    (void)state;
    play(true, false);
}

static void test_random_graphs_and_several_fabrics(void **state)
{
    (void)state;
    play(false, true);
}

static void test_random_graphs_several_fabrics_and_a_death(void **state)
{
    (void)state;
    play(true, true);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest on_fabrics[] = {
        cmocka_unit_test(test_random_graphs_and_several_fabrics),
        cmocka_unit_test(test_random_graphs_several_fabrics_and_a_death),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_graphs),
        cmocka_unit_test(test_random_graphs_and_a_death),
        cmocka_unit_test(test_random_graphs_and_several_fabrics),
        cmocka_unit_test(test_random_graphs_several_fabrics_and_a_death),
    };
    if (argc > 1 && strcmp(argv[1], "--fabrics") == 0)
        return cmocka_run_group_tests(on_fabrics, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
