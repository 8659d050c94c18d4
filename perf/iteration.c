/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iteration.c - training a model that lives on another worker: forward, backward and step over the wire, beside the
 * same steps here. With --serve it takes turns with other programs (common/turns.h): with peers/torch_iteration.py.
 */
#include "common/measure.h"
#include "common/turns.h"
#include "common/workers.h"

#include "cli.h"

#include <stdlib.h>

/* ---- The models ----------------------------------------------------------------------------------------------- */

enum { EMPTY, SMALL, CONVNET, MODELS };

static const char *const model_names[MODELS + 1] = {"empty", "small", "convnet", NULL};
static const struct {
    weft_shape x;
    int64_t classes; /* 0: the loss is the sum */
} models[MODELS] = {
    {{1, {1}}, 0},              /* one weight */
    {{2, {1, 64}}, 10},         /* layers of 64-32-10, batch 1 */
    {{4, {32, 1, 28, 28}}, 10}, /* the ConvNet of MNIST, batch 32 */
};

static weft_tensor *times_weight(weft_tape *t, weft_module *self, weft_tensor *x)
{
    return weft_mul(t, x, weft_module_parameters(self).items[0]);
}

static weft_module *make_model(int which)
{
    static const weft_module_type weight = {.name = "Weight", .forward = times_weight};
    if (which == CONVNET)
        return weft_mnist_convnet_create(1);
    if (which == SMALL)
        return weft_sequential_create((weft_module *[]){weft_linear_create(64, 32, false, 1, NULL), weft_relu_create(),
                                                        weft_linear_create(32, 10, false, 2, NULL),
                                                        weft_log_softmax_create(1)},
                                      4, NULL);
    weft_module *module = weft_module_create(&weight, NULL, NULL);
    if (module)
        weft_module_add_parameter(module, "weight", weft_tensor_full(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32, 1));
    return module;
}

/* (which) -> a handle to that model */
static weft_status give_model(weft_call *call, void *user)
{
    (void)user;
    int64_t which = weft_call_i64(call, 0);
    weft_rref *handle;
    weft_module *module = which >= 0 && which < MODELS ? make_model((int)which) : NULL;
    weft_status st = module ? weft_module_to_rref(weft_call_agent(call), module, &handle) : WEFT_ERR_INVALID;
    weft_module_unref(module);
    if (st)
        return st;
    weft_call_give(call, WEFT_VALUES(weft_of_rref(handle)));
    weft_rref_unref(handle);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "model", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_RREF}, .run = give_model}};

/* ---- Iterations ----------------------------------------------------------------------------------------------- */

/* How a step is made: all here; there, with a step of its own; there, with the step taken along. */
enum { HERE, APART, ALONG, WAYS };
static const char *const ways[WAYS + 1] = {"here", "apart", "along", NULL};

typedef struct rig {
    weft_agent *agent;
    int model, way;
    weft_tensor *x, *labels;
    weft_module *here;
    weft_optimizer *sgd_here;
    weft_remote_module *there;
    weft_dist_optimizer *sgd_there;
    weft_values *results, *parameters;
} rig;

static weft_tensor *loss_of(weft_tape *t, const rig *r, weft_tensor *y)
{
    return models[r->model].classes ? weft_nll_loss(t, y, r->labels) : weft_sum(t, y);
}

static weft_status step_here(const rig *r)
{
    weft_tensors parameters = weft_module_parameters(r->here);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, loss_of(t, r, weft_module_forward(t, r->here, r->x)));
    weft_status st = weft_tape_status(t);
    if (!st)
        st = weft_optimizer_apply(r->sgd_here, weft_tape_gradients(t, parameters));
    weft_tape_close(t);
    return st;
}

static weft_status step_there(const rig *r, bool along)
{
    weft_context *c;
    weft_status st = weft_context_open(r->agent, &c);
    if (st)
        return st;
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *y = weft_remote_forward(t, r->there, WEFT_VALUES(weft_of_tensor(r->x)), NULL);
    weft_dist_backward(t, loss_of(t, r, y), &(weft_pass_options){.step = along ? r->sgd_there : NULL});
    st = weft_tape_status(t);
    if (!st && !along)
        st = weft_dist_optimizer_step(r->sgd_there, &c, 1, NULL);
    weft_tape_close(t);
    weft_context_close(c, NULL);
    return st;
}

