/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_training.c - a model of two parts on two other workers is trained by a third, and by all at once:
 * every step gives the same bits as the same model on one tape.
 */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <math.h>

#define WORKERS 3
#define STEPS 20
#define BATCH 8

static weft_module *make_front(int64_t argument)
{
    return sequential_create((weft_module *[]){linear_create(6, 16, false, (uint64_t)argument, NULL), relu_create(),
                                               dropout_create(0.25, NULL)},
                             3, NULL);
}

static weft_module *make_back(int64_t argument)
{
    return linear_create(16, 4, false, (uint64_t)argument, NULL);
}

static weft_module *make_nothing(int64_t argument)
{
    return NULL;
}

static weft_status barrier(weft_agent *agent)
{
    weft_group *all;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    weft_status status = weft_group_barrier(all, WEFT_FOREVER);
    weft_group_close(all);
    return status;
}

static void register_types(weft_agent *agent)
{
    world_serve_module(agent, "front", make_front);
    world_serve_module(agent, "back", make_back);
    world_serve_module(agent, "nothing", make_nothing);
    MUST_OK(barrier(agent));
}

static weft_tensor *inputs(int step)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(BATCH, 6), WEFT_DTYPE_FLOAT32);
    for (int i = 0; i < BATCH * 6; i++)
        ((float *)weft_tensor_data(x))[i] = (float)((i * 7 + step * 13) % 17 - 8) / 8;
    return x;
}

static weft_tensor *targets(int step)
{
    weft_tensor *y = tensor_empty(WEFT_SHAPE(BATCH), WEFT_DTYPE_INT64);
    for (int i = 0; i < BATCH; i++)
        ((int64_t *)weft_tensor_data(y))[i] = (i + step) % 4;
    return y;
}

/* ---- The same on one tape ------------------------------------------------------------------------------------- */

typedef struct local_run {
    float losses[STEPS], weights[16 * 6];
} local_run;

static void train_here(local_run *out, double max_norm)
{
    weft_module *front = make_front(1), *back = make_back(2);
    weft_tensor *parameters[] = {weft_module_parameters(front).items[0], weft_module_parameters(front).items[1],
                                 weft_module_parameters(back).items[0], weft_module_parameters(back).items[1]};
    weft_tensors all = {parameters, 4};
    weft_optimizer *sgd = optimizer_create(
        all, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1, .max_norm = max_norm, .sgd.momentum = 0.9},
        NULL);
    for (int step = 0; step < STEPS; step++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_tensor *x = inputs(step), *y = targets(step);
        weft_tape_set_seed(t, (uint64_t)step + 100);
        weft_tensor *h = weft_module_forward(t, front, x);
        weft_tensor *loss = weft_cross_entropy(t, weft_module_forward(t, back, h), y);
        weft_backward(t, loss);
        MUST_OK(weft_tape_status(t));
        out->losses[step] = *(float *)weft_tensor_data(loss);
        MUST_OK(weft_optimizer_apply(sgd, weft_tape_gradients(t, all)));
        weft_tape_close(t);
        weft_tensor_unref(x);
        weft_tensor_unref(y);
    }
    memcpy(out->weights, weft_tensor_data(parameters[0]), sizeof(out->weights));
    weft_optimizer_unref(sgd);
    weft_module_unref(front);
    weft_module_unref(back);
}

/* ---- Split ---------------------------------------------------------------------------------------------------- */

typedef struct split {
    weft_rref *front, *back;
    weft_dist_optimizer *sgd;
    bool fused; /* the backward pass takes the step along */
} split;

static void make_split(weft_agent *agent, split *s)
{
    s->fused = false;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "front", WEFT_VALUES(weft_of_i64(1)), NULL, &s->front));
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "back", WEFT_VALUES(weft_of_i64(2)), NULL, &s->back));
}

