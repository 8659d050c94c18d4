/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random_functions.c - what the workers of random programs can be called for. Every function but those that are
 * called by mistake takes the number of its entry first (after the reference, if it is called on one), and notes
 * that it ran.
 */
#include "rpc/random.h"
#include "tensors.h"

static life *self_of(void *user)
{
    return user;
}

static weft_status give_number(weft_call *call, entry *e, int64_t number)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(number)));
    e->gave = number;
    return entry_answers(e, WEFT_OK);
}

/* Keeps its worker busy. */
static void work(life *l, int64_t us)
{
    sleep_us((uint64_t)us);
    l->worked_ns += (uint64_t)us * 1000;
}

/* ---- At once -------------------------------------------------------------------------------------------------- */

static weft_status run_plain(weft_call *call, void *user)
{
    entry *e = entry_runs(call);
    return give_number(call, e, e->id + 1);
}

static weft_status run_all(weft_call *call, void *user)
{
    return give_number(call, entry_runs(call), weft_call_i64(call, 0) + 1);
}

static weft_status run_fail(weft_call *call, void *user)
{
    weft_status status = (weft_status)weft_call_i64(call, 1);
    if (status == WEFT_ERR_FORMAT)
        weft_call_fail(call, status, "as asked for");
    return entry_answers(entry_runs(call), status);
}

/* ---- Tensors -------------------------------------------------------------------------------------------------- */

static weft_status run_echo(weft_call *call, void *user)
{
    entry *e = entry_runs(call);
    work(self_of(user), weft_call_i64(call, 1));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 2))));
    return entry_answers(e, WEFT_OK);
}

/* A place serves one call; those of calls that fail on their way are not given again. */
static weft_tensor *land_in_place(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    life *l = self_of(user);
    if (index || dtype != WEFT_DTYPE_INT32 || shape.ndim != 1 || shape.dims[0] != PLACE_COUNT)
        return NULL;
    for (int i = 0; i < PLACES_MAX; i++) {
        if (l->place_given[i])
            continue;
        l->place_given[i] = true;
        return weft_tensor_ref(l->places[i]);
    }
    return NULL;
}

static weft_status run_place(weft_call *call, void *user)
{
    life *l = self_of(user);
    entry *e = entry_runs(call);
    weft_tensor *x = weft_call_tensor(call, 1);
    const int32_t *data = weft_tensor_data(x);
    int64_t sum = 0;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        sum += data[i];
    for (int i = 0; i < PLACES_MAX; i++)
        if (x == l->places[i])
            l->place_given[i] = false;
    return give_number(call, e, sum);
}

static weft_tensor *land_in_total(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    MUST_IN_JOB(index == 0 && dtype == WEFT_DTYPE_INT32 && shape.ndim == 1 && shape.dims[0] == PLACE_COUNT);
    return weft_tensor_ref(self_of(user)->total);
}

static weft_status run_sum(weft_call *call, void *user)
{
    life *l = self_of(user);
    entry *e = entry_runs(call);
    MUST_IN_JOB(weft_call_tensor(call, 1) == l->total);
    l->added += weft_call_i64(call, 2);
    return give_number(call, e, e->id + 1);
}

/* Gives the tensors back in the opposite order. */
static weft_status run_reverse(weft_call *call, void *user)
{
    entry *e = entry_runs(call);
    weft_tensors in = weft_call_tensors(call, 1);
    weft_tensor *out[TENSORS_MAX];
    MUST_IN_JOB(in.count <= TENSORS_MAX);
    for (size_t i = 0; i < in.count; i++)
        out[i] = in.items[in.count - 1 - i];
    weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){out, in.count})));
    return entry_answers(e, WEFT_OK);
}

/* ---- Values --------------------------------------------------------------------------------------------------- */

void fill_bytes(uint8_t *out, size_t size, int64_t number)
{
    for (size_t i = 0; i < size; i++)
        out[i] = (uint8_t)((uint64_t)number * 31 + i * 7 + i / 256);
}

static weft_status run_mixed(weft_call *call, void *user)
{
    entry *e = entry_runs(call);
    size_t size;
    const uint8_t *bytes = weft_call_bytes(call, 2, &size);
    weft_args list = weft_call_list(call, 3);
    uint8_t *wanted = malloc(size + 1);
    MUST_IN_JOB(wanted && strcmp(weft_call_string(call, 1), e->function) == 0 && weft_call_f64(call, 4) == 0.5);
    fill_bytes(wanted, size, e->id);
    MUST_IN_JOB(memcmp(wanted, bytes, size) == 0);
    free(wanted);
    MUST_IN_JOB(list.count == 2 && list.items[0].as.i64 == e->id && list.items[1].type == WEFT_TYPE_NULL);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(e->id + 1), weft_of_bytes(bytes, size)));
    e->gave = e->id + 1;
    return entry_answers(e, WEFT_OK);
}

