/* SPDX-License-Identifier: Apache-2.0 */
/*
 * parallel.c - a program of faults for data-parallel modules. The members of a lane (lanes.h) train one module, each
 * with its own data. Each member also trains a copy in its own process with the data of all, and compares: gradients
 * after each pass, parameters at the end, and the bits of the parameters among the members.
 *
 * Scenes: training with every option; members that run out of data; parameters that are frozen and thawed. In the
 * other scenes one member disagrees about options or the module, fails, stops early, leaves parameters out, or drops
 * everything in the middle.
 */
#include "faults/lanes.h"

#include "rpc/must.h"
#include "prng.h"
#include "make.h"
#include "tensors.h"

#include <math.h>
#include <stdio.h>

#define LANES 2
#define BATCH 3
#define STEPS_MOST 8
#define SHORT_MS 500 /* a limit that is meant to pass */
#define LONG_MS 60000
#define BUDGET (3 << 20)

enum { PARAMETERS = 6, THIRD = 4 }; /* weight and bias of three layers; the third is used in some passes alone */

typedef enum scene_kind {
    SCENE_TRAIN,
    SCENE_UNEVEN,   /* members run out of data */
    SCENE_THAW,     /* a parameter wants gradients only later */
    SCENE_MISMATCH, /* options or modules differ */
    SCENE_FAIL,     /* a member's forward pass fails */
    SCENE_FEWER,    /* a member stops early, and says nothing */
    SCENE_OMIT,     /* a member leaves out parameters, which is not allowed */
    SCENE_DROP,     /* a member drops the module and the group */
    SCENES
} scene_kind;
static const char *const scene_names[SCENES] = {"train", "uneven", "thaw", "mismatch", "fail", "fewer", "omit", "drop"};

typedef struct parallel_book {
    atomic_ulong gradients, shrunk;
    struct {
        atomic_ulong place, hash; /* lane_place; of the member's parameters there */
    } models[LANES][SEATS_MOST];
} parallel_book;
#define book ((parallel_book *)board_book())

typedef struct model {
    weft_module *all, *first, *second, *third;
    int64_t in, hidden, out;
} model;

/* The module that this member trains, and the oracle beside it. */
typedef struct session {
    faults_lane *lane;
    scene_kind scene;
    model real, copy;
    weft_data_parallel *parallel;
    weft_optimizer *optimizer, *copy_optimizer;
    weft_data_parallel_options options;
    bool under_context, doubled; /* weft_dist_backward; a hook of the user's doubles the gradient of parameter 0 */
    bool rounded;                /* gradients travel as bfloat16 */
    unsigned before;             /* passes before the odd member makes trouble */
    double *sums[PARAMETERS];    /* of the gradients since the last reduction, over all members; NULL: none */
    double *sizes[PARAMETERS];   /* of their absolute values */
} session;

/* ---- Models ------------------------------------------------------------------------------------------------------ */

static model make_model(const faults_lane *lane, uint64_t seed, bool odd)
{
    uint64_t chance = prng_mix(lane->seed + 2);
    model m = {.in = 2 + (int64_t)(chance % 6),
               .hidden = 2 + (int64_t)(chance >> 8 & 7),
               .out = 1 + (int64_t)(chance >> 16 & 3)};
    if ((chance >> 24 & 7) == 0)
        m.hidden *= 64; /* several buckets of the default size would need more; this is several of the small sizes */
    m.first = linear_create(m.in + odd, m.hidden, false, seed, NULL);
    m.second = linear_create(m.hidden, m.out, false, seed + 1, NULL);
    m.third = linear_create(m.hidden, m.out, false, seed + 2, NULL);
    m.all = sequential_create((weft_module *[]){m.first, m.second, m.third}, 3, NULL);
    MUST(m.all && !weft_module_to(m.all, WEFT_DTYPE_FLOAT64));
    MUST(weft_module_parameters(m.all).count == PARAMETERS);
    return m;
}

static weft_tensor *parameter(const model *m, size_t i)
{
    return weft_module_parameters(m->all).items[i];
}

static weft_tensor *data_of(const faults_lane *lane, size_t member, unsigned step, int64_t columns, uint64_t what)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(BATCH, columns), WEFT_DTYPE_FLOAT64);
    MUST_OK(weft_tensor_fill_normal(x, prng_mix(lane->seed + member * 1000 + step * 10 + what), 0, 1));
    return x;
}

