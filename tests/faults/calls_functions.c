/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls_functions.c - what every worker serves. Each function takes the id of its call first (after the reference,
 * if it is called on one), notes that it ran, and checks what came against the id.
 */
#include "rpc/must.h"
#include "faults/calls.h"
#include "tensors.h"

#include <pthread.h>

#define PLACE_WORDS 30000 /* of what lands at the callee */
#define SUM_COUNT 4096
#define RETAINED 16
#define HOLD_MOST_MS 400

/* ---- What came ------------------------------------------------------------------------------------------------ */

static int64_t runs(weft_call *call, calls_kind kind)
{
    int64_t id = weft_call_i64(call, 0);
    book_runs(id, kind, call);
    return id;
}

static weft_status answer(weft_call *call, int64_t id, int64_t number)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(number)));
    book_finishes(id);
    return WEFT_OK;
}

/* Bytes come back as they should have been sent. */
static weft_status run_plain(weft_call *call, void *user)
{
    calls_kind kind = *(const calls_kind *)user;
    int64_t id = runs(call, kind);
    size_t size, count;
    const void *bytes = weft_call_bytes(call, 1, &size);
    count = size / sizeof(uint32_t);
    uint32_t *words = malloc(size + 1);
    MUST(words);
    if (size)
        memcpy(words, bytes, size);
    if (words_wrong_at(words, count, id, ARGUMENT) < count)
        violation(id, "its argument of %zu bytes is wrong", size);
    words_fill(words, count, id, RESULT);
    weft_call_give(call, WEFT_VALUES(weft_of_i64(id + 1), weft_of_bytes(words, size)));
    free(words);
    book_finishes(id);
    return WEFT_OK;
}

/* Takes its time before it looks, so that whoever gave up meanwhile has let go of what it sent. */
static weft_status run_echo(weft_call *call, void *user)
{
    int64_t id = runs(call, ECHO);
    sleep_ms((uint64_t)weft_call_i64(call, 1));
    check_tensor(weft_call_tensor(call, 2), id, ARGUMENT, "its argument");
    weft_tensor *result = make_tensor((size_t)weft_tensor_numel(weft_call_tensor(call, 2)), id, RESULT);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(result)));
    weft_tensor_unref(result);
    book_finishes(id);
    return WEFT_OK;
}

static weft_status run_haul(weft_call *call, void *user)
{
    int64_t id = runs(call, HAUL);
    weft_tensor *result = make_tensor((size_t)weft_call_i64(call, 1), id, RESULT);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(result)));
    weft_tensor_unref(result);
    book_finishes(id);
    return WEFT_OK;
}

static weft_status run_several(weft_call *call, void *user)
{
    int64_t id = runs(call, SEVERAL);
    weft_tensors in = weft_call_tensors(call, 1);
    weft_tensor *out[4];
    MUST(in.count <= 4);
    for (size_t i = 0; i < in.count; i++) {
        check_tensor(in.items[i], id, ARGUMENT + 16 * (unsigned)i, "one of its arguments");
        out[i] = make_tensor((size_t)weft_tensor_numel(in.items[i]), id, RESULT + 16 * (unsigned)i);
    }
    weft_call_give(call, WEFT_VALUES(weft_of_tensors((weft_tensors){out, in.count})));
    for (size_t i = 0; i < in.count; i++)
        weft_tensor_unref(out[i]);
    book_finishes(id);
    return WEFT_OK;
}

static weft_status run_all(weft_call *call, void *user)
{
    int64_t first = weft_call_i64(call, 0), id = first + weft_agent_rank(weft_call_agent(call));
    book_runs(id, ALL, call);
    check_tensor(weft_call_tensor(call, 1), first, ARGUMENT, "its argument");
    return answer(call, id, id + 1);
}

static weft_status run_fail(weft_call *call, void *user)
{
    int64_t id = runs(call, FAIL);
    weft_status status = (weft_status)weft_call_i64(call, 1);
    if (id % 2)
        weft_call_fail(call, status, "as asked for");
    book_finishes(id);
    return status;
}

/* ---- What lands here ------------------------------------------------------------------------------------------ */

static void leave_place(void *room)
{
    room_end_unwritten(room);
}

/* A place of its own for each call: nobody writes to it after its last reference went. */
static weft_tensor *land_in_place(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    if (dtype != WEFT_DTYPE_INT32 || shape.ndim != 1 || shape.dims[0] != PLACE_WORDS)
        return NULL;
    calls_room *room = room_make(PLACE_WORDS, -1);
    return tensor_wrap(shape, dtype, room_words(room), NULL, leave_place, room);
}

