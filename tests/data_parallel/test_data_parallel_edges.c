/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_data_parallel_edges.c - when and in which order buckets are reduced; what modules may consist of; memory that
 * is used again; and passes that fail or get in each other's way, on one member alone: the others end with its name.
 *
 * The module is a handful of vectors. The loss has each with a constant, so that its gradient is that constant: (i +
 * 1) (member + 1) + step for vector i, whose average over the members is (i + 1) (size + 1) / 2 + step.
 */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

enum { MOST = 6, PATIENCE_MS = 20000 };

typedef struct vectors {
    weft_module *module;
    weft_tensor *v[MOST]; /* borrowed */
    size_t count;
} vectors;

/* The losses use the vectors themselves. */
static weft_tensor *forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    return x;
}

static const weft_module_type vectors_type = {.name = "Vectors", .forward = forward};

/* v0 has 1 element, v1 has 2 ... */
static vectors make_vectors(size_t count, const weft_dtype *dtypes)
{
    vectors made = {.module = module_create(&vectors_type, NULL, NULL), .count = count};
    for (size_t i = 0; i < count; i++) {
        char name[24];
        snprintf(name, sizeof(name), "v%zu", i);
        made.v[i] = tensor_zeros(WEFT_SHAPE((int64_t)i + 1), dtypes ? dtypes[i] : WEFT_DTYPE_FLOAT32);
        weft_module_add_parameter(made.module, name, made.v[i]);
    }
    MUST_OK(weft_module_status(made.module));
    return made;
}

static double constant_of(size_t vector, int member, int step)
{
    return (double)((int)vector + 1) * (member + 1) + step;
}

static double average_of(size_t vector, int size, int step)
{
    return ((double)vector + 1) * (size + 1) / 2 + step;
}

/* On the way of one vector's gradient. */
typedef struct obstacle {
    weft_gradient_fn fn;
    size_t vector;
    void *arg;
} obstacle;

/* What reaches each of these vectors; their gradients come in the order in which they are listed. */
static weft_tensors losses(weft_tape *t, const vectors *m, const size_t *uses, size_t count, int member, int step,
                           const obstacle *on_the_way, weft_tensor **room)
{
    for (size_t i = count; i-- > 0;) {
        weft_tensor *v = m->v[uses[i]];
        weft_tensor *c = weft_tape_take(t, tensor_empty(weft_tensor_shape(v), weft_tensor_dtype(v)));
        weft_tensor_fill(c, constant_of(uses[i], member, step));
        weft_tensor *product = weft_mul(t, v, c);
        if (on_the_way && on_the_way->vector == uses[i])
            product = weft_on_gradient(t, product, on_the_way->fn, on_the_way->arg, NULL);
        room[i] = weft_sum(t, product);
    }
    return (weft_tensors){room, count};
}

static weft_tape *open_tape(weft_data_parallel *parallel)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tape_set_hooks(t, weft_data_parallel_hooks(parallel));
    return t;
}

/* The tape is yours; the pass may have failed. */
static weft_tape *run_pass(weft_data_parallel *parallel, const vectors *m, const size_t *uses, size_t count, int member,
                           int step)
{
    weft_tensor *room[MOST];
    weft_tape *t = open_tape(parallel);
    weft_backward_with(t, losses(t, m, uses, count, member, step, NULL, room), (weft_tensors){0}, NULL);
    return t;
}

static void must_average(weft_tape *t, const vectors *m, size_t count, int size, int step)
{
    MUST_OK(weft_tape_status(t));
    for (size_t i = 0; i < count; i++) {
        weft_tensor *found = weft_tape_grad(t, m->v[i]);
        MUST(found && weft_tensor_numel(found) == weft_tensor_numel(m->v[i]));
        for (int64_t k = 0; k < weft_tensor_numel(found); k++)
            MUST(weft_tensor_get_f64(found, k) == average_of(i, size, step));
    }
}

static const size_t in_order[MOST] = {0, 1, 2, 3, 4, 5};

typedef struct scene {
    world w;
    int mistake; /* which of `mistakes`, at `culprit` alone */
    int culprit;
} scene;

typedef struct member {
    int index, size;
    weft_group *group;
    vectors m;
    weft_data_parallel *parallel;
} member;