/* Whether the third layer has a part in this pass of this member. */
static bool uses_third(const session *s, size_t member, unsigned step)
{
    if (s->scene == SCENE_OMIT)
        return member != s->lane->odd || step < s->before;
    return !s->options.find_unused || prng_mix(s->lane->seed + 77 + member * 100 + step) % 3;
}

static weft_tensor *loss_of(const session *s, weft_tape *t, const model *m, size_t member, unsigned step)
{
    weft_tensor *x = weft_tape_take(t, data_of(s->lane, member, step, m->in, 1));
    weft_tensor *y = weft_tape_take(t, data_of(s->lane, member, step, m->out, 2));
    weft_tensor *h = weft_tanh(t, weft_module_forward(t, m->first, x));
    weft_tensor *z = weft_module_forward(t, m->second, h);
    if (uses_third(s, member, step))
        z = weft_add(t, z, weft_module_forward(t, m->third, h));
    return weft_mse_loss(t, z, y);
}

/* ---- The oracle: one process's training -------------------------------------------------------------------------- */

/* Adds a member's gradients to the sums. */
static void add_member(session *s, size_t member, unsigned step)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, loss_of(s, t, &s->copy, member, step));
    MUST_OK(weft_tape_status(t));
    for (size_t i = 0; i < PARAMETERS; i++) {
        weft_tensor *g = weft_tape_grad(t, parameter(&s->copy, i));
        size_t count = (size_t)weft_tensor_numel(parameter(&s->copy, i));
        if (!g)
            continue;
        if (!s->sums[i])
            MUST((s->sums[i] = calloc(count, sizeof(double))) && (s->sizes[i] = calloc(count, sizeof(double))));
        for (size_t k = 0; k < count; k++) {
            double share = ((double *)weft_tensor_data(g))[k] * (s->doubled && i == 0 ? 2 : 1);
            s->sums[i][k] += share;
            s->sizes[i][k] += fabs(share);
        }
    }
    weft_tape_close(t);
}

static void drop_sums(session *s)
{
    for (size_t i = 0; i < PARAMETERS; i++) {
        free(s->sums[i]);
        free(s->sizes[i]);
        s->sums[i] = s->sizes[i] = NULL;
    }
}

/* The averages, of as many members, as gradients of the copy. */
static void average(session *s, double members, weft_gradient out[PARAMETERS])
{
    for (size_t i = 0; i < PARAMETERS; i++) {
        weft_tensor *p = parameter(&s->copy, i);
        out[i] = (weft_gradient){
            .values = s->sums[i] ? tensor_copy_of(weft_tensor_shape(p), WEFT_DTYPE_FLOAT64, s->sums[i]) : NULL};
        for (int64_t k = 0; out[i].values && k < weft_tensor_numel(p); k++)
            ((double *)weft_tensor_data(out[i].values))[k] /= members;
    }
}

/* Each share, and each partial sum, is rounded to 8 bits. */
static bool is_near(const session *s, size_t i, int64_t k, double a, double b)
{
    double rounding = s->rounded && s->sizes[i] ? s->sizes[i][k] / 64 : 0;
    return fabs(a - b) <= 1e-9 * (1 + fabs(a) + fabs(b)) + rounding;
}

static bool compare(const session *s, const weft_tensor *is, const weft_tensor *wanted, const char *what, size_t i,
                    unsigned step)
{
    if (!is != !wanted) {
        fault(FAULT_WRONG, "%s: in step %u parameter %zu has %s %s", s->lane->where, step, i, is ? "a" : "no", what);
        return false;
    }
    for (int64_t k = 0; is && k < weft_tensor_numel(is); k++)
        if (!is_near(s, i, k, weft_tensor_get_f64(is, k), weft_tensor_get_f64(wanted, k))) {
            fault(FAULT_WRONG, "%s: in step %u the %s of parameter %zu is %.12g instead of %.12g at %lld",
                  s->lane->where, step, what, i, weft_tensor_get_f64(is, k), weft_tensor_get_f64(wanted, k),
                  (long long)k);
            return false;
        }
    return true;
}