static void optimize_split(weft_agent *agent, split *s)
{
    weft_error *error = NULL;
    weft_status status = weft_dist_optimizer_create(
        agent, WEFT_VALUES(weft_of_rref(s->front), weft_of_rref(s->back)),
        &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1, .sgd.momentum = 0.9}, &s->sgd, &error);
    if (status)
        fprintf(stderr, "%s\n", weft_error_message(error));
    MUST_OK(status);
    MUST(weft_dist_optimizer_owners(s->sgd) == 2);
}

static void close_split(split *s)
{
    weft_dist_optimizer_unref(s->sgd);
    weft_rref_unref(s->front);
    weft_rref_unref(s->back);
}

static weft_tensor *loss_of(weft_tape *t, const split *s, int step, weft_tensor *x, weft_tensor *y)
{
    weft_tensor *h =
        weft_remote_forward(t, s->front, x, &(weft_forward_options){.has_seed = true, .seed = (uint64_t)step + 100});
    return weft_cross_entropy(t, weft_remote_forward(t, s->back, h, NULL), y);
}

static float one_step(weft_agent *agent, const split *s, int step, double max_norm)
{
    weft_context *c;
    weft_tensor *x = inputs(step), *y = targets(step);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *loss = loss_of(t, s, step, x, y);
    weft_dist_backward(t, loss, &(weft_pass_options){.step = s->fused ? s->sgd : NULL});
    MUST_OK(weft_tape_status(t));
    float value = *(float *)weft_tensor_data(loss);
    double norm = -1;
    if (!s->fused)
        MUST_OK(
            weft_dist_optimizer_step(s->sgd, &c, 1, &(weft_dist_step_options){.max_norm = max_norm, .norm = &norm}));
    MUST(s->fused || max_norm == 0 || norm > 0);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    return value;
}

static void train_split(weft_agent *agent, double max_norm, float tolerance, bool fused)
{
    local_run want;
    split s;
    register_types(agent);
    if (weft_agent_rank(agent) == 0) {
        train_here(&want, max_norm);
        make_split(agent, &s);
        optimize_split(agent, &s);
        s.fused = fused;
        for (int step = 0; step < STEPS; step++) {
            float got = one_step(agent, &s, step, max_norm);
            if (fabsf(got - want.losses[step]) > tolerance)
                fprintf(stderr, "step %d: %.9g, not %.9g\n", step, (double)got, (double)want.losses[step]);
            MUST(fabsf(got - want.losses[step]) <= tolerance);
        }
        weft_values *list, *weight;
        weft_tensor *tensor;
        weft_rref *first;
        MUST_OK(weft_remote_parameters(s.front, &list, NULL));
        MUST_OK(weft_values_get_rref(list, 0, &first));
        MUST_OK(weft_rref_to_here(first, 0, &weight, NULL));
        MUST_OK(weft_values_get_tensor(weight, 0, &tensor));
        for (size_t i = 0; i < sizeof(want.weights) / sizeof(*want.weights); i++)
            MUST(fabsf(((float *)weft_tensor_data(tensor))[i] - want.weights[i]) <= tolerance);
        weft_values_unref(weight);
        weft_values_unref(list);
        close_split(&s);
    }
    MUST_OK(barrier(agent));
}

static void the_same_bits(weft_agent *agent, void *arg)
{
    (void)arg;
    train_split(agent, 0, 0, false);
}
WORLD_TEST(the_same_bits, 3, 2, .size = WORKERS)

/* Backward and step in one. */
static void the_same_bits_fused(weft_agent *agent, void *arg)
{
    (void)arg;
    train_split(agent, 0, 0, true);
}
WORLD_TEST(the_same_bits_fused, 3, 2, .size = WORKERS)

/* The norm is of sums over two workers, added in another order. */
static void clipped(weft_agent *agent, void *arg)
{
    (void)arg;
    train_split(agent, 0.5, 1e-5F, false);
}
WORLD_TEST(clipped, 2, 1, .size = WORKERS)

