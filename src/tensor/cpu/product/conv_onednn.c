/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conv_onednn.c - convolution by oneDNN, in the layouts that it likes best.
 *
 * Tensors outside are plain NCHW and OIHW; a plan says for each of its arrays whether it must be reordered on the way
 * in or out. On plain layouts oneDNN takes a product over unfolded images instead, several times slower. Plans are made
 * once for each set of sizes and kept.
 */
#include "base/alloc.h"
#include "tensor/cpu/product/onednn.h"

#include "base/list.h"
#include "base/mutex.h"
#include "tensor/cpu/product/libraries.h"

#include <stdlib.h>
#include <string.h>

#define ARRAYS 4      /* x, weight, y, bias */
#define PLANS_MAX 512 /* a large model has some 200 */

typedef struct plan_key {
    wfi_conv_sizes sizes;
    int64_t kind, has_bias, threads; /* a plan is cut for a number of threads */
} plan_key;

typedef struct plan_array {
    int role; /* DNNL_ARG_... */
    bool used, written;
    wfi_layout *plain, *inner; /* owned; NULL if not used */
    size_t inner_size;
    dnnl_primitive_t reorder; /* NULL: the plain layout will do */
} plan_array;

typedef struct conv_plan {
    wfi_list by_age;
    plan_key key;
    _Atomic int users; /* the cache is one */
    dnnl_primitive_t primitive;
    wfi_layout *scratch; /* owned */
    plan_array arrays[ARRAYS];
} conv_plan;

/*
 * Locking: `lock` covers the list of plans and the engine's making. A plan does not change once it is in the list, and
 * is run by any number of threads at once: scratch memory belongs to the run. It goes when its last user leaves.
 */
static struct {
    wfi_mutex lock;
    wfi_list plans; /* most recently used first */
    size_t count;
    dnnl_engine_t engine; /* NULL: oneDNN would not give one */
} cache;
static pthread_once_t cache_once = PTHREAD_ONCE_INIT;

static void cache_init(void)
{
    wfi_mutex_init(&cache.lock);
    wfi_list_init(&cache.plans);
    if (dnnl_engine_create(&cache.engine, dnnl_cpu, 0) != dnnl_success)
        cache.engine = NULL;
}

static weft_status status_of(dnnl_status_t status)
{
    if (status == dnnl_success)
        return WEFT_OK;
    return status == dnnl_out_of_memory ? WEFT_ERR_MEMORY : WEFT_ERR_UNSUPPORTED;
}

static void plan_release(conv_plan *plan)
{
    if (atomic_fetch_sub(&plan->users, 1) != 1)
        return;
    for (int i = 0; i < ARRAYS; i++) {
        if (plan->arrays[i].reorder)
            dnnl_primitive_destroy(plan->arrays[i].reorder);
        wfi_layout_destroy(plan->arrays[i].plain);
        wfi_layout_destroy(plan->arrays[i].inner);
    }
    wfi_layout_destroy(plan->scratch);
    if (plan->primitive)
        dnnl_primitive_destroy(plan->primitive);
    free(plan);
}

/* --- making a plan --- */

/* `any` leaves the order to oneDNN, except for the bias, which has only one. */
static dnnl_status_t describe_one(int ndim, const dnnl_dims_t dims, dnnl_format_tag_t tag, wfi_layout **any,
                                  wfi_layout **plain)
{
    dnnl_status_t status = wfi_layout_create(ndim, dims, ndim == 1 ? dnnl_a : dnnl_format_tag_any, any);
    return status == dnnl_success ? wfi_layout_create(ndim, dims, tag, plain) : status;
}

static dnnl_status_t describe(const plan_key *key, wfi_conv_descs *d, conv_plan *plan)
{
    const wfi_conv_sizes *s = &key->sizes;
    dnnl_dims_t x = {s->batch, s->groups * s->in, s->image[0], s->image[1]};
    dnnl_dims_t y = {s->batch, s->groups * s->out, s->result[0], s->result[1]};
    dnnl_dims_t grouped = {s->groups, s->out, s->in, s->kernel[0], s->kernel[1]};
    dnnl_dims_t bias = {s->groups * s->out};
    bool one = s->groups == 1; /* then the weight is described without that dimension */
    for (int i = 0; i < 2; i++) {
        d->stride[i] = s->stride[i];
        d->dilation[i] = s->dilation[i] - 1; /* oneDNN counts the gaps */
        d->padding[i] = s->padding[i];
    }
    dnnl_status_t status = describe_one(4, x, dnnl_nchw, &d->x, &plan->arrays[0].plain);
    if (status == dnnl_success)
        status = describe_one(one ? 4 : 5, one ? grouped + 1 : grouped, one ? dnnl_oihw : dnnl_goihw, &d->weight,
                              &plan->arrays[1].plain);
    if (status == dnnl_success)
        status = describe_one(4, y, dnnl_nchw, &d->y, &plan->arrays[2].plain);
    if (status == dnnl_success && key->has_bias)
        status = describe_one(1, bias, dnnl_a, &d->bias, &plan->arrays[3].plain);
    return status;
}