/* Compares the averages of a pass with the oracle's, and steps with both. */
static bool check_and_step(session *s, weft_gradients real, double members, unsigned step)
{
    weft_gradient wanted[PARAMETERS];
    bool well = true;
    average(s, members, wanted);
    for (size_t i = 0; i < PARAMETERS && well; i++)
        well = compare(s, real.items[i].values, wanted[i].values, "gradient", i, step);
    atomic_fetch_add(&book->gradients, PARAMETERS);
    MUST_OK(weft_optimizer_apply(s->optimizer, real));
    MUST_OK(weft_optimizer_apply(s->copy_optimizer, (weft_gradients){wanted, PARAMETERS}));
    for (size_t i = 0; i < PARAMETERS; i++) {
        if (s->rounded) /* the copy goes on with the same values */
            MUST_OK(weft_tensor_assign(parameter(&s->copy, i), parameter(&s->real, i)));
        well = well && compare(s, parameter(&s->real, i), parameter(&s->copy, i), "value", i, step);
        weft_tensor_unref(wanted[i].values);
    }
    drop_sums(s);
    return well;
}

/* ---- Creating ---------------------------------------------------------------------------------------------------- */

static weft_tensor *twice(weft_tensor *gradient, void *arg)
{
    weft_tensor *more = tensor_clone(gradient);
    for (int64_t i = 0; more && i < weft_tensor_numel(more); i++)
        ((double *)weft_tensor_data(more))[i] *= 2;
    return more;
}

static void choose_options(session *s)
{
    uint64_t chance = prng_mix(s->lane->seed + 3);
    bool uneven = s->scene == SCENE_UNEVEN;
    s->options = (weft_data_parallel_options){.bucket_bytes = chance % 3 ? 1 + (chance >> 8) % 2000 : 0,
                                              .first_bucket_bytes = chance >> 2 & 1 ? 1 + (chance >> 20) % 500 : 0,
                                              .find_unused = s->scene != SCENE_OMIT && chance >> 3 & 1,
                                              .uneven = uneven,
                                              .divide_by_all = uneven && chance >> 4 & 1,
                                              .timeout_ms = s->scene == SCENE_FEWER ? SHORT_MS : LONG_MS};
    if (s->scene == SCENE_TRAIN && (chance >> 5 & 7) == 0) {
        s->options.reduce = weft_bucket_bfloat16;
        s->rounded = true;
    }
    s->under_context = !uneven && (chance >> 40 & 3) == 0;
    s->doubled = s->scene == SCENE_TRAIN && (chance >> 42 & 3) == 0;
}

static weft_optimizer *make_optimizer(const session *s, const model *m)
{
    double momentum = prng_mix(s->lane->seed + 4) % 2 ? 0.5 : 0;
    weft_optimizer *made =
        optimizer_create(weft_module_parameters(m->all),
                         &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.05, .sgd.momentum = momentum}, NULL);
    MUST(made);
    return made;
}

static void copy_parameters(session *s)
{
    for (size_t i = 0; i < PARAMETERS; i++)
        MUST_OK(weft_tensor_assign(parameter(&s->copy, i), parameter(&s->real, i)));
}

/* The data-parallel module over the lane's group; its parameters must be member 0's. */
static weft_status create(session *s, weft_error **error)
{
    faults_wait *wait = wait_begins(LONG_MS, "%s: weft_data_parallel_create", s->lane->where);
    weft_status status = weft_data_parallel_create(s->lane->group, s->real.all, &s->options, &s->parallel, error);
    wait_ends(wait);
    board_count((int)s->scene, status);
    if (!status && s->doubled)
        MUST_OK(weft_hooks_add(weft_data_parallel_hooks(s->parallel), parameter(&s->real, 0),
                               &(weft_leaf_hook){.pre = twice}));
    return status;
}

/* How passes fail when the odd member makes trouble. The others may be in the pass before when that happens. */
static weft_status errnum_of(scene_kind scene)
{
    return scene == SCENE_FAIL    ? WEFT_ERR_FORMAT
           : scene == SCENE_FEWER ? WEFT_ERR_TIMEOUT
           : scene == SCENE_OMIT  ? WEFT_ERR_STATE
                                  : WEFT_ERR_CANCELLED;
}

static bool create_and_check(session *s)
{
    weft_error *error = NULL;
    weft_status status = create(s, &error);
    if (s->scene < SCENE_FAIL || status != errnum_of(s->scene))
        lane_judge(s->lane, status, WEFT_OK, error, "weft_data_parallel_create");
    weft_error_unref(error);
    for (size_t i = 0; i < PARAMETERS && !status; i++)
        if (!compare(s, parameter(&s->real, i), parameter(&s->copy, i), "first value", i, 0))
            return false;
    if (!status) {
        s->optimizer = make_optimizer(s, &s->real);
        s->copy_optimizer = make_optimizer(s, &s->copy);
    }
    return !status;
}

