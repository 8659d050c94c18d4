/* SPDX-License-Identifier: Apache-2.0 */
/* random_calls.c - the steps of a program that call others, and what must come back. */
#include "rpc/random.h"
#include "tensors.h"

#define SCRIBBLE 0x5c

/* ---- Choices -------------------------------------------------------------------------------------------------- */

static int ranks_of(const job *j)
{
    return j->actors;
}

const char *name_of_actor(int actor)
{
    static const char *const of_elastic[] = {"guest0", "guest1", "guest2", "guest3", "guest4", "guest5"};
    static const char *const of_static[] = {"worker0", "worker1", "worker2", "worker3", "worker4", "worker5"};
    return now_playing->elastic ? of_elastic[actor] : of_static[actor];
}

weft_target choose_target(life *l, whom *to)
{
    int rank = below(&l->state, ranks_of(now_playing));
    *to = (whom){.rank = rank, .actor = -1};
    switch (below(&l->state, 5)) {
    case 0:
        *to = (whom){.rank = now_playing->elastic ? -1 : rank, .actor = rank};
        return weft_to_name(name_of_actor(rank));
    case 1:
        if (!l->known[rank].incarnation || once_in(&l->state, 6))
            l->known[rank] = weft_agent_worker(l->agent, rank);
        if (l->known[rank].incarnation) {
            to->incarnation = l->known[rank].incarnation;
            return weft_to_worker(l->known[rank]);
        }
        return weft_to_rank(rank);
    default:
        return weft_to_rank(rank);
    }
}

int64_t choose_limit(life *l)
{
    static const int64_t limits[] = {2, 20, 100, 1000, PATIENT_MS, PATIENT_MS, 2 * PATIENT_MS, 2 * PATIENT_MS};
    return limits[below(&l->state, 8)];
}

static weft_retry choose_retry(life *l, entry *e)
{
    if (!once_in(&l->state, 8))
        return (weft_retry){0};
    e->attempts = 1 + below(&l->state, 4);
    e->attempt_ms = once_in(&l->state, 2) ? 1 + below(&l->state, 200) : 0;
    return (weft_retry){.attempts = e->attempts, .pause_ms = 1 + below(&l->state, 30), .attempt_ms = e->attempt_ms};
}

/* ---- Beginning and ending ------------------------------------------------------------------------------------- */

static void check_tensor(const entry *e, const weft_values *values)
{
    weft_tensor *got;
    MUST_OK(weft_values_get_tensor(values, 0, &got));
    MUST_IN_JOB(!e->land || e->land == got);
    MUST_IN_JOB(weft_tensor_nbytes(got) == weft_tensor_nbytes(e->sent));
    MUST_IN_JOB(memcmp(weft_tensor_data(e->sent), weft_tensor_data(got), weft_tensor_nbytes(got)) == 0);
}

/* The row that it sent. */
static void check_gathered(const entry *e, const weft_values *values)
{
    weft_tensor *got;
    MUST_OK(weft_values_get_tensor(values, 1, &got));
    MUST_IN_JOB(weft_tensor_numel(got) == weft_tensor_numel(e->sent) && (!e->land || e->land == got));
    for (int64_t i = 0; i < weft_tensor_numel(got); i++)
        MUST_IN_JOB(((const int32_t *)weft_tensor_data(got))[i] == (int32_t)e->id);
}

static void check_reversed(const entry *e, const weft_values *values)
{
    weft_tensors got;
    MUST_OK(weft_values_get_tensors(values, 0, &got));
    MUST_IN_JOB(got.count > 0 && got.count <= TENSORS_MAX);
    for (size_t i = 0; i < got.count; i++) {
        const int32_t *data = weft_tensor_data(got.items[i]);
        int64_t count = weft_tensor_numel(got.items[i]), value = e->id + (int64_t)(got.count - 1 - i);
        MUST_IN_JOB(count > 0 && data[0] == (int32_t)value && data[count - 1] == (int32_t)value);
    }
}