static void destroy_descs(wfi_conv_descs *d)
{
    wfi_layout_destroy(d->x);
    wfi_layout_destroy(d->weight);
    wfi_layout_destroy(d->y);
    wfi_layout_destroy(d->bias);
}

/* The descriptor of the primitive. */
static dnnl_status_t create_pd(const plan_key *key, const wfi_conv_descs *d, dnnl_primitive_desc_t *out)
{
    dnnl_primitive_attr_t attr;
    dnnl_primitive_desc_t hint = NULL;
    dnnl_status_t status = dnnl_primitive_attr_create(&attr);
    if (status != dnnl_success)
        return status;
    (void)dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user);
    if (key->kind != WFI_CONV_FORWARD) /* oneDNN wants the descriptor of the forward computation for the gradients */
        status = wfi_conv_primitive_desc(cache.engine, WFI_CONV_FORWARD, d, NULL, NULL, &hint);
    if (status == dnnl_success)
        status = wfi_conv_primitive_desc(cache.engine, (wfi_conv_kind)key->kind, d, attr, hint, out);
    if (hint)
        dnnl_primitive_desc_destroy(hint);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

/* Which argument of oneDNN each array is, and which of them the primitive writes. */
static void assign_roles(conv_plan *plan)
{
    static const int roles[3][ARRAYS] = {
        [WFI_CONV_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
        [WFI_CONV_BACKWARD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST, 0},
        [WFI_CONV_BACKWARD_WEIGHT] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_BIAS},
    };
    static const bool written[3][ARRAYS] = {
        [WFI_CONV_FORWARD] = {false, false, true, false},
        [WFI_CONV_BACKWARD_DATA] = {true, false, false, false},
        [WFI_CONV_BACKWARD_WEIGHT] = {false, true, false, true},
    };
    for (int i = 0; i < ARRAYS; i++) {
        plan->arrays[i].role = roles[plan->key.kind][i];
        plan->arrays[i].written = written[plan->key.kind][i];
        plan->arrays[i].used = i < 3 || plan->key.has_bias;
    }
}

static dnnl_status_t add_reorder(plan_array *array, const_dnnl_primitive_desc_t pd)
{
    const wfi_layout *inner = dnnl_primitive_desc_query_md(pd, dnnl_query_exec_arg_md, array->role);
    dnnl_status_t status = wfi_layout_clone(inner, &array->inner);
    if (status != dnnl_success)
        return status;
    array->inner_size = dnnl_memory_desc_get_size(array->inner);
    if (dnnl_memory_desc_equal(array->inner, array->plain))
        return dnnl_success;
    dnnl_primitive_desc_t reorder;
    const wfi_layout *from = array->written ? array->inner : array->plain;
    const wfi_layout *to = array->written ? array->plain : array->inner;
    status = dnnl_reorder_primitive_desc_create(&reorder, from, cache.engine, to, cache.engine, NULL);
    if (status != dnnl_success)
        return status;
    status = dnnl_primitive_create(&array->reorder, reorder);
    dnnl_primitive_desc_destroy(reorder);
    return status;
}

/* Creates the primitive, and the reorders of the arrays whose layout it does not take as they are. */
static dnnl_status_t create_primitives(conv_plan *plan, const_dnnl_primitive_desc_t pd)
{
    dnnl_status_t status =
        wfi_layout_clone(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0), &plan->scratch);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&plan->primitive, pd);
    for (int i = 0; i < ARRAYS && status == dnnl_success; i++) {
        if (plan->arrays[i].used)
            status = add_reorder(&plan->arrays[i], pd);
    }
    return status;
}

/* Creates the plan of a convolution. *out: for the caller, which releases it. */
static weft_status plan_create(const plan_key *key, conv_plan **out)
{
    wfi_conv_descs descs = {0};
    dnnl_primitive_desc_t pd;
    conv_plan *plan = wfi_calloc(1, sizeof(*plan));
    if (!plan)
        return WEFT_ERR_MEMORY;
    wfi_list_init(&plan->by_age);
    plan->key = *key;
    atomic_init(&plan->users, 1);
    assign_roles(plan);
    dnnl_status_t status = describe(key, &descs, plan);
    if (status == dnnl_success)
        status = create_pd(key, &descs, &pd);
    destroy_descs(&descs);
    if (status == dnnl_success) {
        status = create_primitives(plan, pd);
        dnnl_primitive_desc_destroy(pd);
    }
    if (status != dnnl_success) {
        plan_release(plan);
        return status_of(status);
    }
    *out = plan;
    return WEFT_OK;
}