static split *shared; /* rank 0's */

/* () -> handles to both parts of the model that rank 0 made */
static weft_status serve_model(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_rref(shared->front), weft_of_rref(shared->back)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "model", .gives = {WEFT_TYPE_RREF, WEFT_TYPE_RREF}, .run = serve_model}};

static void ask_for_split(weft_agent *agent, split *s)
{
    weft_values *results;
    weft_rref *rref;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "model", WEFT_NO_VALUES, NULL, &results));
    MUST_OK(weft_values_get_rref(results, 0, &rref));
    s->front = weft_rref_ref(rref);
    MUST_OK(weft_values_get_rref(results, 1, &rref));
    s->back = weft_rref_ref(rref);
    weft_values_unref(results);
}

/* All three train one model, each when it likes: no pass fails, and it learns. */
static void several_trainers(weft_agent *agent, void *arg)
{
    world *w = arg;
    split s = {0};
    register_types(agent);
    if (weft_agent_rank(agent) == 0) {
        make_split(agent, &s);
        shared = &s;
    }
    MUST_OK(barrier(agent));
    if (weft_agent_rank(agent) != 0)
        ask_for_split(agent, &s);
    optimize_split(agent, &s);
    float first = 0, last = 0;
    for (int step = 0; step < STEPS; step++) {
        float loss = one_step(agent, &s, step % 4, 0);
        first = step == 0 ? loss : first;
        last = loss;
    }
    MUST(last < first);
    MUST_OK(barrier(agent));
    close_split(&s);
    for (int i = 0; weft_agent_contexts(agent, NULL) && i < 10000; i++)
        world_sleep_ms(w, 1);
    MUST(weft_agent_contexts(agent, NULL) == 0);
}
WORLD_TEST(several_trainers, 3, 2, .size = WORKERS, WORLD_FUNCTIONS(functions))