static void check_mixed(const entry *e, const weft_values *values)
{
    const void *data;
    size_t size;
    MUST_OK(weft_values_get_bytes(values, 1, &data, &size));
    uint8_t *wanted = malloc(size + 1);
    MUST_IN_JOB(wanted);
    fill_bytes(wanted, size, e->id);
    MUST_IN_JOB(memcmp(wanted, data, size) == 0);
    free(wanted);
}

static void check_result(entry *e, const weft_values *values)
{
    int64_t number = 0;
    if (strcmp(e->function, "echo") == 0)
        check_tensor(e, values);
    else if (strcmp(e->function, "reverse") == 0)
        check_reversed(e, values);
    else if (strcmp(e->function, "lend") == 0)
        take_lent(e, values);
    else if (strncmp(e->function, "gather", 6) == 0)
        check_gathered(e, values);
    if (weft_values_type(values, 0) != WEFT_TYPE_I64)
        return;
    MUST_OK(weft_values_get_i64(values, 0, &number));
    MUST_IN_JOB(e->attempts > 1 || number == e->gave);
    if (strcmp(e->function, "parts") == 0)
        MUST_IN_JOB(e->attempts > 1 || e->parts_seen == number);
    else if (strcmp(e->function, "place") == 0)
        MUST_IN_JOB(number == weft_tensor_numel(e->sent) * *(const int32_t *)weft_tensor_data(e->sent));
    else if (strcmp(e->function, "hop") == 0)
        MUST_IN_JOB(number >= 1 && number <= 6);
    else if (strcmp(e->function, "read") == 0 || strcmp(e->function, "use") == 0)
        MUST_IN_JOB(number == e->about->number);
    else if (strcmp(e->function, "lend") == 0)
        MUST_IN_JOB(number == 0);
    else
        MUST_IN_JOB(number == e->id + 1);
    if (strcmp(e->function, "mixed") == 0)
        check_mixed(e, values);
}

static void start_another(life *l)
{
    whom to;
    if (!l->agent || l->leaving || l->killed)
        return;
    weft_target target = choose_target(l, &to);
    entry *e = entry_begin(l, "plain", to, choose_limit(l));
    start(e, target, WEFT_VALUES(weft_of_i64(e->id)), (weft_rpc_options){0});
}

/* From now on nobody else may touch what was sent, or where results were to land: that it is not read shows at who
 * would read it, that it is not written shows when the entry is forgotten. */
static void scribble(const entry *e)
{
    if (e->sent)
        memset(weft_tensor_data(e->sent), SCRIBBLE, weft_tensor_nbytes(e->sent));
    if (e->land)
        memset(weft_tensor_data(e->land), SCRIBBLE, weft_tensor_nbytes(e->land));
}

static void check_scribble(const entry *e)
{
    if (!e->land || !e->done_calls)
        return;
    const uint8_t *data = weft_tensor_data(e->land);
    MUST_IN_JOB(data[0] == SCRIBBLE && memcmp(data, data + 1, weft_tensor_nbytes(e->land) - 1) == 0);
}

static void on_done(weft_future *future, void *arg)
{
    entry *e = arg;
    const weft_error *error = weft_future_error(future);
    MUST_IN_JOB(weft_future_done(future) && e->done_calls++ == 0);
    entry_end(e, weft_error_code(error), inner_of(error));
    if (!error)
        check_result(e, weft_future_values(future));
    scribble(e);
    if (e->chains)
        start_another(e->by);
}

static void on_item(const weft_values *part, void *arg)
{
    entry *e = arg;
    int64_t number;
    MUST_OK(weft_values_get_i64(part, 0, &number));
    MUST_IN_JOB(!e->ended);
    if (e->attempts > 1 && number == 0)
        e->parts_seen = 0;                /* the next attempt's */
    MUST_IN_JOB(number == e->parts_seen); /* in order, each once */
    e->parts_seen++;
}

static weft_status pass_on(weft_future *parent, weft_future *child, void *arg)
{
    entry *e = arg;
    MUST_IN_JOB(weft_future_done(parent) && e->then_runs++ == 0);
    return weft_future_error(parent) ? WEFT_ERR_FORMAT : weft_future_complete(child, e, NULL);
}

static void drop_then(void *arg)
{
    ((entry *)arg)->then_drops++;
}