static member open_member(weft_agent *agent, size_t count, const weft_data_parallel_options *options)
{
    member me = {.index = weft_agent_rank(agent), .size = weft_agent_world_size(agent), .m = make_vectors(count, NULL)};
    MUST_OK(weft_group_open(agent, "edges", NULL, 0, 0, &me.group, NULL));
    MUST_OK(weft_data_parallel_create(me.group, me.m.module, options, &me.parallel, NULL));
    return me;
}

static void close_member(member *me)
{
    weft_data_parallel_unref(me->parallel);
    weft_group_close(me->group);
    weft_module_unref(me->m.module);
}

/* ---- The order of buckets, and when they go ------------------------------------------------------------------- */

typedef struct diary {
    char text[200];
    size_t used;
} diary;

static weft_status reduce_and_note(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                   weft_future **out, void *arg)
{
    diary *d = arg;
    d->used += (size_t)snprintf(d->text + d->used, sizeof(d->text) - d->used, "[%zu:%lld]", index,
                                (long long)weft_tensor_numel(bucket));
    return weft_group_allreduce_async(group, bucket, WEFT_OP_AVG, timeout_ms, out);
}

typedef struct page {
    diary *d;
    size_t vector;
} page;

static weft_tensor *note_share(weft_tensor *gradient, void *arg)
{
    const page *p = arg;
    p->d->used += (size_t)snprintf(p->d->text + p->d->used, sizeof(p->d->text) - p->d->used, "%zu", p->vector);
    return weft_tensor_ref(gradient);
}

static void must_read(const diary *d, const char *wanted)
{
    if (strcmp(d->text, wanted) != 0)
        fprintf(stderr, "\"%s\", not \"%s\"\n", d->text, wanted);
    MUST(strcmp(d->text, wanted) == 0);
}

/* A bucket for each vector. In the first pass they go in the order in which they were made, the last vector first;
 * from then on in the order in which gradients came at member 0, where a bucket goes as soon as its gradient has
 * come. */
static void order_of_buckets(weft_agent *agent, void *arg)
{
    static const size_t of_first[] = {1, 3, 0, 2};
    diary d = {0};
    member me =
        open_member(agent, 4,
                    &(weft_data_parallel_options){
                        .bucket_bytes = 1, .first_bucket_bytes = 1, .reduce = reduce_and_note, .reduce_arg = &d});
    page pages[4];
    for (size_t i = 0; i < 4; i++) {
        pages[i] = (page){&d, i};
        MUST_OK(weft_hooks_add(weft_data_parallel_hooks(me.parallel), me.m.v[i],
                               &(weft_leaf_hook){.pre = note_share, .arg = &pages[i]}));
    }
    for (int step = 0; step < 3; step++) {
        d = (diary){0};
        weft_tape *t = run_pass(me.parallel, &me.m, me.index ? in_order : of_first, 4, me.index, step);
        must_average(t, &me.m, 4, me.size, step);
        weft_tape_close(t);
        if (me.index)
            must_read(&d, step ? "01[0:2]23[1:4][2:1][3:3]" : "0123[0:4][1:3][2:2][3:1]");
        else
            must_read(&d, step ? "1[0:2]3[1:4]0[2:1]2[3:3]" : "13[0:4]02[1:3][2:2][3:1]");
    }
    close_member(&me);
}

WORLD_TEST(order_of_buckets, 3, 1, .size = 3)

/* ---- Modules ----------------------------------------------------------------------------------------------------- */

/* float64 among float32: buckets of one dtype each. A vector that is used twice has one gradient, one that is fixed
 * has none, one without elements an empty one. Values and buffers come from member 0. */