/* Records that are retained may be gone through with a step again; used up they may not. */
static void fused_again(weft_agent *agent, void *arg)
{
    (void)arg;
    split s;
    register_types(agent);
    if (weft_agent_rank(agent) == 0) {
        make_split(agent, &s);
        optimize_split(agent, &s);
        s.fused = true;
        (void)one_step(agent, &s, 0, 0);
        weft_context *c;
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        weft_tensor *x = inputs(0), *y = targets(0), *loss = loss_of(t, &s, 0, x, y);
        weft_dist_backward(t, loss, &(weft_pass_options){.step = s.sgd, .retain = true});
        weft_dist_backward(t, loss,
                           &(weft_pass_options){.step = s.sgd}); /* again: a second step by the same gradients */
        MUST_OK(weft_tape_status(t));
        weft_dist_backward(t, loss, &(weft_pass_options){.step = s.sgd});
        MUST(weft_tape_status(t) == WEFT_ERR_STATE);
        weft_tape_close(t);
        weft_context_close(c, NULL);
        weft_tensor_unref(x);
        weft_tensor_unref(y);
        close_split(&s);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(fused_again, 2, 1, .size = WORKERS)

/* An optimizer is one agent's. */
static void of_another_agent(weft_agent *agent, void *arg)
{
    (void)arg;
    static split s;
    register_types(agent);
    if (weft_agent_rank(agent) == 0) {
        make_split(agent, &s);
        optimize_split(agent, &s);
    }
    MUST_OK(barrier(agent));
    if (weft_agent_rank(agent) == 1) {
        weft_context *c;
        weft_tensor *x = tensor_full(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32, 1);
        weft_tensor_set_requires_grad(x, true);
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        weft_dist_backward(t, weft_sum(t, x), &(weft_pass_options){.step = s.sgd});
        MUST(weft_tape_status(t) == WEFT_ERR_INVALID);
        MUST(strstr(weft_error_message(weft_tape_error(t)), "it was made by another agent"));
        weft_tape_close(t);
        weft_context_close(c, NULL);
        weft_tensor_unref(x);
    }
    MUST_OK(barrier(agent));
    if (weft_agent_rank(agent) == 0)
        close_split(&s);
}
WORLD_TEST(of_another_agent, 2, 1, .size = WORKERS)

/* ---- Rates and norms --------------------------------------------------------------------------------------------- */

/* The loss of one pass over a batch that is `value` everywhere; steps, which comes to `wanted`. */
static float pass_and_step(weft_agent *agent, const split *s, float value, const weft_dist_step_options *how,
                           weft_status wanted)
{
    weft_context *c;
    weft_tensor *x = tensor_full(WEFT_SHAPE(1, 16), WEFT_DTYPE_FLOAT32, value);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *loss = weft_sum(t, weft_remote_forward(t, s->back, x, NULL));
    weft_dist_backward(t, loss, NULL);
    MUST_OK(weft_tape_status(t));
    float found = *(float *)weft_tensor_data(loss);
    MUST(weft_dist_optimizer_step(s->sgd, &c, 1, how) == wanted);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
    return found;
}

/* A rate of 0 moves nothing. A norm that is not finite is refused if that is asked for, else parameters become NaN. */
static void rates_and_norms(weft_agent *agent, void *arg)
{
    (void)arg;
    split s = {0};
    register_types(agent);
    if (weft_agent_rank(agent) == 0) {
        const double rates[] = {0, 0.5};
        const weft_dist_step_options plain = {0}, clips = {.max_norm = 1};
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "back", WEFT_VALUES(weft_of_i64(2)), NULL, &s.back));
        for (int i = 0; i < 2; i++) {
            const weft_optimizer_spec spec = {.type = &weft_adam_type, .has_lr = true, .lr = rates[i]};
            MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(s.back)), &spec, &s.sgd, NULL));
            float before = pass_and_step(agent, &s, 1, &plain, WEFT_OK);
            float after = pass_and_step(agent, &s, 1, &clips, WEFT_OK);
            MUST((before == after) == (rates[i] == 0));
            for (int clip = 0; clip < 2; clip++) {
                double norm = 0;
                weft_error *error = NULL;
                const weft_dist_step_options strict = {
                    .max_norm = clip, .norm = &norm, .error_if_nonfinite = true, .error = &error};
                (void)pass_and_step(agent, &s, NAN, &strict, WEFT_ERR_INVALID);
                MUST(isnan(norm) && strstr(weft_error_message(error), "the norm of the gradients is"));
                weft_error_unref(error);
            }
            MUST(isfinite(pass_and_step(agent, &s, 1, &plain, WEFT_OK)));
            if (i == 0)
                weft_dist_optimizer_unref(s.sgd);
        }
        (void)pass_and_step(agent, &s, NAN, &clips, WEFT_OK);
        MUST(isnan(pass_and_step(agent, &s, 1, &plain, WEFT_OK)));
        weft_dist_optimizer_unref(s.sgd);
        weft_rref_unref(s.back);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(rates_and_norms, 3, 1, .size = WORKERS)

/* ---- Failures ------------------------------------------------------------------------------------------------- */