/* --- the cache --- */

static conv_plan *cache_find(const plan_key *key)
{
    wfi_assert_held(&cache.lock);
    for (wfi_list *link = cache.plans.next; link != &cache.plans; link = link->next) {
        conv_plan *plan = wfi_container_of(link, conv_plan, by_age);
        if (memcmp(&plan->key, key, sizeof(*key)) != 0)
            continue;
        wfi_list_remove(&plan->by_age);
        wfi_list_push_front(&cache.plans, &plan->by_age);
        atomic_fetch_add(&plan->users, 1);
        return plan;
    }
    return NULL;
}

/* Two threads may make the same plan at once; then both are kept until they age. */
static void cache_add(conv_plan *plan)
{
    conv_plan *oldest = NULL;
    wfi_mutex_lock(&cache.lock);
    atomic_fetch_add(&plan->users, 1);
    wfi_list_push_front(&cache.plans, &plan->by_age);
    if (++cache.count > PLANS_MAX) {
        oldest = wfi_container_of(cache.plans.prev, conv_plan, by_age);
        wfi_list_remove(&oldest->by_age);
        cache.count--;
    }
    wfi_mutex_unlock(&cache.lock);
    if (oldest)
        plan_release(oldest);
}

static weft_status plan_get(const plan_key *key, conv_plan **out)
{
    pthread_once(&cache_once, cache_init);
    if (!cache.engine)
        return WEFT_ERR_UNSUPPORTED;
    wfi_mutex_lock(&cache.lock);
    conv_plan *plan = cache_find(key);
    wfi_mutex_unlock(&cache.lock);
    if (!plan) {
        weft_status status = plan_create(key, &plan);
        if (status != WEFT_OK)
            return status;
        cache_add(plan);
    }
    *out = plan;
    return WEFT_OK;
}

/* --- running a plan --- */

typedef struct conv_run {
    const conv_plan *plan;
    dnnl_stream_t stream;
    wfi_storage *rooms[ARRAYS + 1]; /* for reordered arrays, and scratch */
    dnnl_memory_t plain[ARRAYS], inner[ARRAYS], scratch;
    void *data[ARRAYS];
} conv_run;

static weft_status make_memory(const wfi_layout *layout, void *data, dnnl_memory_t *out)
{
    return status_of(dnnl_memory_create(out, layout, cache.engine, data));
}

static weft_status run_reorder(conv_run *run, int i)
{
    const plan_array *array = &run->plan->arrays[i];
    dnnl_exec_arg_t args[2] = {{DNNL_ARG_FROM, array->written ? run->inner[i] : run->plain[i]},
                               {DNNL_ARG_TO, array->written ? run->plain[i] : run->inner[i]}};
    return status_of(dnnl_primitive_execute(array->reorder, run->stream, 2, args));
}

static weft_status prepare_array(conv_run *run, int i)
{
    const plan_array *array = &run->plan->arrays[i];
    if (!array->used)
        return WEFT_OK;
    if (!array->reorder)
        return make_memory(array->plain, run->data[i], &run->inner[i]);
    weft_status status = wfi_storage_create(WFI_MEMORY_HOST, 0, array->inner_size, &run->rooms[i]);
    if (status == WEFT_OK)
        status = make_memory(array->plain, run->data[i], &run->plain[i]);
    if (status == WEFT_OK)
        status = make_memory(array->inner, wfi_storage_data(run->rooms[i]), &run->inner[i]);
    if (status == WEFT_OK && !array->written)
        status = run_reorder(run, i);
    return status;
}

static weft_status prepare(conv_run *run)
{
    weft_status status = status_of(dnnl_stream_create(&run->stream, cache.engine, dnnl_stream_default_flags));
    for (int i = 0; i < ARRAYS && status == WEFT_OK; i++)
        status = prepare_array(run, i);
    if (status != WEFT_OK)
        return status;
    size_t scratch = dnnl_memory_desc_get_size(run->plan->scratch);
    status = wfi_storage_create(WFI_MEMORY_HOST, 0, scratch, &run->rooms[ARRAYS]);
    if (status == WEFT_OK)
        status = make_memory(run->plan->scratch, wfi_storage_data(run->rooms[ARRAYS]), &run->scratch);
    return status;
}