static void kinds_of_parameters(weft_agent *agent, void *arg)
{
    static const weft_dtype dtypes[] = {WEFT_DTYPE_FLOAT32, WEFT_DTYPE_FLOAT64, WEFT_DTYPE_FLOAT64, WEFT_DTYPE_FLOAT32,
                                        WEFT_DTYPE_FLOAT32};
    int index = weft_agent_rank(agent), size = weft_agent_world_size(agent);
    vectors m = make_vectors(5, dtypes);
    weft_tensor *buffer = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_INT64, index + 4);
    weft_module_add_buffer(m.module, "buffer", weft_tensor_ref(buffer));
    weft_tensor *empty = tensor_zeros(WEFT_SHAPE(0, 4), WEFT_DTYPE_FLOAT32);
    weft_module_add_parameter(m.module, "empty", empty);
    weft_tensor_fill(m.v[1], index + 8);
    weft_tensor_set_requires_grad(m.v[4], false);
    weft_group *group;
    weft_data_parallel *parallel;
    MUST_OK(weft_group_open(agent, "kinds", NULL, 0, 0, &group, NULL));
    MUST_OK(weft_data_parallel_create(group, m.module, NULL, &parallel, NULL));
    MUST(weft_tensor_get_i64(buffer, 2) == 4 && weft_tensor_get_f64(m.v[1], 1) == 8);
    for (int step = 0; step < 2; step++) {
        weft_tensor *room[MOST];
        weft_tape *t = open_tape(parallel);
        static const size_t twice[] = {2, 0, 1, 2, 3};
        losses(t, &m, twice, 5, index, step, NULL, room);
        room[5] = weft_sum(t, empty);
        weft_backward_with(t, (weft_tensors){room, 6}, (weft_tensors){0}, NULL);
        MUST_OK(weft_tape_status(t));
        for (size_t i = 0; i < 4; i++)
            MUST(weft_tensor_get_f64(weft_tape_grad(t, m.v[i]), (int64_t)i) ==
                 average_of(i, size, step) * (i == 2 ? 2 : 1));
        weft_gradients averages = weft_data_parallel_gradients(parallel);
        MUST(averages.count == 6 && !averages.items[4].values && averages.items[5].values);
        weft_tape_close(t);
    }
    weft_data_parallel_unref(parallel);
    weft_group_close(group);
    weft_module_unref(m.module);
    weft_tensor_unref(buffer);
}

WORLD_TEST(kinds_of_parameters, 3, 1, .size = 3)

/* What a tape still has is not written to by later passes; what nobody has is used again. The hooks alone keep the
 * object. */
static void memory_of_buckets(weft_agent *agent, void *arg)
{
    member me = open_member(agent, 3, NULL);
    weft_tape_close(run_pass(me.parallel, &me.m, in_order, 3, me.index, 0)); /* after it the buckets are made anew */
    weft_tape *first = run_pass(me.parallel, &me.m, in_order, 3, me.index, 1);
    weft_tape *second = run_pass(me.parallel, &me.m, in_order, 3, me.index, 2);
    must_average(first, &me.m, 3, me.size, 1);
    must_average(second, &me.m, 3, me.size, 2);
    const void *place = weft_tensor_data(weft_tape_grad(second, me.m.v[0]));
    MUST(place != weft_tensor_data(weft_tape_grad(first, me.m.v[0])));
    weft_tape_close(first);
    weft_tape_close(second);
    weft_hooks *hooks = weft_hooks_ref(weft_data_parallel_hooks(me.parallel));
    weft_tape *third = run_pass(me.parallel, &me.m, in_order, 3, me.index, 3);
    must_average(third, &me.m, 3, me.size, 3);
    /* On tcp another thread may let go of them a moment later. */
    const world *w = arg;
    MUST(w->fabric != WORLD_SIM || weft_tensor_data(weft_tape_grad(third, me.m.v[0])) == place);
    weft_data_parallel_unref(me.parallel);
    me.parallel = NULL;
    must_average(third, &me.m, 3, me.size, 3);
    weft_tape_close(third);
    weft_hooks_unref(hooks);
    close_member(&me);
}

WORLD_TEST(memory_of_buckets, 3, 1, .size = 2)

/* ---- Mistakes of one member ------------------------------------------------------------------------------------- */

static weft_status refuse_bucket(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                 weft_future **out, void *arg)
{
    if (*(const bool *)arg)
        return WEFT_ERR_UNSUPPORTED;
    return weft_group_allreduce_async(group, bucket, WEFT_OP_AVG, timeout_ms, out);
}

static weft_tensor *no_gradient(weft_tensor *gradient, void *arg)
{
    return NULL;
}

