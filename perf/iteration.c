/* SPDX-License-Identifier: Apache-2.0 */
/*
 * iteration.c - training a model that lives on another worker: forward, backward and step over the wire, against libfabric's round trip and
 * against the same steps here, in slices taken in turn.
 */
#include "common/measure.h"
#include "common/raw_pair.h"
#include "common/workers.h"

#include "cli.h"

#include <stdlib.h>

#define MESSAGE_BYTES 64 /* of the raw ping-pong */
#define WARM_UP 5

/* ---- The models ----------------------------------------------------------------------------------------------- */

enum { EMPTY, SMALL, CONVNET, MODELS };

static const struct {
    const char *name, *what;
    weft_shape x;
    int64_t classes; /* 0: the loss is the sum */
    int share;       /* how many iterations of EMPTY's count */
} models[MODELS] = {
    {"empty", "one weight", {1, {1}}, 0, 1},
    {"small", "64-32-10, batch 1", {2, {1, 64}}, 10, 1},
    {"convnet", "MNIST ConvNet, batch 32", {4, {32, 1, 28, 28}}, 10, 50},
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
static const char *const ways[WAYS] = {"here", "step apart", "step along"};

typedef struct rig {
    weft_agent *agent;
    int model;
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

static bool slice(const rig *r, int way, int64_t count, series *out)
{
    for (int64_t i = 0; i < count; i++) {
        double start = measure_now_us();
        weft_status st = way == HERE ? step_here(r) : step_there(r, way == ALONG);
        if (st)
            return workers_complain(ways[way], st, NULL);
        if (out)
            series_add(out, measure_now_us() - start);
    }
    return true;
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

static bool open_rig(rig *r, weft_agent *agent, int model)
{
    *r = (rig){.agent = agent, .model = model};
    r->x = weft_tensor_empty(models[model].x, WEFT_DTYPE_FLOAT32);
    r->labels = weft_tensor_zeros(WEFT_SHAPE(models[model].x.dims[0]), WEFT_DTYPE_INT64);
    r->here = make_model(model);
    weft_status st = r->x && r->labels && r->here ? weft_tensor_fill_normal(r->x, 1, 0, 1) : WEFT_ERR_MEMORY;
    if (!st)
        r->sgd_here = weft_sgd_create(weft_module_parameters(r->here), &(weft_optimizer_spec){.lr = 1e-4}, NULL);
    if (!st)
        st = r->sgd_here ? open_there(r) : WEFT_ERR_MEMORY;
    return st ? workers_complain(models[model].name, st, NULL) : true;
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

/* ---- Measuring ------------------------------------------------------------------------------------------------ */

typedef struct settings {
    int64_t slices, iterations;
    const char *json, *provider;
    bool quick;
} settings;

static void print_rows(int model, series *floor, series *taken, report *json)
{
    const char *name = models[model].name;
    double raw = series_summary(floor).p50, here = series_summary(&taken[HERE]).p50;
    for (int way = 0; way < WAYS; way++) {
        double us = series_summary(&taken[way]).p50;
        printf("| %-23s | %-10s | %9.1f | %9.0f | %6.1f | %8.0f %% |\n", way ? "" : models[model].what, ways[way], us,
               1e6 / us, us / raw, 100 * here / us);
        report_number(json, us, "%s_%s_us", name, way == HERE ? "here" : way == APART ? "apart" : "along");
    }
    report_number(json, series_summary(&taken[APART]).p50 / raw, "%s_apart_of_raw", name);
    report_number(json, series_summary(&taken[ALONG]).p50 / raw, "%s_along_of_raw", name);
    report_number(json, here / series_summary(&taken[ALONG]).p50, "%s_along_of_here", name);
}

static bool measure(const settings *o, raw_pair *raw, weft_agent *agent, int model, report *json)
{
    rig r;
    series floor = {0}, taken[WAYS] = {{0}};
    int64_t count = o->iterations / models[model].share > 0 ? o->iterations / models[model].share : 1;
    bool ok = open_rig(&r, agent, model);
    for (int way = 0; way < WAYS && ok; way++)
        ok = slice(&r, way, WARM_UP, NULL);
    for (int64_t i = 0; i < o->slices && ok; i++) {
        ok = raw_pair_trips(raw, MESSAGE_BYTES, 200, &floor) == 0;
        for (int way = 0; way < WAYS && ok; way++)
            ok = slice(&r, way, count, &taken[way]);
    }
    if (ok)
        print_rows(model, &floor, taken, json);
    series_fini(&floor);
    for (int way = 0; way < WAYS; way++)
        series_fini(&taken[way]);
    close_rig(&r);
    return ok;
}

static bool run(const settings *o)
{
    report json;
    raw_pair *raw = NULL;
    workers w;
    if (!report_open(&json, o->json))
        return false;
    bool ok = raw_pair_open(o->provider, 4096, &raw) == 0;
    if (ok && (ok = workers_open(NULL, 0, 1, &w))) {
        printf(
            "One iteration, forward, backward and SGD, medians; raw is a ping-pong of %d bytes (libfabric %s, %s)\n\n",
            MESSAGE_BYTES, raw_pair_version(raw), o->provider);
        printf("| model                   | the step   |        us | a second | of raw | of here    |\n"
               "|-------------------------|------------|-----------|-----------|--------|------------|\n");
        for (int model = 0; model < MODELS && ok; model++)
            ok = measure(o, raw, w.agent, model, &json);
        ok = workers_close(&w) && ok;
    }
    raw_pair_close(raw);
    return report_close(&json) && ok;
}

int main(int argc, char **argv)
{
    settings o = {.slices = 16, .iterations = 500, .provider = "tcp"};
    const cli_option options[] = {
        {"slices", CLI_INT, &o.slices, 1, 10000, NULL, "N", "turns of raw, here, apart, along", "16"},
        {"iterations", CLI_INT, &o.iterations, 1, 100000, NULL, "N", "in a slice; of the convnet a fiftieth", "500"},
        {"provider", CLI_TEXT, &o.provider, 0, 0, NULL, "NAME", "libfabric's provider for the raw side", "tcp"},
        {"json", CLI_TEXT, &o.json, 0, 0, NULL, "FILE", "write the numbers there", NULL},
        {"quick", CLI_FLAG, &o.quick, 0, 0, NULL, NULL, "a quarter of it", NULL},
    };
    const cli program = {
        .program = "iteration",
        .purpose = "training a model on another worker, against raw round trips and steps here",
        .example = "iteration --slices 8",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    if (workers_is_child())
        return workers_serve(functions, 1);
    if (o.quick)
        o.slices = (o.slices + 3) / 4;
    return run(&o) ? 0 : 1;
}