static void new_optimizers(session *s)
{
    weft_optimizer_unref(s->optimizer);
    weft_optimizer_unref(s->copy_optimizer);
    s->optimizer = make_optimizer(s, &s->real);
    s->copy_optimizer = make_optimizer(s, &s->copy);
}

/* ---- A pass ------------------------------------------------------------------------------------------------------ */

typedef struct pass {
    weft_status status;
    weft_error *error;
    weft_gradient gradients[PARAMETERS]; /* references, if it succeeded */
} pass;

static void take_gradients(session *s, weft_context *c, weft_tape *t, pass *out)
{
    if (c) {
        out->status = weft_context_ref_gradients(c, weft_module_parameters(s->real.all), out->gradients);
        return;
    }
    weft_gradients found = prng_mix(s->lane->seed + 9) % 2
                               ? weft_data_parallel_gradients(s->parallel)
                               : weft_tape_gradients(t, weft_module_parameters(s->real.all));
    for (size_t i = 0; i < PARAMETERS && i < found.count; i++)
        out->gradients[i] = (weft_gradient){.values = weft_tensor_ref(found.items[i].values)};
}

/* `broken`: the forward pass fails. */
static pass run_pass(session *s, unsigned step, bool broken)
{
    pass p = {.status = WEFT_OK};
    weft_context *c = NULL;
    if (s->under_context && (p.status = weft_context_open(self.agent, &c, NULL)))
        return p;
    weft_tape *t = c ? weft_context_tape(c, NULL) : weft_tape_open(&(weft_tape_options){.record = true});
    if (c)
        weft_context_set_hooks(c, weft_data_parallel_hooks(s->parallel));
    if (!c || broken) /* a pass that does not begin has the hooks of its tape alone */
        weft_tape_set_hooks(t, weft_data_parallel_hooks(s->parallel));
    weft_tensor *loss = loss_of(s, t, &s->real, s->lane->me, step);
    if (broken)
        weft_tape_fail(t, WEFT_ERR_FORMAT, "a fault of member %zu", s->lane->me);
    faults_wait *wait = wait_begins(s->options.timeout_ms, "%s: the backward pass of step %u", s->lane->where, step);
    if (c)
        weft_dist_backward(t, loss, &(weft_pass_options){.timeout_ms = LONG_MS});
    else
        weft_backward(t, loss);
    wait_ends(wait);
    p.status = weft_tape_status(t);
    p.error = weft_error_ref(weft_tape_error(t));
    if (!p.status)
        take_gradients(s, c, t, &p);
    board_count((int)s->scene, p.status);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    return p;
}

static void drop_pass(pass *p)
{
    weft_context_drop_gradients(p->gradients, PARAMETERS);
    weft_error_unref(p->error);
}

/* A pass that has to succeed, and a step. False: the scene is over. */
static bool train_step(session *s, unsigned step, bool syncs, size_t active, double members)
{
    weft_data_parallel_set_sync(s->parallel, syncs);
    pass p = run_pass(s, step, false);
    bool well = !p.status;
    if (!well && (s->scene < SCENE_FAIL || p.status != errnum_of(s->scene)))
        lane_judge(s->lane, p.status, WEFT_OK, p.error, "a pass");
    for (size_t i = 0; i < active && well; i++)
        if (s->scene != SCENE_UNEVEN)
            add_member(s, i, step);
    if (well && syncs)
        well = check_and_step(s, (weft_gradients){p.gradients, PARAMETERS}, members, step);
    drop_pass(&p);
    return well;
}

/* ---- The end of a scene ------------------------------------------------------------------------------------------ */

static uint64_t hash_of(const session *s)
{
    uint64_t hash = 1;
    for (size_t i = 0; i < PARAMETERS; i++) {
        weft_tensor *p = tensor_contiguous(parameter(&s->real, i));
        const uint64_t *words = weft_tensor_data(p);
        for (int64_t k = 0; k < weft_tensor_numel(p); k++)
            hash = prng_mix(hash ^ words[k]);
        weft_tensor_unref(p);
    }
    return hash;
}