void watch_entry(entry *e, weft_status status)
{
    if (status) {
        MUST_IN_JOB(!e->future);
        entry_end(e, status, WEFT_OK);
        return;
    }
    MUST_OK(weft_future_add_done_callback(e->future, on_done, e, NULL));
    if (!once_in(&e->by->state, 12))
        return;
    e->then = weft_future_then(e->future, pass_on, e, drop_then);
    MUST_IN_JOB(e->then);
}

void start(entry *e, weft_target to, weft_args args, weft_rpc_options how)
{
    weft_error *error = NULL;
    how.timeout_ms = e->limit_ms;
    how.error = &error;
    e->may_be_refused = !how.wait_for_room;
    e->begun_ns = now_ns();
    weft_status status = weft_rpc_async(e->by->agent, to, e->function, args, &how, &e->future);
    watch_entry(e, status);
    weft_error_unref(error);
}

/* ---- Steps ---------------------------------------------------------------------------------------------------- */

void step_call(life *l)
{
    static const char *const functions[] = {"plain",   "inline", "urgent", "lazy", "plain", "hold",
                                            "release", "linger", "parts",  "hop",  "fail",  "nothing"};
    static const weft_status failures[] = {WEFT_ERR_INVALID, WEFT_ERR_FORMAT, WEFT_ERR_TIMEOUT, WEFT_ERR_PEER_DEAD};
    whom to;
    weft_target target = choose_target(l, &to);
    const char *function = functions[below(&l->state, 12)];
    entry *e = entry_begin(l, function, to, choose_limit(l));
    weft_rpc_options how = {.wait_for_room = once_in(&l->state, 2), .retry = choose_retry(l, e)};
    int64_t more = below(&l->state, 5);
    e->chains = once_in(&l->state, 10);
    e->strange = strcmp(function, "nothing") == 0;
    e->waits = strcmp(function, "hold") == 0;
    if (strcmp(function, "linger") == 0) {
        more = below(&l->state, once_in(&l->state, 4) ? 3000 : 60);
    } else if (strcmp(function, "parts") == 0) {
        more = below(&l->state, 40);
        how.on_item = once_in(&l->state, 8) ? NULL : on_item;
        how.item_arg = e;
    } else if (strcmp(function, "fail") == 0) {
        more = failures[more % 4];
    } else if (strcmp(function, "hop") != 0) {
        start(e, target, WEFT_VALUES(weft_of_i64(e->id)), how);
        return;
    }
    start(e, target, WEFT_VALUES(weft_of_i64(e->id), weft_of_i64(more)), how);
}

void step_tensor(life *l)
{
    static const int64_t counts[] = {1, 100, 600, PLACE_COUNT, 40000, 200000, 800000};
    static const char *const functions[] = {"echo", "echo", "place", "sum"};
    whom to;
    weft_target target = choose_target(l, &to);
    const char *function = functions[below(&l->state, 4)];
    bool sums = strcmp(function, "sum") == 0, echoes = strcmp(function, "echo") == 0;
    int64_t count = echoes ? counts[below(&l->state, 7)] : PLACE_COUNT, value = below(&l->state, 1000);
    entry *e = entry_begin(l, function, to, choose_limit(l));
    weft_rpc_options how = {.wait_for_room = once_in(&l->state, 2), .retry = choose_retry(l, e)};
    e->sent = tensor_full(WEFT_SHAPE(count), WEFT_DTYPE_INT32, (double)value);
    MUST_IN_JOB(e->sent);
    weft_value number = weft_of_i64(e->id), tensor = weft_of_tensor(e->sent);
    if (echoes && once_in(&l->state, 2)) {
        e->land = tensor_zeros(WEFT_SHAPE(count), WEFT_DTYPE_INT32);
        how.land = (weft_tensors){&e->land, 1};
    }
    if (echoes)
        start(e, target, WEFT_VALUES(number, weft_of_i64(below(&l->state, 3000)), tensor), how);
    else if (sums)
        start(e, target, WEFT_VALUES(number, tensor, weft_of_i64(value)), how);
    else
        start(e, target, WEFT_VALUES(number, tensor), how);
}

