/* SPDX-License-Identifier: Apache-2.0 */
/*
 * data_parallel.c - a training step whose gradients are averaged over the members of a group while the backward pass goes on, beside what
 * it consists of: the same step without a group ("compute"), and the reductions of its buckets alone ("communication"). Nothing can
 * take less time than the longer of the two; the aim is at most a tenth more.
 *
 * The three are measured in turn, each between barriers, so that a time is that of the slowest member. The members are processes of this
 * machine; or, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, the program is started once for each of them, as on hosts
 * with a link of their own (perf/README.md).
 */
#include "common/measure.h"

#include <weft/weft.h>

#include "cli.h"

#include <math.h>
#include <stdlib.h>

enum { MEMBERS_MOST = 64, BUCKETS_MOST = 4096, PATIENCE_MS = 120000, WARM_UP = 2, END_MS = 20000 };
typedef enum way { COMPUTE, COMMUNICATION, STEP, WAYS } way;
static const char *const way_names[WAYS] = {"compute", "communication", "step"};

typedef struct settings {
    int64_t members, layers, width, batch, steps, bucket_kib;
    bool bfloat16;
} settings;

/* One member. */
typedef struct rig {
    const settings *o;
    weft_agent *agent;
    weft_group *group, *beside; /* that of the module; that of barriers, and of communication alone */
    weft_module *model;
    weft_data_parallel *parallel;
    weft_optimizer *sgd;
    weft_tensor *x, *target;
    weft_tensor *buckets[BUCKETS_MOST]; /* as large as those of a pass */
    size_t bucket_count;
} rig;

/* Prints what failed, with its detail, which may be NULL; releases the detail. Returns false. */
static bool complain(const char *what, weft_status status, weft_error *error)
{
    fprintf(stderr, "data_parallel: %s: %s\n", what, error ? weft_error_message(error) : weft_status_text(status));
    weft_error_unref(error);
    return false;
}

/* ---- One step of each kind ---------------------------------------------------------------------------------------- */

static weft_status reduce(const rig *r, weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                          weft_future **out)
{
    if (r->o->bfloat16)
        return weft_bucket_bfloat16(group, bucket, index, timeout_ms, out, NULL);
    return weft_group_allreduce_async(group, bucket, WEFT_OP_AVG, timeout_ms, out);
}

/* A weft_bucket_fn: notes how large each bucket is. */
static weft_status reduce_and_note(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                                   weft_future **out, void *arg)
{
    rig *r = arg;
    if (index >= BUCKETS_MOST)
        return WEFT_ERR_TOO_LARGE;
    weft_tensor *known = r->buckets[index];
    if (!known || weft_tensor_numel(known) != weft_tensor_numel(bucket)) {
        weft_tensor_unref(known);
        r->buckets[index] = weft_tensor_zeros(WEFT_SHAPE(weft_tensor_numel(bucket)), weft_tensor_dtype(bucket));
        if (!r->buckets[index])
            return WEFT_ERR_MEMORY;
    }
    r->bucket_count = index + 1;
    return reduce(r, group, bucket, index, timeout_ms, out);
}

static weft_status compute(rig *r, bool averages)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    if (averages)
        weft_tape_set_hooks(t, weft_data_parallel_hooks(r->parallel));
    weft_backward(t, weft_mse_loss(t, weft_module_forward(t, r->model, r->x), r->target));
    weft_status st = weft_tape_status(t);
    if (st)
        weft_error_print(weft_tape_error(t), stderr);
    else
        st = weft_optimizer_apply(r->sgd, weft_tape_gradients(t, weft_module_parameters(r->model)));
    weft_tape_close(t);
    return st;
}

static weft_status communicate(rig *r)
{
    weft_future *futures[BUCKETS_MOST];
    size_t begun = 0;
    weft_status st = WEFT_OK;
    for (; begun < r->bucket_count && !st; begun += !st)
        st = reduce(r, r->beside, r->buckets[begun], begun, PATIENCE_MS, &futures[begun]);
    for (size_t i = 0; i < begun; i++) {
        weft_status ended = weft_future_wait(futures[i], WEFT_FOREVER);
        st = st ? st : ended;
        weft_future_unref(futures[i]);
    }
    return st;
}

/* From when all begin to when all have ended. */
static weft_status take(rig *r, way which, double *us)
{
    weft_status st = weft_group_barrier(r->beside, PATIENCE_MS);
    double start = measure_now_us();
    if (!st)
        st = which == COMMUNICATION ? communicate(r) : compute(r, which == STEP);
    if (!st)
        st = weft_group_barrier(r->beside, PATIENCE_MS);
    *us = measure_now_us() - start;
    return st ? (complain(way_names[which], st, NULL), st) : WEFT_OK;
}

/* ---- A member ----------------------------------------------------------------------------------------------------- */

static weft_module *make_model(const settings *o)
{
    weft_module *layers[256];
    for (int64_t i = 0; i < o->layers; i++) {
        layers[2 * i] = weft_linear_create(o->width, o->width, false, (uint64_t)i, NULL);
        layers[2 * i + 1] = weft_tanh_create();
    }
    return weft_sequential_create(layers, (size_t)(2 * o->layers), NULL);
}

static weft_status open_groups(rig *r)
{
    weft_data_parallel_options options = {.bucket_bytes = (size_t)r->o->bucket_kib << 10,
                                          .reduce = reduce_and_note,
                                          .reduce_arg = r,
                                          .timeout_ms = PATIENCE_MS};
    weft_error *error = NULL;
    weft_status st = weft_group_open(r->agent, "gradients", NULL, 0, &r->group, NULL);
    if (!st)
        st = weft_group_open(r->agent, "beside", NULL, 0, &r->beside, NULL);
    if (!st)
        st = weft_data_parallel_create(r->group, r->model, &options, &r->parallel, &error);
    if (st)
        complain("the groups", st, error);
    return st;
}