/*
 * All members that have come here have the same bits. A member does not come if its last pass failed, which may happen
 * where that of the others succeeded.
 */
static void compare_members(const session *s, unsigned step)
{
    const faults_lane *lane = s->lane;
    unsigned long place = lane_place(lane, step);
    uint64_t hash = hash_of(s);
    atomic_store(&book->models[lane->number][self.rank].hash, hash);
    atomic_store(&book->models[lane->number][self.rank].place, place);
    if (!lane_meet(lane, step))
        return;
    for (size_t i = 0; i < lane->size; i++) {
        int rank = lane->ranks[i];
        uint64_t other = atomic_load(&book->models[lane->number][rank].hash);
        if (atomic_load(&book->models[lane->number][rank].place) == place && other != hash)
            fault(FAULT_WRONG, "%s: member %zu has other parameters", lane->where, i);
    }
    (void)!lane_meet(lane, step + 1); /* nobody changes its own before all have looked */
}

/*
 * Later passes fail, too, and say why. The end of the group may still be on its way to this member: until then a pass
 * may succeed for which the other members have sent all that it needs.
 */
static void check_over(session *s, const char *words)
{
    faults_wait *wait = wait_begins(LONG_MS, "%s: the end of the group", s->lane->where);
    while (!weft_group_error(s->lane->group) && epoch_is_current(&s->lane->e))
        sleep_ms(1);
    wait_ends(wait);
    weft_data_parallel_set_sync(s->parallel, true);
    pass p = run_pass(s, 0, false);
    if (!p.status && epoch_is_current(&s->lane->e)) /* else members may have met in another pass */
        fault(FAULT_WRONG, "%s: a pass succeeded after the end of the group", s->lane->where);
    else if (words && lane_is_calm(s->lane))
        lane_judge_words(s->lane, p.error, words);
    drop_pass(&p);
}

/* ---- Scenes ------------------------------------------------------------------------------------------------------ */

static unsigned steps_of(const session *s)
{
    return 2 + (unsigned)(prng_mix(s->lane->seed + 5) % (STEPS_MOST - 1));
}

/* After a death: a smaller group, another data-parallel module, and on with the parameters of its member 0. */
static void go_on_smaller(session *s)
{
    weft_group *old = s->lane->group, *left = NULL;
    faults_wait *wait = wait_begins(5000, "%s: weft_group_shrink", s->lane->where);
    weft_status status = weft_group_shrink(old, 5000, &left, NULL);
    wait_ends(wait);
    if (status)
        return; /* others may have gone on to the next epoch */
    faults_lane smaller = *s->lane;
    session next = {.lane = &smaller,
                    .scene = s->scene,
                    .real = s->real,
                    .copy = s->copy,
                    .options = s->options,
                    .rounded = s->rounded};
    smaller.group = left;
    smaller.size = weft_group_size(left);
    smaller.me = (size_t)weft_group_index(left);
    next.options.timeout_ms = 5000;
    status = create(&next, NULL);
    if (!status) {
        atomic_fetch_add(&book->shrunk, 1);
        copy_parameters(&next);
        next.optimizer = make_optimizer(&next, &next.real);
        next.copy_optimizer = make_optimizer(&next, &next.copy);
        bool well = true;
        for (unsigned i = 0; i < 2 && well; i++)
            well = train_step(&next, 50 + i, true, smaller.size, (double)smaller.size);
    }
    drop_sums(&next);
    weft_optimizer_unref(next.optimizer);
    weft_optimizer_unref(next.copy_optimizer);
    weft_data_parallel_unref(next.parallel);
    lane_drop_group(&smaller);
}

static void play_train(session *s)
{
    unsigned steps = steps_of(s);
    bool carries = prng_mix(s->lane->seed + 6) % 3 == 0, well = create_and_check(s);
    for (unsigned i = 0; i < steps && well; i++) {
        bool syncs = !carries || i + 1 == steps || prng_mix(s->lane->seed + 200 + i) % 2;
        well = train_step(s, i, syncs, s->lane->size, (double)s->lane->size);
    }
    if (well)
        compare_members(s, 1);
    else if (weft_error_code(weft_group_error(s->lane->group)) == WEFT_ERR_PEER_DEAD && goes_on())
        go_on_smaller(s);
}

/*
 * Rounds in which members have different numbers of passes; after each join all have the model of those who trained
 * longest.
 */