/* (handle of a module, x) -> what it makes of x, wherever it is */
static weft_status serve_relay(weft_call *call, void *user)
{
    (void)user;
    weft_tensor *y =
        weft_remote_forward(weft_call_tape(call), weft_call_rref(call, 0), weft_call_tensor(call, 1), NULL);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

static const weft_function relays[] = {
    {.name = "relay", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_relay}};

static weft_status broken_backward(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted,
                                   weft_tensor **dx)
{
    (void)state, (void)saved, (void)dy, (void)wanted, (void)dx;
    return WEFT_ERR_SYSTEM;
}

/* The pass fails at its root when the model's owner, whom another worker called, has done its part. What is stepped
 * right behind the failure does not count it. */
static void a_failed_pass_is_not_stepped(weft_agent *agent, void *arg)
{
    (void)arg;
    static const weft_operator op = {.name = "broken_pipe", .backward = broken_backward};
    split s = {0};
    register_types(agent);
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "back", WEFT_VALUES(weft_of_i64(2)), NULL, &s.back));
        const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.1};
        MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(s.back)), &spec, &s.sgd, NULL));
        weft_context *c;
        weft_tensor *x = tensor_full(WEFT_SHAPE(1, 16), WEFT_DTYPE_FLOAT32, 1), *copy = tensor_clone(x), *broken;
        weft_values *results;
        weft_tensor_set_requires_grad(x, true);
        MUST_OK(weft_context_open(agent, &c, NULL));
        weft_tape *t = weft_context_tape(c, NULL);
        weft_tape_record(t, &op, (weft_tensors){&x, 1}, (weft_tensors){0}, NULL, (weft_tensors){&copy, 1}, &broken);
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "relay",
                              WEFT_VALUES(weft_of_rref(s.back), weft_of_tensor(broken)), &(weft_rpc_options){.tape = t},
                              &results));
        weft_tensor *y;
        MUST_OK(weft_values_get_tensor(results, 0, &y));
        weft_dist_backward(t, weft_sum(t, y), NULL);
        MUST(weft_tape_status(t) == WEFT_ERR_SYSTEM);
        double norm = -1;
        MUST_OK(weft_dist_optimizer_step(s.sgd, &c, 1, &(weft_dist_step_options){.max_norm = 1, .norm = &norm}));
        MUST(norm == 0);
        weft_tape_close(t);
        weft_context_close(c, NULL);
        weft_values_unref(results);
        weft_tensor_unref(x);
        weft_tensor_unref(copy);
        weft_dist_optimizer_unref(s.sgd);
        weft_rref_unref(s.back);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(a_failed_pass_is_not_stepped, 30, 3, .size = WORKERS, WORLD_FUNCTIONS(relays))

/* ---- Messages ------------------------------------------------------------------------------------------------- */

#define ROUNDS 20

static uint64_t frames(weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats.frames_sent + stats.frames_received;
}

/* One iteration with a model on one other worker. */
static void iterate(weft_agent *agent, const split *s)
{
    weft_context *c;
    weft_tensor *x = tensor_full(WEFT_SHAPE(1, 16), WEFT_DTYPE_FLOAT32, 1);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *loss = weft_sum(t, weft_remote_forward(t, s->back, x, NULL));
    weft_dist_backward(t, loss, &(weft_pass_options){.step = s->fused ? s->sgd : NULL});
    MUST_OK(weft_tape_status(t));
    if (!s->fused)
        MUST_OK(weft_dist_optimizer_step(s->sgd, &c, 1, NULL));
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
}

/* Forward, backward, step: a call each, and its answer; taken along, the step costs none. The end of a context costs
 * none. */
static void messages_of_an_iteration(weft_agent *agent, void *arg)
{
    (void)arg;
    split s = {0};
    register_types(agent);
    if (weft_agent_rank(agent) == 0) {
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "back", WEFT_VALUES(weft_of_i64(2)), NULL, &s.back));
        const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.1};
        MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(s.back)), &spec, &s.sgd, NULL));
        for (int fused = 0; fused < 2; fused++) {
            s.fused = fused;
            iterate(agent, &s);
            uint64_t before = frames(agent);
            for (int i = 0; i < ROUNDS; i++)
                iterate(agent, &s);
            uint64_t each = (frames(agent) - before + ROUNDS / 2) / ROUNDS;
            fprintf(stderr, "%llu frames an iteration\n", (unsigned long long)each);
            MUST(each == (fused ? 4 : 6));
        }
        weft_dist_optimizer_unref(s.sgd);
        weft_rref_unref(s.back);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(messages_of_an_iteration, 2, 0, .size = WORKERS)

