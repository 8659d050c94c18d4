/* SPDX-License-Identifier: Apache-2.0 */
/*
 * groups_ops.c - operations of groups with their oracle. Each element of a member's input follows from the member, the
 * place and the operation, and is a small integer. So every member computes the right result directly, and sums are
 * exact in every dtype and order.
 */
#include "faults/groups.h"

#include "coll/coll.h"
#include "prng.h"
#include "tensors.h"

#include <stdio.h>

#define LIMIT_FOREVER_ONE_IN 16

const char *const op_names[OPS] = {"barrier", "allreduce", "reduce",     "broadcast", "allgather", "reduce_scatter",
                                   "gather",  "scatter",   "all_to_all", "send/recv", "values"};

/* ---- Contents ---------------------------------------------------------------------------------------------------- */

/* The element at `place` of the input of a member. */
static int element(const op_plan *plan, size_t member, int64_t place)
{
    uint64_t x = (uint64_t)place * 37 + member * 101 + plan->salt * 13;
    if (plan->dtype == WEFT_DTYPE_BOOL)
        return (x ^ x >> 3) % 3 == 0;
    if (plan->how == WEFT_OP_PROD)
        return (int[]){1, 2, -1, 1}[(x ^ x >> 2) % 4];
    if (plan->dtype == WEFT_DTYPE_UINT8) /* minimum and maximum are those of bytes */
        return (int)((x ^ x >> 4) % 16);
    return (int)((x ^ x >> 4) % 16) - 7;
}

static double reduced(const op_plan *plan, size_t size, int64_t place)
{
    double value = element(plan, 0, place);
    for (size_t member = 1; member < size; member++) {
        double next = element(plan, member, place);
        bool boolean = plan->dtype == WEFT_DTYPE_BOOL;
        if (plan->how == WEFT_OP_MIN || (boolean && plan->how == WEFT_OP_PROD))
            value = next < value ? next : value;
        else if (plan->how == WEFT_OP_MAX || boolean)
            value = next > value ? next : value;
        else if (plan->how == WEFT_OP_PROD)
            value *= next;
        else
            value += next;
    }
    return plan->how == WEFT_OP_AVG ? value / (double)size : value;
}

/* A small number as an element of any dtype: integers wrap around; complex numbers get it twice. */
static void put(weft_dtype dtype, void *data, int64_t i, double value)
{
    int64_t whole = (int64_t)value;
    switch (dtype) {
    case WEFT_DTYPE_FLOAT32:
        ((float *)data)[i] = (float)value;
        return;
    case WEFT_DTYPE_FLOAT64:
        ((double *)data)[i] = value;
        return;
    case WEFT_DTYPE_INT64:
        ((int64_t *)data)[i] = whole;
        return;
    case WEFT_DTYPE_INT32:
        ((int32_t *)data)[i] = (int32_t)whole;
        return;
    case WEFT_DTYPE_INT16:
        ((int16_t *)data)[i] = (int16_t)whole;
        return;
    case WEFT_DTYPE_INT8:
    case WEFT_DTYPE_UINT8:
    case WEFT_DTYPE_BOOL:
        ((uint8_t *)data)[i] = (uint8_t)whole;
        return;
    case WEFT_DTYPE_COMPLEX64:
        ((float *)data)[2 * i] = (float)value;
        ((float *)data)[2 * i + 1] = (float)(0 - value);
        return;
    case WEFT_DTYPE_COMPLEX128:
        ((double *)data)[2 * i] = value;
        ((double *)data)[2 * i + 1] = 0 - value;
        return;
    default:
        abort();
    }
}

typedef double (*value_fn)(const op_run *run, int64_t i);