static weft_status execute(conv_run *run)
{
    dnnl_exec_arg_t args[ARRAYS + 1];
    int count = 0;
    for (int i = 0; i < ARRAYS; i++) {
        if (run->plan->arrays[i].used)
            args[count++] = (dnnl_exec_arg_t){run->plan->arrays[i].role, run->inner[i]};
    }
    args[count++] = (dnnl_exec_arg_t){DNNL_ARG_SCRATCHPAD, run->scratch};
    weft_status status = status_of(dnnl_primitive_execute(run->plan->primitive, run->stream, count, args));
    for (int i = 0; i < ARRAYS && status == WEFT_OK; i++) {
        if (run->plan->arrays[i].written && run->plan->arrays[i].reorder)
            status = run_reorder(run, i);
    }
    return status == WEFT_OK ? status_of(dnnl_stream_wait(run->stream)) : status;
}

static void finish(conv_run *run)
{
    for (int i = 0; i < ARRAYS; i++) {
        dnnl_memory_destroy(run->plain[i]);
        dnnl_memory_destroy(run->inner[i]);
    }
    dnnl_memory_destroy(run->scratch);
    for (int i = 0; i <= ARRAYS; i++)
        wfi_storage_unref(run->rooms[i]);
    dnnl_stream_destroy(run->stream);
}

static weft_status run_plan(const plan_key *key, const wfi_conv_data *data)
{
    conv_plan *plan;
    weft_status status = plan_get(key, &plan);
    if (status != WEFT_OK)
        return status;
    conv_run run = {.plan = plan, .data = {data->x, data->weight, data->y, data->bias}};
    status = prepare(&run);
    if (status == WEFT_OK)
        status = execute(&run);
    finish(&run);
    plan_release(plan);
    return status;
}

/* 2.6.3 is 20603. */
static int onednn_version(void)
{
    const dnnl_version_t *version = dnnl_version();
    return version->major * 10000 + version->minor * 100 + version->patch;
}

/*
 * In the backward pass to the images with stride 1, oneDNN 3.7.2 (Debian 13) counts only the first element of each row
 * and column of the kernel. 2.6.3 and 3.12.1 are right. No version between them was tested, so weft trusts none.
 */
static bool is_wrong_in_onednn(wfi_conv_kind kind, const wfi_conv_sizes *sizes)
{
    int version = onednn_version();
    return kind == WFI_CONV_BACKWARD_DATA && version > 20603 && version < 31201 &&
           sizes->stride[0] * sizes->stride[1] == 1 && sizes->kernel[0] * sizes->kernel[1] > 1;
}

/*
 * oneDNN 3.0 to 3.13.0 can end the process by SIGFPE: it divides whole numbers, and without AMX the divisor is 0
 * (brg_blocking_t::est_eff_1x1 in jit_brgemm_conv_bwd_utils.cpp). It happens in the backward pass to the images of a
 * strided 1x1 convolution with these numbers of channels. ResNet-50 has such ones.
 */
static bool crashes_onednn(wfi_conv_kind kind, const wfi_conv_sizes *sizes)
{
    static const int64_t channels[][2] = {{1024, 2048}, {1024, 512}, {256, 1024}, {512, 1024}, {512, 2048}};
    int version = onednn_version();
    bool is_strided = sizes->stride[0] > 1 || sizes->stride[1] > 1;
    if (version < 30000 || version > 31300 || kind != WFI_CONV_BACKWARD_DATA || !is_strided || sizes->kernel[0] != 1 ||
        sizes->kernel[1] != 1)
        return false;
    for (size_t i = 0; i < sizeof(channels) / sizeof(channels[0]); i++)
        if (sizes->in == channels[i][0] && sizes->out == channels[i][1])
            return true;
    return false;
}

weft_status wfi_conv_onednn(wfi_conv_kind kind, const wfi_conv_sizes *sizes, const wfi_conv_data *data)
{
    if (is_wrong_in_onednn(kind, sizes) || crashes_onednn(kind, sizes))
        return WEFT_ERR_UNSUPPORTED;
    wfi_libraries host;
    plan_key key; /* compared as bytes: made of int64 alone, so without holes */
    memset(&key, 0, sizeof(key));
    key.sizes = *sizes;
    key.kind = kind;
    key.has_bias = data->bias && kind != WFI_CONV_BACKWARD_DATA;
    key.threads = wfi_libraries_enter(&host);
    weft_status status = run_plan(&key, data);
    wfi_libraries_leave(&host);
    return status;
}