static size_t put_text(uint8_t *to, const char *text)
{
    const uint32_t length = (uint32_t)strlen(text);
    memcpy(to, &length, sizeof(length));
    memcpy(to + sizeof(length), text, length);
    return sizeof(length) + length;
}

/* The options of an optimizer, as they are sent (docs/wire.md). */
static size_t put_spec(uint8_t *to, const char *type, uint8_t flags, const char *option)
{
    const double numbers[] = {0.1, 0}, value = 0.5; /* the rate, max_norm */
    const int64_t pin_timeout_ms = 0;
    size_t at = put_text(to, type);
    memcpy(to + at, numbers, sizeof(numbers));
    at += sizeof(numbers);
    memcpy(to + at, &pin_timeout_ms, sizeof(pin_timeout_ms));
    at += sizeof(pin_timeout_ms);
    to[at++] = WEFT_UPDATE_DEFAULT;
    to[at++] = flags;
    to[at++] = 1;
    at += put_text(to + at, option);
    memcpy(to + at, &value, sizeof(value));
    return at + sizeof(value);
}

/* Options that no worker sends: the types and option are unknown, a flag is, bytes are missing or too many. */
static void forge_specs(weft_agent *agent, weft_rref *parameter)
{
    const struct {
        const char *type, *option, *text;
        uint8_t flags;
        int more;
        weft_status code;
    } cases[] = {
        {"SGD", "dampening", NULL, 7, 0, WEFT_OK},
        {"Lion", "beta1", "rank 1 has no optimizer type \"Lion\": register it there", 0, 0, WEFT_ERR_NOT_FOUND},
        {"", "beta1", "has no optimizer type \"\"", 0, 0, WEFT_ERR_NOT_FOUND},
        {"SGD", "beta1", "optimizer type SGD of rank 1 has no option beta1", 0, 0, WEFT_ERR_INVALID},
        {"SGD", "dampening", "malformed", 8, 0, WEFT_ERR_PROTOCOL},
        {"SGD", "dampening", "malformed", 0, -1, WEFT_ERR_PROTOCOL},
        {"SGD", "dampening", "malformed", 0, -60, WEFT_ERR_PROTOCOL},
        {"SGD", "dampening", "malformed", 0, 1, WEFT_ERR_PROTOCOL},
        {"a-name-that-is-longer-than-names-of-types-may-be", "x", "malformed", 0, 0, WEFT_ERR_PROTOCOL},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        uint8_t bytes[256] = {0};
        weft_rref *made;
        int64_t size = (int64_t)put_spec(bytes, cases[i].type, cases[i].flags, cases[i].option) + cases[i].more;
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "weft:optimizer",
                                WEFT_VALUES(weft_of_bytes(bytes, size > 0 ? (size_t)size : 0), weft_of_rref(parameter)),
                                NULL, &made));
        weft_future *created = weft_rref_created(made);
        weft_status status = weft_future_wait(created, WEFT_FOREVER);
        const weft_error *error = weft_future_error(created);
        MUST(cases[i].code ? status == WEFT_ERR_REMOTE && weft_error_handler_code(error) == cases[i].code &&
                                 strstr(weft_error_message(error), cases[i].text)
                           : !status);
        weft_future_unref(created);
        weft_rref_unref(made);
    }
}

/* Calls of weft's own functions that no optimizer makes: malformed contexts, a count of failures that is not there,
 * no handle, and a handle to something else. */