static bool step(void *arg)
{
    const rig *r = arg;
    weft_status st = r->way == HERE ? step_here(r) : step_there(r, r->way == ALONG);
    return !st || workers_complain(ways[r->way], st, NULL);
}

static weft_status open_there(rig *r)
{
    weft_rref *handle, *all[16];
    weft_status st =
        weft_rpc_sync(r->agent, weft_to_rank(1), "model", WEFT_VALUES(weft_of_i64(r->model)), NULL, &r->results);
    if (!st)
        st = weft_values_get_rref(r->results, 0, &handle);
    if (!st)
        st = weft_remote_module_from_rref(handle, &r->there);
    if (!st)
        st = weft_remote_parameters(r->there, &r->parameters);
    size_t count = st ? 0 : weft_values_count(r->parameters);
    for (size_t i = 0; i < count && !st; i++)
        st = weft_values_get_rref(r->parameters, i, &all[i]);
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 1e-4};
    return st ? st : weft_dist_optimizer_create(r->agent, all, count, &spec, &r->sgd_there, NULL);
}

static bool open_rig(rig *r, weft_agent *agent, int model, int way)
{
    *r = (rig){.agent = agent, .model = model, .way = way};
    r->x = weft_tensor_empty(models[model].x, WEFT_DTYPE_FLOAT32);
    r->labels = weft_tensor_zeros(WEFT_SHAPE(models[model].x.dims[0]), WEFT_DTYPE_INT64);
    r->here = make_model(model);
    weft_status st = r->x && r->labels && r->here ? weft_tensor_fill_normal(r->x, 1, 0, 1) : WEFT_ERR_MEMORY;
    if (!st)
        r->sgd_here = weft_sgd_create(weft_module_parameters(r->here), &(weft_optimizer_spec){.lr = 1e-4}, NULL);
    if (!st)
        st = r->sgd_here ? open_there(r) : WEFT_ERR_MEMORY;
    return st ? workers_complain(model_names[model], st, NULL) : true;
}

static void close_rig(rig *r)
{
    weft_dist_optimizer_unref(r->sgd_there);
    weft_remote_module_unref(r->there);
    weft_values_unref(r->parameters);
    weft_values_unref(r->results);
    weft_optimizer_unref(r->sgd_here);
    weft_module_unref(r->here);
    weft_tensor_unref(r->labels);
    weft_tensor_unref(r->x);
}

static bool show(rig *r, int64_t count)
{
    double seconds;
    if (!turns_time(step, r, 5, &seconds) || !turns_time(step, r, count, &seconds))
        return false;
    printf("%.1f us an iteration\n", 1e6 * seconds / (double)count);
    return true;
}

int main(int argc, char **argv)
{
    int model = SMALL, way = ALONG;
    int64_t count = 500;
    bool serves = false;
    const cli_option options[] = {
        {"model", CLI_CHOICE, &model, 0, 0, model_names, NULL, "what is trained", "small"},
        {"step", CLI_CHOICE, &way, 0, 0, ways, NULL,
         "all in this process; on the other worker, the step apart, or taken along with the backward pass", "along"},
        {"iterations", CLI_INT, &count, 1, 100000, NULL, "N", "iterations that are timed", "500"},
        {"serve", CLI_FLAG, &serves, 0, 0, NULL, NULL, "read counts of iterations, answer with seconds", NULL},
    };
    const cli program = {
        .program = "iteration",
        .purpose = "training a model on another worker",
        .example = "iteration --model convnet --iterations 20",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (workers_is_child())
        return workers_serve(functions, 1);
    workers w;
    rig r;
    if (!workers_open(NULL, 0, 1, &w))
        return 1;
    bool ok = open_rig(&r, w.agent, model, way) && (serves ? turns_serve(step, &r) : show(&r, count));
    close_rig(&r);
    return workers_close(&w) && ok ? 0 : 1;
}