/* A pass within a pass, of the same object. */
static weft_tensor *nested_pass(weft_tensor *gradient, void *arg)
{
    member *me = arg;
    weft_tape *inner = run_pass(me->parallel, &me->m, in_order, 3, me->index, 1);
    MUST(weft_tape_status(inner) != WEFT_OK);
    weft_tape_close(inner);
    return weft_tensor_ref(gradient);
}

typedef struct mistake {
    size_t uses;               /* so many vectors are used, of 3 */
    size_t hooked;             /* the loss of this vector has a hook of its own */
    weft_gradient_fn hook;     /* NULL: none */
    bool refuses;              /* the function for buckets fails */
    weft_status status;        /* what the culprit's pass comes to */
    const char *says, *others; /* and of what the messages speak */
} mistake;

static const mistake mistakes[] = {
    {.uses = 2, .status = WEFT_ERR_STATE, .says = "v2", .others = "v2"},
    {.uses = 3, .hooked = 0, .hook = no_gradient, .status = WEFT_ERR_INVALID, .says = "", .others = ""},
    {.uses = 3, .hooked = 2, .hook = no_gradient, .status = WEFT_ERR_INVALID, .says = "", .others = ""},
    {.uses = 3,
     .hooked = 1,
     .hook = nested_pass,
     .status = WEFT_ERR_STATE,
     .says = "",
     .others = "one after the other"},
    {.uses = 3, .refuses = true, .status = WEFT_ERR_UNSUPPORTED, .says = "bucket", .others = "bucket"},
};

static void must_speak(const weft_error *error, const char *text)
{
    const char *message = error ? weft_error_message(error) : "";
    if (!error || !strstr(message, text))
        fprintf(stderr, "\"%s\" does not speak of \"%s\"\n", message, text);
    MUST(error && strstr(message, text));
}

static weft_tape *mistaken_pass(member *me, const mistake *how, int step)
{
    weft_tensor *room[MOST];
    weft_tape *t = open_tape(me->parallel);
    obstacle on_the_way = {how->hook, how->hooked, me};
    weft_tensors roots = losses(t, &me->m, in_order, how->uses, me->index, step, how->hook ? &on_the_way : NULL, room);
    weft_backward_with(t, roots, (weft_tensors){0}, NULL);
    return t;
}

/* The culprit's pass fails; the others' passes fail, that one or the next, by the culprit's name; from then on
 * nobody's go. */
static void one_is_mistaken(weft_agent *agent, void *arg)
{
    const scene *s = arg;
    const mistake *how = &mistakes[s->mistake];
    bool refuses = false;
    member me = open_member(agent, 3,
                            &(weft_data_parallel_options){.first_bucket_bytes = 1,
                                                          .bucket_bytes = 1,
                                                          .reduce = how->refuses ? refuse_bucket : NULL,
                                                          .reduce_arg = &refuses});
    weft_tape *t = run_pass(me.parallel, &me.m, in_order, 3, me.index, 0);
    must_average(t, &me.m, 3, me.size, 0);
    weft_tape_close(t);
    weft_group *beside; /* all have done the first pass before one fails the second */
    MUST_OK(weft_group_open(agent, "beside", NULL, 0, 0, &beside, NULL));
    MUST_OK(weft_group_barrier(beside, PATIENCE_MS));
    bool culprit = me.index == s->culprit;
    refuses = culprit;
    t = culprit ? mistaken_pass(&me, how, 1) : run_pass(me.parallel, &me.m, in_order, 3, me.index, 1);
    if (culprit) {
        MUST_BE(weft_tape_status(t), how->status);
        must_speak(weft_tape_error(t), how->says);
    }
    if (!culprit && !weft_tape_status(t)) { /* the mistake came when this one had all that it needed */
        weft_tape_close(t);
        t = run_pass(me.parallel, &me.m, in_order, 3, me.index, 2);
    }
    MUST(weft_tape_status(t) != WEFT_OK && weft_tape_status(t) != WEFT_ERR_TIMEOUT);
    if (!culprit) {
        char name[24];
        snprintf(name, sizeof(name), "rank %d", s->culprit);
        must_speak(weft_tape_error(t), name);
        must_speak(weft_tape_error(t), how->others);
    }
    weft_tape_close(t);
    t = run_pass(me.parallel, &me.m, in_order, 3, me.index, 3);
    MUST(weft_tape_status(t) != WEFT_OK);
    weft_tape_close(t);
    MUST(weft_group_error(me.group));
    weft_group_close(beside);
    close_member(&me);
}