static void forge_steps(weft_agent *agent, weft_rref *no_part)
{
    weft_rref *back;
    weft_values *parameters, *made;
    weft_rref *first, *part;
    uint8_t spec[256];
    size_t size = put_spec(spec, "SGD", 0, "dampening");
    const uint64_t many[] = {1ull << 32, 1, UINT32_MAX}, nowhere[] = {1ull << 32, 1, 1 | 77ull << 32, 1};
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "back", WEFT_VALUES(weft_of_i64(2)), NULL, &back));
    MUST_OK(weft_remote_parameters(back, &parameters, NULL));
    MUST_OK(weft_values_get_rref(parameters, 0, &first));
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "weft:optimizer",
                            WEFT_VALUES(weft_of_bytes(spec, size), weft_of_rref(first)), NULL, &part));
    const weft_value contexts[] = {weft_of_bytes("abc", 3), weft_of_bytes(many, sizeof(many) - 4),
                                   weft_of_bytes(nowhere, sizeof(nowhere))};
    for (size_t i = 0; i < sizeof(contexts) / sizeof(*contexts); i++)
        for (int step = 0; step < 2; step++)
            MUST(weft_rref_rpc_sync(part, step ? "weft:step" : "weft:norm",
                                    step ? WEFT_VALUES(contexts[i], weft_of_f64(1)) : WEFT_VALUES(contexts[i]), NULL,
                                    NULL) == WEFT_ERR_REMOTE);
    MUST(weft_rref_rpc_sync(no_part, "weft:step", WEFT_VALUES(weft_of_bytes("", 0), weft_of_f64(1)), NULL, NULL) ==
         WEFT_ERR_REMOTE);
    MUST(weft_rpc_sync(agent, weft_to_rank(1), "weft:step",
                       WEFT_VALUES(weft_of_i64(1), weft_of_bytes("", 0), weft_of_f64(1)), NULL, NULL) == WEFT_ERR_TYPE);
    MUST_OK(weft_rref_rpc_sync(part, "weft:norm", WEFT_VALUES(weft_of_bytes("", 0)), NULL, &made)); /* it lives */
    weft_values_unref(made);
    forge_specs(agent, first);
    weft_rref_unref(part);
    weft_values_unref(parameters);
    weft_rref_unref(back);
}

static void must_not_make(weft_agent *agent, weft_args list, weft_status wanted, const char *text)
{
    weft_dist_optimizer *sgd = NULL;
    weft_error *error = NULL;
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.1};
    MUST_BE(weft_dist_optimizer_create(agent, list, &spec, &sgd, &error), wanted);
    if (!strstr(weft_error_message(error), text))
        fprintf(stderr, "%s: %s is missing\n", weft_error_message(error), text);
    MUST(!sgd && strstr(weft_error_message(error), text));
    weft_error_unref(error);
}