/* ---- Many calls at once --------------------------------------------------------------------------------------- */

/* All elements of a call's row are its number. */
static void check_row(const entry *e, const weft_tensor *x, size_t row)
{
    int64_t count = weft_tensor_size(x, 1);
    const int32_t *data = (const int32_t *)weft_tensor_data(x) + (int64_t)row * count;
    for (int64_t i = 0; i < count; i++)
        MUST_IN_JOB(data[i] == (int32_t)e->id);
}

/* One in eight fails alone. */
static void answer_rows(weft_batch *batch)
{
    for (size_t i = 0; i < weft_batch_count(batch); i++) {
        entry *e = entry_of(weft_batch_call(batch, i));
        check_row(e, weft_batch_tensor(batch, 1), i);
        if (e->id % 8 == 5)
            weft_call_fail(weft_batch_call(batch, i), WEFT_ERR_FORMAT, "as its number says");
        entry_answers(e, e->id % 8 == 5 ? WEFT_ERR_FORMAT : WEFT_OK);
    }
}

/* Gives each call's number and one, and its row back. */
static void give_rows(weft_batch *batch)
{
    size_t n = weft_batch_count(batch);
    weft_tensor *numbers = tensor_zeros(WEFT_SHAPE((int64_t)n), WEFT_DTYPE_INT64);
    MUST_IN_JOB(numbers && n > 0 && weft_tensor_size(weft_batch_tensor(batch, 1), 0) == (int64_t)n);
    for (size_t i = 0; i < n; i++) {
        entry *e = entry_runs(weft_batch_call(batch, i));
        ((int64_t *)weft_tensor_data(numbers))[i] = e->gave = e->id + 1;
        check_row(e, weft_batch_tensor(batch, 1), i);
    }
    weft_batch_give(batch, 0, numbers);
    weft_batch_give(batch, 1, weft_batch_tensor(batch, 1));
    weft_tensor_unref(numbers);
}

static weft_status run_gather(weft_batch *batch, void *user)
{
    give_rows(batch);
    sleep_us((uint64_t)below(&self_of(user)->state, 600)); /* workers are few, and callbacks need one */
    answer_rows(batch);
    return WEFT_OK;
}

static weft_status run_gather_and_hold(weft_batch *batch, void *user)
{
    life *l = self_of(user);
    give_rows(batch);
    if (l->finishing) {
        answer_rows(batch);
        return WEFT_OK;
    }
    held_call *held = calloc(1, sizeof(*held));
    MUST_IN_JOB(held);
    held->batch = weft_batch_defer(batch);
    *l->held_end = held;
    l->held_end = &held->next;
    return WEFT_DEFERRED;
}

/* ---- Later ---------------------------------------------------------------------------------------------------- */

void release_one(life *l)
{
    held_call *held = l->held;
    if (!held)
        return;
    l->held = held->next;
    if (!l->held)
        l->held_end = &l->held;
    if (held->batch) {
        answer_rows(held->batch);
        weft_batch_finish(held->batch, WEFT_OK);
    } else {
        entry_answers(held->of, WEFT_OK);
        weft_call_finish(held->call, WEFT_OK);
    }
    free(held);
}

void release_all(life *l)
{
    while (l->held)
        release_one(l);
}

static weft_status run_hold(weft_call *call, void *user)
{
    life *l = self_of(user);
    entry *e = entry_runs(call);
    if (l->finishing)
        return give_number(call, e, e->id + 1);
    held_call *held = malloc(sizeof(*held));
    MUST_IN_JOB(held);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(e->id + 1)));
    e->gave = e->id + 1;
    e->keeps_none = once_in(&l->state, 2);
    *held = (held_call){.call = e->keeps_none ? weft_call_defer(call) : weft_call_defer_keeping(call), .of = e};
    *l->held_end = held;
    l->held_end = &held->next;
    return WEFT_DEFERRED;
}

static weft_status run_release(weft_call *call, void *user)
{
    release_one(self_of(user));
    return run_plain(call, user);
}

/* Who gave up tells it at once; only silences keep the news, and connections that break until they hold again. */
static void check_told_soon(const entry *e, const life *here)
{
    const job *j = now_playing;
    bool disturbed = j->shaken || is_excused(here) || is_excused(e->by) || e->attempts > 1;
    uint64_t since_ns = e->ended_ns > j->breaks_ns[1] ? e->ended_ns : j->breaks_ns[1];
    uint64_t most_ns = (uint64_t)TOLD_SOON_MS * NS_PER_MS + j->breaks_ns[1] - j->breaks_ns[0];
    if (e->ended && e->status && !disturbed)
        MUST_IN_JOB(now_ns() - since_ns <= most_ns);
}