static void test_one_is_mistaken(void **state)
{
    for (int which = 0; which < (int)(sizeof(mistakes) / sizeof(*mistakes)); which++)
        for (int on_tcp = 0; on_tcp < 2; on_tcp++)
            for (int culprit = 0; culprit < 2; culprit++) {
                scene s = {
                    .w = {.fabric = on_tcp ? WORLD_TCP : WORLD_SIM, .size = 3, .seed = 9, .program = one_is_mistaken},
                    .mistake = which,
                    .culprit = culprit};
                s.w.arg = &s;
                world_run(&s.w);
            }
}

/* Modules that differ on one member: in the names, in how many they have, in what is fixed. */
static void modules_differ(weft_agent *agent, void *arg)
{
    static const char *const says[] = {"member 2 has w float32 [2] where member 0 has v float32 [2]",
                                       "member 2 has v float64 [2] where member 0 has v float32 [2]",
                                       "member 2 has more float32 [1] where member 0 has nothing more",
                                       "member 2 has v float32 [2] fixed where member 0 has v float32 [2]"};
    int me = weft_agent_rank(agent);
    weft_group *group;
    MUST_OK(weft_group_open(agent, "differ", NULL, 0, 0, &group, NULL));
    for (int i = 0; i < 4; i++) {
        bool odd = me == 2;
        weft_module *module = module_create(&vectors_type, NULL, NULL);
        weft_tensor *v = tensor_zeros(WEFT_SHAPE(2), odd && i == 1 ? WEFT_DTYPE_FLOAT64 : WEFT_DTYPE_FLOAT32);
        weft_module_add_parameter(module, "u", tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32));
        weft_module_add_parameter(module, odd && i == 0 ? "w" : "v", v);
        if (odd && i == 2)
            weft_module_add_parameter(module, "more", tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32));
        if (odd && i == 3)
            weft_tensor_set_requires_grad(v, false);
        weft_data_parallel *none = NULL;
        weft_error *error = NULL;
        MUST_BE(weft_data_parallel_create(group, module, NULL, &none, &error), WEFT_ERR_INVALID);
        must_speak(error, says[i]);
        MUST(!none);
        weft_error_unref(error);
        weft_module_unref(module);
    }
    weft_group_close(group);
}

WORLD_TEST(modules_differ, 2, 1, .size = 4)

/* Several passes of a member that reduces nothing, of which some leave vectors out; then one that leaves out others. */
static void accumulate_unused(weft_agent *agent, void *arg)
{
    static const size_t first_two[] = {0, 1};
    member me = open_member(agent, 4, &(weft_data_parallel_options){.find_unused = true, .first_bucket_bytes = 1});
    for (int round = 0; round < 2; round++) {
        weft_data_parallel_set_sync(me.parallel, false);
        weft_tape_close(run_pass(me.parallel, &me.m, in_order, 3, me.index, 1));
        weft_tape_close(run_pass(me.parallel, &me.m, first_two, 2, me.index, 2));
        weft_data_parallel_set_sync(me.parallel, true);
        weft_tape *t = run_pass(me.parallel, &me.m, first_two, 2, me.index, 3);
        MUST_OK(weft_tape_status(t));
        weft_gradients found = weft_data_parallel_gradients(me.parallel);
        for (size_t i = 0; i < 3; i++) {
            double wanted = average_of(i, me.size, 1);
            if (i < 2)
                wanted += average_of(i, me.size, 2) + average_of(i, me.size, 3);
            MUST(weft_tensor_get_f64(found.items[i].values, (int64_t)i) == wanted);
        }
        MUST(!found.items[3].values);
        weft_tape_close(t);
    }
    close_member(&me);
}

WORLD_TEST(accumulate_unused, 3, 1, .size = 3)

UNIT_MAIN(test_order_of_buckets, test_kinds_of_parameters, test_memory_of_buckets, test_one_is_mistaken,
          test_modules_differ, test_accumulate_unused)