static void play_uneven(session *s)
{
    const faults_lane *lane = s->lane;
    bool well = create_and_check(s);
    for (unsigned round = 0; round < 2 && well; round++) {
        unsigned passes[SEATS_MOST], most = 0;
        for (size_t m = 0; m < lane->size; m++) {
            passes[m] = (unsigned)(prng_mix(lane->seed + 300 + m * 10 + round) % 5);
            most = passes[m] > most ? passes[m] : most;
        }
        for (unsigned i = 0; i < most && well; i++) {
            size_t active = 0, first = 100 * round + i;
            for (size_t m = 0; m < lane->size; m++)
                if (passes[m] > i) {
                    add_member(s, m, (unsigned)first);
                    active++;
                }
            double members = (double)(s->options.divide_by_all ? lane->size : active);
            if (passes[lane->me] > i) {
                well = train_step(s, (unsigned)first, true, active, members);
            } else { /* the model of the others, whom this member joins later */
                weft_gradient wanted[PARAMETERS];
                average(s, members, wanted);
                MUST_OK(weft_optimizer_apply(s->copy_optimizer, (weft_gradients){wanted, PARAMETERS}));
                weft_context_drop_gradients(wanted, PARAMETERS);
                drop_sums(s);
            }
        }
        if (!well)
            return;
        faults_wait *wait = wait_begins(LONG_MS, "%s: weft_data_parallel_join", lane->where);
        weft_status status = weft_data_parallel_join(s->parallel);
        wait_ends(wait);
        board_count((int)s->scene, status);
        well = lane_judge(lane, status, WEFT_OK, weft_group_error(lane->group), "weft_data_parallel_join");
        for (size_t k = 0; k < PARAMETERS && well; k++)
            well = compare(s, parameter(&s->real, k), parameter(&s->copy, k), "value after the join", k, 100 * round);
        if (well)
            compare_members(s, 1 + 2 * round);
        copy_parameters(s); /* from the same bits */
        new_optimizers(s);
    }
}

/*
 * Parameters that want no gradient at first, and one later, on all members: either all average it, or the pass fails
 * and names it.
 */
static void play_thaw(session *s)
{
    size_t frozen = prng_mix(s->lane->seed + 8) % PARAMETERS;
    unsigned steps = 2 + steps_of(s), thaw = 1 + (unsigned)(prng_mix(s->lane->seed + 10) % (steps - 1));
    const char *name = weft_module_parameter_name(s->real.all, frozen);
    weft_tensor_set_requires_grad(parameter(&s->real, frozen), false);
    weft_tensor_set_requires_grad(parameter(&s->copy, frozen), false);
    bool well = create_and_check(s);
    for (unsigned i = 0; i < steps && well; i++) {
        if (i == thaw) {
            weft_tensor_set_requires_grad(parameter(&s->real, frozen), true);
            weft_tensor_set_requires_grad(parameter(&s->copy, frozen), true);
        }
        pass p = run_pass(s, i, false);
        bool near = i + 1 >= thaw; /* others may be a pass ahead when theirs fails */
        if (p.status && near && !lane_excuses(s->lane, p.status, p.error)) {
            lane_judge_words(s->lane, p.error, name);
            well = false;
        } else {
            well = lane_judge(s->lane, p.status, WEFT_OK, p.error, "a pass with a parameter that is thawed");
        }
        for (size_t m = 0; m < s->lane->size && well; m++)
            add_member(s, m, i);
        well = well && check_and_step(s, (weft_gradients){p.gradients, PARAMETERS}, (double)s->lane->size, i);
        drop_pass(&p);
    }
    if (well)
        compare_members(s, 1);
}

/* One member has other options or another module: all learn it, and the group lives. */
static void play_mismatch(session *s)
{
    uint64_t chance = prng_mix(s->lane->seed + 12);
    weft_error *error = NULL;
    if (s->lane->me == s->lane->odd && chance % 3 == 0)
        s->options.find_unused = !s->options.find_unused;
    else if (s->lane->me == s->lane->odd && chance % 3 == 1)
        s->options.bucket_bytes += 1000;
    else if (s->lane->me == s->lane->odd) {
        weft_module_unref(s->real.all);
        s->real = make_model(s->lane, s->lane->seed, true);
    }
    weft_status status = create(s, &error);
    if (lane_judge(s->lane, status, WEFT_ERR_INVALID, error, "weft_data_parallel_create with members that differ")) {
        faults_wait *wait = wait_begins(LONG_MS, "%s: weft_group_barrier", s->lane->where);
        status = weft_group_barrier(s->lane->group, LONG_MS);
        wait_ends(wait);
        lane_judge(s->lane, status, WEFT_OK, weft_group_error(s->lane->group), "a barrier after members differed");
    }
    weft_error_unref(error);
}