static weft_status run_place(weft_call *call, void *user)
{
    int64_t id = runs(call, PLACE);
    sleep_ms(chance_below(3));
    check_tensor(weft_call_tensor(call, 1), id, ARGUMENT, "what landed");
    return answer(call, id, id + 1);
}

static struct {
    pthread_mutex_t lock;
    weft_tensor *total;
    int64_t added; /* by handlers that ran: as much must have been added to each element */
} sum = {.lock = PTHREAD_MUTEX_INITIALIZER};

static weft_tensor *sum_total(void)
{
    pthread_mutex_lock(&sum.lock);
    if (!sum.total)
        sum.total = tensor_zeros(WEFT_SHAPE(SUM_COUNT), WEFT_DTYPE_INT64);
    MUST(sum.total);
    pthread_mutex_unlock(&sum.lock);
    return sum.total;
}

static weft_tensor *land_in_sum(int from_rank, size_t index, weft_dtype dtype, weft_shape shape, void *user)
{
    if (dtype != WEFT_DTYPE_INT64 || shape.ndim != 1 || shape.dims[0] != SUM_COUNT)
        return NULL;
    return weft_tensor_ref(sum_total());
}

static weft_status run_sum(weft_call *call, void *user)
{
    int64_t id = runs(call, SUM);
    pthread_mutex_lock(&sum.lock);
    sum.added += weft_call_i64(call, 2);
    pthread_mutex_unlock(&sum.lock);
    return answer(call, id, id + 1);
}

static void check_sum(void)
{
    const int64_t *data = weft_tensor_data(sum_total());
    for (int64_t i = 0; i < SUM_COUNT; i++)
        if (data[i] != sum.added) {
            violation(-1, "element %lld of the sum is %lld, and %lld were added", (long long)i, (long long)data[i],
                      (long long)sum.added);
            break;
        }
    weft_tensor_unref(sum.total);
    sum.total = NULL;
}

/* ---- What is kept after the end ------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    weft_tensor *items[RETAINED];
    int64_t ids[RETAINED];
} retained = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void retain(weft_tensor *tensor, int64_t id)
{
    size_t at = (size_t)chance_below(RETAINED);
    pthread_mutex_lock(&retained.lock);
    weft_tensor *old = retained.items[at];
    int64_t old_id = retained.ids[at];
    retained.items[at] = tensor;
    retained.ids[at] = id;
    pthread_mutex_unlock(&retained.lock);
    if (old)
        check_tensor(old, old_id, ARGUMENT, "an argument that was kept");
    weft_tensor_unref(old);
}

/* Where the caller is oneself, the argument is the caller's own. */
static weft_status run_retain(weft_call *call, void *user)
{
    int64_t id = runs(call, RETAIN);
    weft_tensor *x = weft_call_tensor(call, 1);
    bool own = weft_call_from(call) == weft_agent_rank(weft_call_agent(call));
    check_tensor(x, id, ARGUMENT, "its argument");
    retain(own ? tensor_clone(x) : weft_tensor_ref(x), id);
    return answer(call, id, id + 1);
}

/* ---- Many at once --------------------------------------------------------------------------------------------- */

static void check_rows(weft_batch *batch)
{
    weft_tensor *rows = weft_batch_tensor(batch, 1);
    for (size_t i = 0; i < weft_batch_count(batch); i++) {
        weft_tensor *row = tensor_select(rows, 0, (int64_t)i);
        check_tensor(row, weft_call_i64(weft_batch_call(batch, i), 0), ARGUMENT, "its row");
        weft_tensor_unref(row);
    }
}

static void answer_rows(weft_batch *batch)
{
    weft_tensor *rows = weft_batch_tensor(batch, 1);
    size_t count = weft_batch_count(batch), width = (size_t)weft_tensor_size(rows, 1);
    weft_tensor *numbers = tensor_zeros(WEFT_SHAPE((int64_t)count), WEFT_DTYPE_INT64);
    MUST(numbers);
    check_rows(batch);
    for (size_t i = 0; i < count; i++) {
        int64_t id = weft_call_i64(weft_batch_call(batch, i), 0);
        ((int64_t *)weft_tensor_data(numbers))[i] = id + 1;
        words_fill((uint32_t *)weft_tensor_data(rows) + i * width, width, id, RESULT);
        book_finishes(id);
    }
    weft_batch_give(batch, 0, numbers);
    weft_batch_give(batch, 1, rows);
    weft_tensor_unref(numbers);
}

static weft_status run_gather(weft_batch *batch, void *user)
{
    for (size_t i = 0; i < weft_batch_count(batch); i++)
        runs(weft_batch_call(batch, i), GATHER);
    answer_rows(batch);
    return WEFT_OK;
}