static bool open_rig(rig *r, const settings *o, weft_agent *agent)
{
    *r = (rig){.o = o, .agent = agent};
    r->model = make_model(o);
    r->x = weft_tensor_empty(WEFT_SHAPE(o->batch, o->width), WEFT_DTYPE_FLOAT32);
    r->target = weft_tensor_zeros(WEFT_SHAPE(o->batch, o->width), WEFT_DTYPE_FLOAT32);
    if (!r->model || !r->x || !r->target)
        return complain("the model", WEFT_ERR_MEMORY, NULL);
    weft_status st = weft_tensor_fill_normal(r->x, 1 + (uint64_t)weft_agent_rank(agent), 0, 1);
    r->sgd = weft_optimizer_create(weft_module_parameters(r->model),
                                   &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1e-3}, NULL);
    return !st && r->sgd ? open_groups(r) == WEFT_OK : complain("the optimizer", WEFT_ERR_MEMORY, NULL);
}

static void close_rig(rig *r)
{
    weft_data_parallel_unref(r->parallel);
    weft_group_close(r->group);
    weft_group_close(r->beside);
    weft_optimizer_unref(r->sgd);
    weft_module_unref(r->model);
    weft_tensor_unref(r->x);
    weft_tensor_unref(r->target);
    for (size_t i = 0; i < BUCKETS_MOST; i++)
        weft_tensor_unref(r->buckets[i]);
}

static void show(const rig *r, series taken[WAYS])
{
    double bytes = 0, ms[WAYS];
    for (size_t i = 0; i < r->bucket_count; i++)
        bytes += (double)weft_tensor_nbytes(r->buckets[i]) / (r->o->bfloat16 ? 2 : 1);
    for (int which = 0; which < WAYS; which++)
        ms[which] = series_summary(&taken[which]).p50 / 1e3;
    double bound = fmax(ms[COMPUTE], ms[COMMUNICATION]);
    printf("%d members, %.1f MiB of gradients in %zu buckets%s, medians of %lld:\n", weft_agent_world_size(r->agent),
           bytes / (1 << 20), r->bucket_count, r->o->bfloat16 ? " of bfloat16" : "", (long long)r->o->steps);
    printf("compute %.1f ms, communication %.1f ms (%.2f of compute), step %.1f ms: %.3f of the longer, aim 1.1\n",
           ms[COMPUTE], ms[COMMUNICATION], ms[COMMUNICATION] / ms[COMPUTE], ms[STEP], ms[STEP] / bound);
}

static bool measure(rig *r, series taken[WAYS])
{
    for (int64_t i = -WARM_UP; i < r->o->steps; i++)
        for (int which = WAYS; which-- > 0;) { /* a step first: it shows the buckets */
            double us;
            if (take(r, (way)which, &us))
                return false;
            if (i >= 0)
                series_add(&taken[which], us);
        }
    return true;
}

static bool run_member(const settings *o, weft_agent *agent)
{
    rig r;
    series taken[WAYS] = {{0}};
    bool ok = open_rig(&r, o, agent) && measure(&r, taken);
    if (ok && weft_agent_rank(agent) == 0)
        show(&r, taken);
    for (int which = 0; which < WAYS; which++)
        series_fini(&taken[which]);
    close_rig(&r);
    return ok;
}

/* ---- The job ------------------------------------------------------------------------------------------------------ */

static bool run(const settings *o)
{
    weft_job *job = NULL;
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_status st = WEFT_OK;
    if (!getenv("RANK"))
        st = weft_job_open(&(weft_job_options){.count = (int)o->members - 1}, &job, &error);
    if (st)
        return complain("starting the members", st, error);
    st = weft_agent_open(&(weft_agent_options){.job = job}, &agent, &error);
    bool ok = st ? complain("opening the agent", st, error) : run_member(o, agent);
    if (agent && (st = weft_agent_close(agent)))
        ok = complain("closing the agent", st, NULL);
    if (job && (st = weft_job_close(job, END_MS, NULL)))
        ok = complain("ending the members", st, NULL);
    return ok;
}

int main(int argc, char **argv)
{
    settings o = {.members = 2, .layers = 16, .width = 512, .batch = 256, .steps = 20, .bucket_kib = 1024};
    const cli_option options[] = {
        {"members", CLI_INT, &o.members, 2, MEMBERS_MOST, NULL, "N", "processes here, without RANK", "2"},
        {"layers", CLI_INT, &o.layers, 1, 128, NULL, "N", "linear layers, each with tanh", "16"},
        {"width", CLI_INT, &o.width, 1, 16384, NULL, "N", "of a layer, in and out", "512"},
        {"batch-size", CLI_INT, &o.batch, 1, 65536, NULL, "N", "rows of each member's step", "256"},
        {"bucket-kib", CLI_INT, &o.bucket_kib, 1, 1 << 20, NULL, "N", "KiB of a bucket", "1024"},
        {"steps", CLI_INT, &o.steps, 1, 100000, NULL, "N", "turns of the three that are timed", "20"},
        {"bfloat16", CLI_FLAG, &o.bfloat16, 0, 0, NULL, NULL, "gradients travel as bfloat16", NULL},
    };
    const cli program = {
        .program = "data_parallel",
        .purpose = "a step with averaged gradients, against computing alone and reducing alone",
        .example = "OMP_NUM_THREADS=1 data_parallel --steps 50",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    return run(&o) ? 0 : 1;
}