/* Steps until the odd member does something; then passes fail on all, with words about it. */
static void play_trouble(session *s)
{
    bool odd = s->lane->me == s->lane->odd, well = create_and_check(s);
    char words[64];
    for (unsigned i = 0; i < s->before && well; i++)
        well = train_step(s, i, true, s->lane->size, (double)s->lane->size);
    if (!well)
        return;
    if (s->scene == SCENE_DROP && odd)
        return; /* the lane drops the module and the group */
    if (s->scene == SCENE_FEWER && odd) {
        if (lane_meet(s->lane, 5))
            check_over(s, NULL);
        return;
    }
    pass p = run_pass(s, s->before, s->scene == SCENE_FAIL && odd);
    if (s->scene == SCENE_FAIL)
        snprintf(words, sizeof(words), "a fault of member %zu", s->lane->odd);
    else if (s->scene == SCENE_OMIT)
        snprintf(words, sizeof(words), "2.weight");
    else
        snprintf(words, sizeof(words), "rank %d", s->lane->ranks[s->lane->odd]);
    well = lane_judge(s->lane, p.status, errnum_of(s->scene), p.error, "a pass in which a member has trouble");
    if (well && lane_is_calm(s->lane))
        lane_judge_words(s->lane, p.error, words);
    drop_pass(&p);
    if (s->scene == SCENE_FEWER)
        (void)!lane_meet(s->lane, 5);
    check_over(s, NULL);
}

static void play(faults_lane *lane)
{
    uint64_t chance = prng_mix(lane->seed + 17) % 16;
    session s = {.lane = lane,
                 .scene = chance < 6   ? SCENE_TRAIN
                          : chance < 9 ? SCENE_UNEVEN
                                       : (scene_kind)(chance - 7)};
    if (s.scene >= SCENES)
        s.scene = SCENE_THAW;
    if (board->scene >= 0)
        s.scene = (scene_kind)board->scene;
    snprintf(lane->where, sizeof(lane->where), "lane %d, epoch %u, generation %u, %s (odd: member %zu of %zu)",
             lane->number, lane->e.number, lane->generation, scene_names[s.scene], lane->odd, lane->size);
    if (!lane_make_group(lane, ""))
        return;
    s.before = (unsigned)(prng_mix(lane->seed + 14) % 3);
    choose_options(&s);
    s.real = make_model(lane, prng_mix(lane->seed + lane->me), false);
    s.copy = make_model(lane, prng_mix(lane->seed), false);
    if (s.scene == SCENE_TRAIN)
        play_train(&s);
    else if (s.scene == SCENE_UNEVEN)
        play_uneven(&s);
    else if (s.scene == SCENE_THAW)
        play_thaw(&s);
    else if (s.scene == SCENE_MISMATCH)
        play_mismatch(&s);
    else
        play_trouble(&s);
    drop_sums(&s);
    weft_optimizer_unref(s.optimizer);
    weft_optimizer_unref(s.copy_optimizer);
    weft_data_parallel_unref(s.parallel);
    weft_module_unref(s.real.all);
    weft_module_unref(s.copy.all);
    lane_drop_group(lane);
}

/* ---- The worker -------------------------------------------------------------------------------------------------- */

static void run(int number)
{
    lane_run(number, play);
}

static void table(void) /* in the driver */
{
    printf("%lu gradients compared; %lu members of smaller groups\n", atomic_load(&book->gradients),
           atomic_load(&book->shrunk));
}

int main(int argc, char **argv)
{
    const faults_program program = {
        .name = "faults_parallel",
        .about = "Data-parallel modules under attack, compared with the training of one process.",
        .book_bytes = sizeof(parallel_book),
        .workers = 5,
        .leaves = true,
        .scenes = scene_names,
        .scene_count = SCENES,
        .operations = "passes, creations and joins",
        .kinds = scene_names,
        .kind_count = SCENES,
        .budget_bytes = BUDGET,
        .threads = LANES,
        .run = run,
        .table = table,
    };
    return faults_main(&program, argc, argv);
}