/* A contiguous tensor with these elements. */
static weft_tensor *make(const op_run *run, int64_t count, value_fn value)
{
    weft_dtype dtype = run->plan.dtype;
    bool half = dtype == WEFT_DTYPE_FLOAT16 || dtype == WEFT_DTYPE_BFLOAT16;
    weft_tensor *x = coll_empty(half ? WEFT_DTYPE_FLOAT64 : dtype, count);
    void *data = weft_tensor_data(x);
    for (int64_t i = 0; i < count; i++)
        put(half ? WEFT_DTYPE_FLOAT64 : dtype, data, i, value(run, i));
    if (!half)
        return x;
    weft_tensor *converted = tensor_to(x, dtype);
    MUST(converted);
    weft_tensor_unref(x);
    return converted;
}

/* The same elements, every other one of a longer tensor, if the plan says so. Takes over `x`. */
static weft_tensor *lay_out(const op_run *run, weft_tensor *x)
{
    int64_t count = weft_tensor_numel(x);
    if (!run->plan.strided || count < 2)
        return x;
    weft_tensor *wide = tensor_empty(WEFT_SHAPE(count, 2), weft_tensor_dtype(x));
    weft_tensor *strided = tensor_select(wide, 1, 0);
    MUST_OK(weft_tensor_assign(strided, x));
    weft_tensor_unref(wide);
    weft_tensor_unref(x);
    return strided;
}

/* ---- Values of inputs and outputs -------------------------------------------------------------------------------- */

static double own(const op_run *run, int64_t i)
{
    return element(&run->plan, run->me, i);
}

static double of_root(const op_run *run, int64_t i)
{
    return element(&run->plan, run->plan.root, i);
}

static double sum(const op_run *run, int64_t i)
{
    return reduced(&run->plan, run->size, i);
}

static double gathered(const op_run *run, int64_t i)
{
    return element(&run->plan, (size_t)(i / run->plan.count), i % run->plan.count);
}

static double scattered(const op_run *run, int64_t i)
{
    return element(&run->plan, run->plan.root, (int64_t)run->me * run->plan.count + i);
}

static double sum_part(const op_run *run, int64_t i)
{
    return reduced(&run->plan, run->size, (int64_t)run->me * run->plan.count + i);
}

static double exchanged(const op_run *run, int64_t i)
{
    return element(&run->plan, (size_t)(i / run->plan.count), (int64_t)run->me * run->plan.count + i % run->plan.count);
}

static double of_previous(const op_run *run, int64_t i)
{
    return element(&run->plan, (run->me + run->size - 1) % run->size, i);
}

static double nothing(const op_run *run, int64_t i)
{
    return 1;
}

/* The input and the output of each operation. NULL: nothing that is looked at. */
typedef struct op_form {
    bool whole_input, whole_output; /* they have a part for each member */
    bool in_place;                  /* the input becomes the output */
    value_fn result;
    bool root_alone; /* the result is the root's */
} op_form;

static const op_form forms[OPS] = {
    [OP_ALLREDUCE] = {.in_place = true, .result = sum},
    [OP_REDUCE] = {.in_place = true, .result = sum, .root_alone = true},
    [OP_BROADCAST] = {.in_place = true, .result = of_root},
    [OP_ALLGATHER] = {.whole_output = true, .result = gathered},
    [OP_REDUCE_SCATTER] = {.whole_input = true, .result = sum_part},
    [OP_GATHER] = {.whole_output = true, .result = gathered, .root_alone = true},
    [OP_SCATTER] = {.whole_input = true, .result = scattered},
    [OP_ALL_TO_ALL] = {.whole_input = true, .whole_output = true, .result = exchanged},
    [OP_RING] = {.result = of_previous},
};

/* ---- Plans ------------------------------------------------------------------------------------------------------- */

static int64_t choose_count(uint64_t chance, int64_t most)
{
    switch (chance % 8) {
    case 0:
        return 0;
    case 1:
        return 1;
    case 2:
    case 3:
    case 4:
        return (int64_t)(chance / 8 % 600);
    case 5:
    case 6:
        return (int64_t)(chance / 8 % 20000) % most;
    default:
        return (int64_t)(chance / 8 % (uint64_t)most);
    }
}