/* Some calls to one worker, for its batches. */
void step_gather(life *l)
{
    static const int64_t counts[] = {1, 600, 5000, 40000};
    static const char *const functions[] = {"gather", "gather well", "gather and hold", "gather all"};
    whom to;
    const char *function = functions[below(&l->state, 4)];
    for (int left = 1 + below(&l->state, 3); left; left--) {
        weft_target target = choose_target(l, &to);
        int64_t count = counts[below(&l->state, 4)];
        entry *e = entry_begin(l, function, to, choose_limit(l));
        weft_rpc_options how = {.wait_for_room = once_in(&l->state, 2), .retry = choose_retry(l, e)};
        e->waits = strcmp(function, "gather and hold") == 0;
        e->sent = tensor_full(WEFT_SHAPE(count), WEFT_DTYPE_INT32, (double)e->id);
        MUST_IN_JOB(e->sent);
        if (once_in(&l->state, 3)) {
            e->land = tensor_zeros(WEFT_SHAPE(count), WEFT_DTYPE_INT32);
            how.land = (weft_tensors){&e->land, 1};
        }
        start(e, target, WEFT_VALUES(weft_of_i64(e->id), weft_of_tensor(e->sent)), how);
    }
}

/* ---- Many at once --------------------------------------------------------------------------------------------- */

static void on_all_done(weft_future *future, void *arg)
{
    entry *first = arg;
    weft_future **each = weft_future_payload(future);
    MUST_IN_JOB(weft_future_done(future) && !weft_future_error(future));
    for (int i = 0; i < first->many; i++) {
        entry *e = now_playing->entries[first->id + i];
        const weft_error *error = weft_future_error(each[i]);
        int64_t number;
        MUST_IN_JOB(weft_future_done(each[i]));
        entry_end(e, weft_error_code(error), inner_of(error));
        if (error)
            continue;
        MUST_OK(weft_values_get_i64(weft_future_values(each[i]), 0, &number));
        MUST_IN_JOB(number == first->id + 1 && e->runs == 1);
    }
    first->done_calls++;
}

/* Several tensors in one call, or values of every other type; some outgrow a frame. */
void step_values(life *l)
{
    static const int64_t counts[] = {1, 50, 3000, 60000};
    static const int sizes[] = {0, 30, 3000, 100000};
    whom to;
    weft_target target = choose_target(l, &to);
    bool tensors = once_in(&l->state, 2);
    entry *e = entry_begin(l, tensors ? "reverse" : "mixed", to, choose_limit(l));
    weft_rpc_options how = {.wait_for_room = once_in(&l->state, 2), .retry = choose_retry(l, e)};
    weft_value number = weft_of_i64(e->id);
    if (tensors) {
        weft_tensor *items[TENSORS_MAX];
        size_t count = 1 + (size_t)below(&l->state, TENSORS_MAX);
        for (size_t i = 0; i < count; i++) {
            items[i] =
                tensor_full(WEFT_SHAPE(counts[below(&l->state, 4)]), WEFT_DTYPE_INT32, (double)(e->id + (int64_t)i));
            MUST_IN_JOB(items[i]);
        }
        start(e, target, WEFT_VALUES(number, weft_of_tensors((weft_tensors){items, count})), how);
        for (size_t i = 0; i < count; i++)
            weft_tensor_unref(items[i]); /* the call has its own references */
        return;
    }
    size_t size = (size_t)sizes[below(&l->state, 4)];
    uint8_t *bytes = malloc(size + 1);
    MUST_IN_JOB(bytes);
    fill_bytes(bytes, size, e->id);
    weft_args list = WEFT_VALUES(number, weft_of_null());
    start(
        e, target,
        WEFT_VALUES(number, weft_of_string("mixed"), weft_of_bytes(bytes, size), weft_of_list(list), weft_of_f64(0.5)),
        how);
    free(bytes);
}