/* Lists that name no parameters, or something else. */
static void refuse_lists(weft_agent *agent, weft_rref *number)
{
    weft_rref *module, *empty, *optimizer;
    weft_value nested[WEFT_MAX_LIST_DEPTH + 1];
    uint8_t spec[256];
    size_t size = put_spec(spec, "SGD", 0, "dampening");
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "back", WEFT_VALUES(weft_of_i64(2)), NULL, &module));
    MUST_OK(weft_rref_create_typed(agent, &weft_module_object, relu_create(), &empty, NULL));
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "weft:optimizer",
                            WEFT_VALUES(weft_of_bytes(spec, size), weft_of_rref(module)), NULL, &optimizer));
    weft_value there = weft_of_rref(module);
    must_not_make(agent, WEFT_NO_VALUES, WEFT_ERR_INVALID, "no parameters are given");
    must_not_make(agent, WEFT_VALUES(weft_of_list(WEFT_NO_VALUES)), WEFT_ERR_INVALID, "no parameters are given");
    must_not_make(agent, WEFT_VALUES(there, weft_of_rref(NULL)), WEFT_ERR_INVALID, "parameter 1 is NULL");
    must_not_make(agent, WEFT_VALUES(weft_of_list(WEFT_VALUES(there, weft_of_tensor(NULL)))), WEFT_ERR_INVALID,
                  "parameter 1 is NULL");
    must_not_make(agent, WEFT_VALUES(weft_of_tensors(weft_module_parameters(NULL))), WEFT_ERR_INVALID,
                  "parameter 0 is a list without tensors");
    must_not_make(agent, WEFT_VALUES(there, weft_of_i64(7)), WEFT_ERR_TYPE, "parameter 1 is of type int64");
    must_not_make(agent, WEFT_VALUES(weft_of_rref(number)), WEFT_ERR_REMOTE, "nor a module");
    must_not_make(agent, WEFT_VALUES(weft_of_rref(optimizer)), WEFT_ERR_REMOTE, "nor a module");
    must_not_make(agent, WEFT_VALUES(weft_of_rref(empty)), WEFT_ERR_REMOTE, "no parameters");
    must_not_make(agent, WEFT_VALUES(there, there), WEFT_ERR_REMOTE, "are one tensor");
    for (int i = 0; i <= WEFT_MAX_LIST_DEPTH; i++)
        nested[i] = i ? weft_of_list((weft_args){&nested[i - 1], 1}) : there;
    must_not_make(agent, (weft_args){&nested[WEFT_MAX_LIST_DEPTH], 1}, WEFT_ERR_TOO_LARGE, "");
    weft_dist_optimizer *sgd;
    MUST_OK(weft_dist_optimizer_create(agent, (weft_args){&nested[WEFT_MAX_LIST_DEPTH - 1], 1},
                                       &(weft_optimizer_spec){.type = &weft_sgd_type}, &sgd, NULL));
    weft_dist_optimizer_unref(sgd);
    weft_rref_unref(optimizer);
    weft_rref_unref(empty);
    weft_rref_unref(module);
}

static void misuse(weft_agent *agent, void *arg)
{
    (void)arg;
    register_types(agent);
    if (weft_agent_rank(agent) == 0) {
        weft_rref *none;
        weft_rref *handle;
        weft_dist_optimizer *sgd;
        weft_error *error = NULL;
        for (int i = 0; i < 2; i++) { /* one that cannot be made, and one of no type */
            MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), i ? "unknown" : "nothing", WEFT_NO_VALUES, NULL, &none));
            weft_tape *t = weft_tape_open(NULL);
            weft_tensor *x = inputs(0);
            MUST(!weft_remote_forward(t, none, x, NULL) && weft_tape_status(t));
            weft_tape_close(t);
            weft_tensor_unref(x);
            weft_rref_unref(none);
        }
        MUST_OK(weft_rref_create(agent, weft_of_i64(3), &handle, NULL));
        const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.1};
        MUST(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(handle)), &spec, &sgd, &error) ==
             WEFT_ERR_REMOTE);
        MUST(strstr(weft_error_message(error), "neither a tensor"));
        weft_error_unref(error);
        MUST(weft_dist_optimizer_create(agent, WEFT_NO_VALUES, &spec, &sgd, NULL) == WEFT_ERR_INVALID);
        MUST(weft_dist_optimizer_step(NULL, NULL, 0, NULL) == WEFT_ERR_INVALID);
        const weft_optimizer_spec unknown = {.lr = 0.1};
        error = NULL;
        MUST(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(handle)), &unknown, &sgd, &error) ==
             WEFT_ERR_INVALID);
        MUST(strstr(weft_error_message(error), "the type of the optimizer is NULL"));
        weft_error_unref(error);
        refuse_lists(agent, handle);
        forge_steps(agent, handle);
        weft_rref_unref(handle);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(misuse, 2, 1, .size = WORKERS)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_bits),
        cmocka_unit_test(test_the_same_bits_fused),
        cmocka_unit_test(test_clipped),
        cmocka_unit_test(test_rates_and_norms),
        cmocka_unit_test(test_several_trainers),
        cmocka_unit_test(test_fused_again),
        cmocka_unit_test(test_messages_of_an_iteration),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_of_another_agent),
        cmocka_unit_test(test_a_failed_pass_is_not_stepped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