op_plan op_choose(uint64_t seed, size_t size, int64_t most)
{
    uint64_t chance = prng_mix(seed), more = prng_mix(seed + 1);
    op_plan plan = {.kind = (op_kind)(chance % OPS),
                    .dtype = (weft_dtype)(chance / 16 % (WEFT_DTYPE_COMPLEX128 + 1)),
                    .how = (weft_op)(chance / 256 % (WEFT_OP_PROD + 1)),
                    .root = chance / 4096 % size,
                    .salt = (unsigned)(chance >> 32 & 1023),
                    .limit_ms = 60000};
    bool parts = forms[plan.kind].whole_input || forms[plan.kind].whole_output;
    plan.count = choose_count(more, parts ? most / (int64_t)size : most);
    if (!coll_can(plan.dtype, plan.how) || (coll_is_complex(plan.dtype) && plan.how == WEFT_OP_PROD))
        plan.how = WEFT_OP_SUM;
    if (plan.kind == OP_BARRIER)
        plan.count = 0;
    if (plan.kind == OP_VALUES)
        plan.count %= 5000;
    plan.strided = (more >> 40) % 12 == 0;
    if ((more >> 48) % LIMIT_FOREVER_ONE_IN == 0)
        plan.limit_ms = WEFT_FOREVER;
    return plan;
}