void step_multicast(life *l)
{
    int count = 1 + below(&l->state, now_playing->actors), skip = below(&l->state, now_playing->actors);
    int64_t limit = choose_limit(l), size = once_in(&l->state, 2) ? 20000 : 10;
    weft_target targets[ACTORS_MAX];
    entry *first = NULL;
    for (int i = 0; i < count; i++) {
        int rank = (skip + i) % now_playing->actors;
        entry *e = entry_begin(l, "all", (whom){.rank = rank, .actor = -1}, limit);
        first = first ? first : e;
        targets[i] = weft_to_rank(rank);
    }
    first->many = count;
    first->sent = tensor_full(WEFT_SHAPE(size), WEFT_DTYPE_INT32, 1.0);
    weft_status status = weft_rpc_multicast(
        l->agent, targets, (size_t)count, "all", WEFT_VALUES(weft_of_i64(first->id), weft_of_tensor(first->sent)),
        &(weft_rpc_options){.timeout_ms = limit, .wait_for_room = true}, &first->future);
    if (!status) {
        MUST_OK(weft_future_add_done_callback(first->future, on_all_done, first, NULL));
        return;
    }
    for (int i = 0; i < count; i++)
        entry_end(now_playing->entries[first->id + i], status, WEFT_OK);
}

/* ---- Cancelling, waiting -------------------------------------------------------------------------------------- */

/* Some of its calls that have not ended. */
static size_t outstanding(life *l, entry **out, size_t room)
{
    size_t count = 0;
    for (entry *e = l->entries; e && count < room; e = e->next)
        if (e->future && !e->ended)
            out[count++] = e;
    return count;
}

void step_cancel(life *l)
{
    entry *some[8];
    size_t count = outstanding(l, some, 8);
    if (!count)
        return;
    entry *e = some[below(&l->state, (int)count)];
    for (int i = 0; i < (e->many ? e->many : 1); i++)
        now_playing->entries[e->id + i]->cancelled = true;
    weft_status status = weft_future_cancel(e->future);
    MUST_IN_JOB(status == WEFT_OK || status == WEFT_ERR_COMPLETED);
}

void step_wait_any(life *l)
{
    entry *some[5];
    weft_future *futures[5];
    size_t count = outstanding(l, some, 5), index = 99;
    for (size_t i = 0; i < count; i++)
        futures[i] = some[i]->future;
    if (!count)
        return;
    if (once_in(&l->state, 2)) {
        weft_status status = weft_future_wait_any(futures, count, 1 + below(&l->state, 50), &index);
        MUST_IN_JOB(status == WEFT_ERR_TIMEOUT || (!status && index < count && weft_future_done(futures[index])));
        return;
    }
    weft_future *all = weft_future_when_all(futures, count);
    MUST_IN_JOB(all);
    weft_status status = weft_future_wait(all, 1 + below(&l->state, 100));
    MUST_IN_JOB(status == WEFT_OK || status == WEFT_ERR_TIMEOUT);
    for (size_t i = 0; i < count && !status; i++)
        MUST_IN_JOB(weft_future_done(futures[i]));
    weft_future_unref(all);
}

/* Callbacks may start more: until none is left. */
void await_entries(life *l)
{
    for (entry *e = l->entries; e; e = l->entries) {
        for (; e && (!e->future || e->done_calls); e = e->next)
            continue;
        if (!e)
            return;
        weft_status status = weft_future_wait(e->future, WEFT_FOREVER);
        MUST_IN_JOB(weft_future_done(e->future) && status == weft_error_code(weft_future_error(e->future)));
        while (!e->done_calls)
            sleep_us(200);
    }
}

/* What was hung on the futures has run, once; nobody but us has them any more. */
static void check_then(entry *e)
{
    if (!e->then)
        return;
    weft_status status = weft_future_wait(e->then, WEFT_FOREVER);
    MUST_IN_JOB(status == (e->status ? WEFT_ERR_FORMAT : WEFT_OK) && e->then_runs == 1);
    while (!e->then_drops)
        sleep_us(200);
    MUST_IN_JOB(e->then_drops == 1);
    weft_future_unref(e->then);
    e->then = NULL;
}

void forget_entries(life *l)
{
    for (entry *e = l->entries; e; e = e->next) {
        check_then(e);
        check_scribble(e);
        weft_future_unref(e->future);
        weft_tensor_unref(e->sent);
        weft_tensor_unref(e->land);
        e->future = NULL;
        e->sent = e->land = NULL;
    }
}