/* Goes on until it is not wanted any more, or for so long. */
static weft_status run_linger(weft_call *call, void *user)
{
    entry *e = entry_runs(call);
    weft_future *unwanted = weft_call_cancellation(call);
    MUST_IN_JOB(unwanted);
    weft_status status = weft_future_wait(unwanted, weft_call_i64(call, 1));
    bool stopped = weft_future_done(unwanted);
    MUST_IN_JOB(status && (!stopped || weft_call_cancelled(call) || is_excused(user)));
    check_told_soon(e, user);
    weft_future_unref(unwanted);
    return stopped ? entry_answers(e, WEFT_ERR_CANCELLED) : give_number(call, e, e->id + 1);
}

static weft_status run_parts(weft_call *call, void *user)
{
    life *l = self_of(user);
    entry *e = entry_runs(call);
    int64_t sent = 0, wanted = weft_call_i64(call, 1);
    weft_future *unwanted = weft_call_cancellation(call);
    MUST_IN_JOB(unwanted);
    for (int tries = 0; sent < wanted && tries < 200; tries++) {
        weft_status status =
            weft_call_send_item(call, sent % 4 == 3 ? WEFT_VALUES(weft_of_i64(sent), weft_of_tensor(l->total))
                                                    : WEFT_VALUES(weft_of_i64(sent)));
        sent += !status;
        if (status == WEFT_ERR_AGAIN)
            status = weft_future_wait(unwanted, 1) == WEFT_ERR_TIMEOUT ? WEFT_OK : WEFT_ERR_CANCELLED;
        if (!status)
            continue;
        if (status != WEFT_ERR_CANCELLED && status != WEFT_ERR_STATE)
            MUST_IN_JOB(is_excused(l));
        break;
    }
    weft_future_unref(unwanted);
    return give_number(call, e, sent);
}

/* ---- Nested --------------------------------------------------------------------------------------------------- */

/* Passes the call on: `left` more workers. What is left of the time is for all of them. */
static weft_status run_hop(weft_call *call, void *user)
{
    life *l = self_of(user);
    entry *e = entry_runs(call);
    int64_t passed = 1, left = weft_call_i64(call, 1), time_left = weft_call_time_left(call);
    weft_values *got;
    if (left > 0) {
        l->agent = weft_call_agent(call); /* we may be called before our own opening is told */
        whom to;
        weft_target target = choose_target(l, &to);
        int64_t limit = choose_limit(l);
        const char *function = once_in(&l->state, 4) ? "linger" : "hop";
        entry *inner = entry_begin(l, function, to, limit);
        int64_t more = strcmp(function, "hop") == 0 ? left - 1 : below(&l->state, 3000);
        inner->parent = e;
        inner->waits = e->waits;
        if (time_left >= 0 && time_left < limit)
            inner->limit_ms = time_left > 0 ? time_left - 1 : 0;
        weft_rpc_options options = {.timeout_ms = limit, .parent = call, .wait_for_room = true};
        weft_error *error = NULL;
        options.error = &error;
        weft_status status = weft_rpc_sync(weft_call_agent(call), target, function,
                                           WEFT_VALUES(weft_of_i64(inner->id), weft_of_i64(more)), &options, &got);
        entry_end(inner, status, inner_of(error));
        check_told_soon(e, l); /* what is called for a call ends with it */
        if (status && once_in(&l->state, 2))
            weft_call_fail_with(call, error);
        weft_error_unref(error);
        if (status)
            return entry_answers(e, status);
        if (strcmp(function, "hop") == 0)
            MUST_OK(weft_values_get_i64(got, 0, &passed));
        weft_values_unref(got);
        passed++;
    }
    return give_number(call, e, passed);
}

/* ---- References ----------------------------------------------------------------------------------------------- */

/* Takes a handle among its own. */
static weft_status run_keep(weft_call *call, void *user)
{
    life *l = self_of(user);
    entry *e = entry_runs(call);
    weft_rref *rref = weft_call_rref(call, 2);
    check_confirmed(rref, e, e->by == l);
    if (!l->finishing) {
        hold(l, e->about);
        keep_handle(l, weft_rref_ref(rref), e->about, (int)(weft_call_i64(call, 1) % HANDLES_MAX));
    }
    return give_number(call, e, e->id + 1);
}