/* ---- Later ---------------------------------------------------------------------------------------------------- */

typedef struct held {
    struct held *next;
    weft_call *call; /* or */
    weft_batch *batch;
    int64_t id;
    uint64_t due_ms;
    bool keeps;
} held;

static struct {
    pthread_mutex_t lock;
    pthread_t thread;
    held *first;
    bool over;
} later = {.lock = PTHREAD_MUTEX_INITIALIZER};

static weft_status hold(held what)
{
    held *h = malloc(sizeof(*h));
    MUST(h);
    *h = what;
    h->due_ms = now_ms() + chance_below(HOLD_MOST_MS);
    pthread_mutex_lock(&later.lock);
    h->next = later.first;
    later.first = h;
    pthread_mutex_unlock(&later.lock);
    return WEFT_DEFERRED;
}

static weft_status run_hold(weft_call *call, void *user)
{
    int64_t id = runs(call, HOLD);
    bool keeps = chance_below(2);
    check_tensor(weft_call_tensor(call, 1), id, ARGUMENT, "its argument");
    weft_call_give(call, WEFT_VALUES(weft_of_i64(id + 1)));
    return hold(
        (held){.call = keeps ? weft_call_defer_keeping(call) : weft_call_defer(call), .id = id, .keeps = keeps});
}

static weft_status run_gather_later(weft_batch *batch, void *user)
{
    for (size_t i = 0; i < weft_batch_count(batch); i++)
        runs(weft_batch_call(batch, i), GATHER_LATER);
    check_rows(batch);
    return hold((held){.batch = weft_batch_defer(batch), .id = -1});
}

static void finish(held *h)
{
    if (h->batch) {
        answer_rows(h->batch);
        weft_batch_finish(h->batch, WEFT_OK);
    } else {
        if (h->keeps)
            check_tensor(weft_call_tensor(h->call, 1), h->id, ARGUMENT, "the argument that it kept");
        book_finishes(h->id);
        weft_call_finish(h->call, WEFT_OK);
    }
    free(h);
}

/* One that is due; NULL if none is. */
static held *take_due(bool all, bool *none)
{
    held **at, *due = NULL;
    uint64_t now = now_ms();
    pthread_mutex_lock(&later.lock);
    for (at = &later.first; *at && !all && (*at)->due_ms > now; at = &(*at)->next)
        continue;
    due = *at;
    if (due)
        *at = due->next;
    *none = !later.first && later.over;
    pthread_mutex_unlock(&later.lock);
    return due;
}

static void *finish_all(void *arg)
{
    bool none = false;
    while (!none) {
        held *due = take_due(false, &none);
        if (due)
            finish(due), none = false;
        else
            sleep_ms(2);
    }
    return arg;
}

void functions_begin(void)
{
    MUST(pthread_create(&later.thread, NULL, finish_all, NULL) == 0);
}

void functions_end(void)
{
    pthread_mutex_lock(&later.lock);
    later.over = true;
    pthread_mutex_unlock(&later.lock);
    pthread_join(later.thread, NULL);
    for (size_t i = 0; i < RETAINED; i++) {
        if (retained.items[i])
            check_tensor(retained.items[i], retained.ids[i], ARGUMENT, "an argument that was kept");
        weft_tensor_unref(retained.items[i]);
    }
    check_sum();
}

/* ---- In parts, for long, for others --------------------------------------------------------------------------- */

static weft_status run_linger(weft_call *call, void *user)
{
    int64_t id = runs(call, LINGER);
    weft_future *gone = weft_call_cancellation(call);
    MUST(gone);
    weft_status status = weft_future_wait(gone, weft_call_i64(call, 1));
    (void)status;
    bool cancelled = weft_future_done(gone);
    weft_future_unref(gone);
    if (!cancelled)
        return answer(call, id, id + 1);
    book_finishes(id);
    return WEFT_ERR_CANCELLED;
}

static weft_status send_part(weft_call *call, int64_t id, int64_t number)
{
    weft_tensor *tensor = make_tensor(number % 4 == 3 ? 20000 : 100, id, RESULT + 16 * (unsigned)number);
    weft_status status = weft_call_send_item(call, WEFT_VALUES(weft_of_i64(number), weft_of_tensor(tensor)));
    weft_tensor_unref(tensor);
    return status;
}