void op_describe(const op_plan *plan, char *out, size_t room)
{
    snprintf(out, room, "%s of %lld %s, %d, root %zu, salt %u%s, limit %lld", op_names[plan->kind],
             (long long)plan->count, weft_dtype_name(plan->dtype), (int)plan->how, plan->root, plan->salt,
             plan->strided ? ", strided" : "", (long long)plan->limit_ms);
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static weft_status start(weft_group *group, op_run *run)
{
    const op_plan *p = &run->plan;
    weft_future **out = &run->futures[0];
    size_t next = (run->me + 1) % run->size, previous = (run->me + run->size - 1) % run->size;
    weft_status status;
    switch (p->kind) {
    case OP_BARRIER:
        return weft_group_barrier_async(group, p->limit_ms, out);
    case OP_ALLREDUCE:
        return weft_group_allreduce_async(group, run->x, p->how, p->limit_ms, out);
    case OP_REDUCE:
        return weft_group_reduce_async(group, run->x, p->how, p->root, p->limit_ms, out);
    case OP_BROADCAST:
        return weft_group_broadcast_async(group, run->x, p->root, p->limit_ms, out);
    case OP_ALLGATHER:
        return weft_group_allgather_async(group, run->x, run->y, p->limit_ms, out);
    case OP_REDUCE_SCATTER:
        return weft_group_reduce_scatter_async(group, run->x, run->y, p->how, p->limit_ms, out);
    case OP_GATHER:
        return weft_group_gather_async(group, run->x, run->y, p->root, p->limit_ms, out);
    case OP_SCATTER:
        return weft_group_scatter_async(group, run->x, run->y, p->root, p->limit_ms, out);
    case OP_ALL_TO_ALL:
        return weft_group_all_to_all_async(group, run->x, run->y, p->limit_ms, out);
    case OP_RING:
        status = weft_group_send_async(group, run->x, next, p->limit_ms, out);
        if (!status && !weft_group_recv_async(group, run->y, previous, p->limit_ms, &run->futures[1]))
            run->futures_count = 2;
        return status;
    default:
        return weft_group_allgather_values_async(
            group, WEFT_VALUES(weft_of_i64((int64_t)run->me * 1000 + p->salt), weft_of_tensor(run->x)), p->limit_ms,
            out);
    }
}

static void drop(op_run *run)
{
    for (size_t i = 0; i < run->futures_count; i++)
        weft_future_unref(run->futures[i]);
    weft_tensor_unref(run->x);
    weft_tensor_unref(run->y);
}

weft_status op_begin(weft_group *group, const op_plan *plan, op_run *run)
{
    *run = (op_run){
        .plan = *plan, .size = weft_group_size(group), .me = (size_t)weft_group_index(group), .futures_count = 1};
    const op_form *form = &forms[plan->kind];
    int64_t whole = plan->count * (int64_t)run->size;
    if (plan->kind != OP_BARRIER)
        run->x = lay_out(run, make(run, form->whole_input ? whole : plan->count, own));
    if (form->result && !form->in_place)
        run->y = lay_out(run, make(run, form->whole_output ? whole : plan->count, nothing));
    weft_status status = start(group, run);
    if (status) {
        run->futures_count = 0;
        drop(run);
    }
    return status;
}

/* The first place where they differ; -1: they are alike. */
static int64_t wrong_at(const weft_tensor *is, weft_tensor *wanted)
{
    weft_tensor *plain = tensor_contiguous((weft_tensor *)is);
    size_t bytes = weft_tensor_nbytes(wanted);
    const uint8_t *a = weft_tensor_data(plain), *b = weft_tensor_data(wanted);
    int64_t at = -1;
    if (weft_tensor_nbytes(plain) != bytes || (bytes && memcmp(a, b, bytes) != 0))
        for (size_t i = 0; at < 0; i++)
            if (i >= bytes || a[i] != b[i])
                at = (int64_t)(i / weft_dtype_size(weft_tensor_dtype(wanted)));
    weft_tensor_unref(plain);
    return at;
}

static void check_tensor(const op_run *run, const weft_tensor *is, value_fn value, const char *what, const char *where)
{
    weft_tensor *wanted = make(run, weft_tensor_numel(is), value);
    int64_t at = wrong_at(is, wanted);
    if (at >= 0) {
        char text[160];
        op_describe(&run->plan, text, sizeof(text));
        fault(FAULT_WRONG, "%s: %s at member %zu of %zu: %s is %g instead of %g at %lld", where, text, run->me,
              run->size, what, weft_tensor_get_f64(is, at), weft_tensor_get_f64(wanted, at), (long long)at);
    }
    weft_tensor_unref(wanted);
}

static void check_values(op_run *run, const char *where)
{
    const weft_values *all = weft_future_values(run->futures[0]);
    size_t me = run->me, count = weft_values_count(all);
    if (count != run->size)
        fault(FAULT_WRONG, "%s: values of %zu members instead of %zu", where, count, run->size);
    for (run->me = 0; run->me < run->size && run->me < count; run->me++) {
        weft_args list;
        if (weft_values_get_list(all, run->me, &list) || list.count != 2 ||
            list.items[0].as.i64 != (int64_t)run->me * 1000 + run->plan.salt)
            fault(FAULT_WRONG, "%s: the values of member %zu are not those that it gave", where, run->me);
        else
            check_tensor(run, list.items[1].as.tensor, own, "a tensor among the values", where);
    }
    run->me = me;
}

static void check(op_run *run, const char *where)
{
    const op_form *form = &forms[run->plan.kind];
    bool mine = form->result && (!form->root_alone || run->plan.root == run->me);
    if (run->plan.kind == OP_VALUES)
        check_values(run, where);
    if (run->x)
        check_tensor(run, run->x, mine && form->in_place ? form->result : own, "its tensor", where);
    if (run->y)
        check_tensor(run, run->y, mine ? form->result : nothing, "its output", where);
}

weft_status op_end(op_run *run, const char *where)
{
    char text[160];
    weft_status status = WEFT_OK;
    op_describe(&run->plan, text, sizeof(text));
    faults_wait *wait = wait_begins(run->plan.limit_ms, "%s: %s", where, text);
    for (size_t i = 0; i < run->futures_count; i++) {
        weft_status one = weft_future_wait(run->futures[i], WEFT_FOREVER);
        status = status ? status : one;
    }
    wait_ends(wait);
    if (run->plan.kind == OP_RING && run->futures_count < 2)
        status = status ? status : WEFT_ERR_CANCELLED; /* the group ended between the two */
    if (!status)
        check(run, where);
    drop(run);
    return status;
}

weft_status op_do(weft_group *group, const op_plan *plan, const char *where)
{
    op_run run;
    weft_status status = op_begin(group, plan, &run);
    return status ? status : op_end(&run, where);
}