/* Reads the value behind a reference that it was given. */
static weft_status run_read(weft_call *call, void *user)
{
    life *l = self_of(user);
    entry *e = entry_runs(call);
    weft_values *got;
    int64_t value;
    check_confirmed(weft_call_rref(call, 1), e, e->by == l);
    hold(l, e->about); /* the call's handle is as good as ours */
    weft_status status = weft_rref_to_here(weft_call_rref(call, 1), weft_call_i64(call, 2), &got, NULL);
    let_go(l, e->about, NULL);
    if (status == WEFT_ERR_NOT_FOUND || status == WEFT_ERR_TYPE) /* a confirmed handle is always counted */
        MUST_IN_JOB(may_not_be(e->about) || (status == WEFT_ERR_TYPE && e->about->object));
    if (status)
        return entry_answers(e, status);
    MUST_OK(weft_values_get_i64(got, 0, &value));
    weft_values_unref(got);
    MUST_IN_JOB(value == e->about->number);
    return give_number(call, e, value);
}

/* On the owner of an object: its number. */
static weft_status run_use(weft_call *call, void *user)
{
    entry *e = entry_runs(call);
    void *object;
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &thing_type, 100, &object);
    if (status)
        return entry_answers(e, status);
    thing *t = object;
    MUST_IN_JOB(t == e->about && t->drops == 0 && t->made == 1);
    return give_number(call, e, t->number);
}

/* Gives one of its handles, or none. */
static weft_status run_lend(weft_call *call, void *user)
{
    life *l = self_of(user);
    entry *e = entry_runs(call);
    handle h = l->handles[weft_call_i64(call, 1) % HANDLES_MAX];
    if (!h.rref)
        return give_number(call, e, 0);
    e->about = h.of;
    weft_call_give(call, WEFT_VALUES(weft_of_rref(h.rref)));
    return entry_answers(e, WEFT_OK);
}

/* For rpc_remote, also on a reference: makes what its entry is about, an object or a value. */
static weft_status run_make(weft_call *call, void *user)
{
    entry *e = entry_runs(call);
    thing *t = e->about;
    work(self_of(user), weft_call_i64(call, weft_call_count(call) - 1));
    thing_made(t, self_of(user));
    entry_answers(e, WEFT_OK);
    if (t->object)
        weft_call_give_object(call, &thing_type, t);
    else
        weft_call_give(call, WEFT_VALUES(weft_of_i64(t->number)));
    return WEFT_OK;
}

/* ---- All of them ---------------------------------------------------------------------------------------------- */

static const weft_function table[] = {
    {.name = "plain", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_plain},
    {.name = "inline",
     .takes = {WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = run_plain,
     .flags = WEFT_FUNCTION_INLINE},
    {.name = "urgent",
     .takes = {WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = run_plain,
     .flags = WEFT_FUNCTION_URGENT},
    {.name = "lazy", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_plain, .flags = WEFT_FUNCTION_LAZY},
    {.name = "all", .takes = {WEFT_TYPE_I64, WEFT_TYPE_REST}, .gives = {WEFT_TYPE_I64}, .run = run_all},
    {.name = "fail", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_fail},
    {.name = "echo",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = run_echo},
    {.name = "place",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64},
     .run = run_place,
     .land = land_in_place},
    {.name = "sum",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = run_sum,
     .land = land_in_total,
     .flags = WEFT_FUNCTION_LAND_ADD},
    {.name = "hold", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_hold},
    {.name = "release", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_release},
    {.name = "linger", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_linger},
    {.name = "parts", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_parts},
    {.name = "hop", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_hop},
    {.name = "keep",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_RREF},
     .gives = {WEFT_TYPE_I64},
     .run = run_keep},
    {.name = "read",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_RREF, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = run_read},
    {.name = "use", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_use},
    {.name = "reverse", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSORS}, .gives = {WEFT_TYPE_TENSORS}, .run = run_reverse},
    {.name = "mixed",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_STRING, WEFT_TYPE_BYTES, WEFT_TYPE_LIST, WEFT_TYPE_F64},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_BYTES},
     .run = run_mixed},
    {.name = "gather",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .run_batch = run_gather,
     .batch = {.size = 3, .wait_us = 500}},
    {.name = "gather well",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .run_batch = run_gather,
     .batch = {.size = 5, .wait_us = 1000, .in_flight = 2}},
    {.name = "gather and hold",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .run_batch = run_gather_and_hold,
     .batch = {.size = 2, .wait_us = 2000}},
    {.name = "gather all",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .run_batch = run_gather,
     .batch = {.size = 4, .wait_us = 30000, .callers = (const int[]){0, 1}, .caller_count = 2}},
    {.name = "lend", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_ANY}, .run = run_lend},
    {.name = "derive",
     .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_REST},
     .run = run_make},
    {.name = "make", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_REST}, .run = run_make},
};

size_t give_functions(life *l)
{
    size_t count = sizeof(table) / sizeof(*table);
    MUST(count <= FUNCTIONS_MAX);
    for (size_t i = 0; i < count; i++) {
        l->functions[i] = table[i];
        l->functions[i].user = l;
    }
    return count;
}