static weft_status run_stream(weft_call *call, void *user)
{
    int64_t id = runs(call, STREAM), sent = 0, wanted = weft_call_i64(call, 1);
    weft_future *gone = weft_call_cancellation(call);
    MUST(gone);
    while (sent < wanted && !weft_future_done(gone)) {
        weft_status status = send_part(call, id, sent);
        if (status == WEFT_ERR_AGAIN)
            status = weft_future_wait(gone, 1) == WEFT_ERR_TIMEOUT ? WEFT_OK : WEFT_ERR_CANCELLED;
        else
            sent += !status;
        if (status)
            break;
    }
    weft_future_unref(gone);
    if (sent == wanted)
        return answer(call, id, sent);
    book_finishes(id);
    return WEFT_ERR_CANCELLED;
}

/* Passes the call on: `left` more workers, and then a plain one. */
static weft_status run_hop(weft_call *call, void *user)
{
    int64_t id = runs(call, HOP), left = weft_call_i64(call, 1), passed = 0;
    if (left == 0)
        return answer(call, id, 1);
    calls_plan plan = plan_call(weft_call_agent(call));
    plan.retry.attempts = 0;
    int64_t inner = book_begin(HOP, &plan, 1);
    if (inner < 0)
        return answer(call, id, 1);
    weft_error *error = NULL;
    weft_values *values = NULL;
    const weft_rpc_options options = {
        .timeout_ms = plan.limit_ms, .parent = call, .wait_for_room = true, .error = &error};
    atomic_fetch_add(&self.seat->under_way, 1);
    weft_status status = weft_rpc_sync(weft_call_agent(call), plan.target, "hop",
                                       WEFT_VALUES(weft_of_i64(inner), weft_of_i64(left - 1)), &options, &values);
    if (!status_fits(HOP, status, true))
        violation(inner, "it may not end with %s", weft_status_name(status));
    if (!status && (weft_values_get_i64(values, 0, &passed) != WEFT_OK || passed < 1 || passed > left))
        violation(inner, "its result is %lld", (long long)passed);
    book_end(inner, status, inner_of(error));
    atomic_fetch_sub(&self.seat->under_way, 1);
    weft_values_unref(values);
    if (status && inner % 2)
        weft_call_fail_with(call, error);
    weft_error_unref(error);
    if (status)
        return book_finishes(id), status;
    return answer(call, id, passed + 1);
}

/* ---- All of them ---------------------------------------------------------------------------------------------- */

static const calls_kind plain_kinds[] = {PLAIN, INLINE, URGENT, LAZY};
#define PLAIN_FUNCTION(at, text, how)                                                                                  \
    {                                                                                                                  \
        .name = (text), .takes = {WEFT_TYPE_I64, WEFT_TYPE_BYTES}, .gives = {WEFT_TYPE_I64, WEFT_TYPE_BYTES},          \
        .run = run_plain, .flags = (how), .user = (void *)&plain_kinds[at]                                             \
    }

const weft_function calls_functions[] = {
    PLAIN_FUNCTION(0, "plain", 0),
    PLAIN_FUNCTION(1, "inline", WEFT_FUNCTION_INLINE),
    PLAIN_FUNCTION(2, "urgent", WEFT_FUNCTION_URGENT),
    PLAIN_FUNCTION(3, "lazy", WEFT_FUNCTION_LAZY),
    {.name = "echo",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = run_echo},
    {.name = "haul", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_haul},
    {.name = "place",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64},
     .run = run_place,
     .land = land_in_place},
    {.name = "sum",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR, WEFT_TYPE_I64},
     .gives = {WEFT_TYPE_I64},
     .run = run_sum,
     .land = land_in_sum,
     .flags = WEFT_FUNCTION_LAND_ADD},
    {.name = "several", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSORS}, .gives = {WEFT_TYPE_TENSORS}, .run = run_several},
    {.name = "gather",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .run_batch = run_gather,
     .batch = {.size = 4, .wait_us = 500, .in_flight = 2}},
    {.name = "gather later",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
     .run_batch = run_gather_later,
     .batch = {.size = 3, .wait_us = 2000, .in_flight = 2}},
    {.name = "stream", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_stream},
    {.name = "hop", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_hop},
    {.name = "hold", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_I64}, .run = run_hold},
    {.name = "linger", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_linger},
    {.name = "fail", .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_fail},
    {.name = "retain", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_I64}, .run = run_retain},
    {.name = "all", .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_I64}, .run = run_all},
    {.name = "make", .takes = {WEFT_TYPE_I64, WEFT_TYPE_BOOL}, .gives = {WEFT_TYPE_REST}, .run = run_make},
    {.name = "use", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_I64}, .run = run_use},
    {.name = "keep",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_BOOL, WEFT_TYPE_RREF},
     .gives = {WEFT_TYPE_I64},
     .run = run_keep},
    {.name = "read",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_RREF},
     .gives = {WEFT_TYPE_I64},
     .run = run_read},
};
const size_t calls_function_count = sizeof(calls_functions) / sizeof(*calls_functions);
