/* SPDX-License-Identifier: Apache-2.0 */
/* calls_kinds.c - calls of every kind but those on references, and what becomes of their arguments and results. */
#include "faults/calls_kinds.h"

#include "rpc/must.h"
#include "tensors.h"

#include <pthread.h>

#define PLACE_WORDS 30000
#define SUM_COUNT 4096
#define HAULS 20

static struct {
    pthread_mutex_t lock;
    trip *items[TRIPS_MAX];
    int count;
} trips = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- How a call may end --------------------------------------------------------------------------------------- */

bool status_fits(calls_kind kind, weft_status status, bool cancelled)
{
    bool refers = kind == MAKE || kind == FETCH || kind == USE || kind == KEEP || kind == READ;
    switch (status) {
    case WEFT_OK:
        return kind != FAIL;
    case WEFT_ERR_CANCELLED:
        return cancelled || refers;
    case WEFT_ERR_REMOTE:
        return kind == FAIL || kind == HOP || kind == LINGER || kind == STREAM || refers;
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_NOT_FOUND:
    case WEFT_ERR_BUSY:
    case WEFT_ERR_AGAIN:
    case WEFT_ERR_UNKNOWN:
    case WEFT_ERR_PEER_DEAD:
    case WEFT_ERR_PEER_LEFT:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_EVICTED:
    case WEFT_ERR_STORE_LOST:
        return true;
    default:
        return false;
    }
}

static void check_values(trip *t, const weft_values *values)
{
    int64_t number = -1;
    weft_status status = weft_values_get_i64(values, 0, &number);
    switch (t->kind) {
    case ECHO:
    case HAUL:
        check_tensor(weft_future_tensor(t->future, 0), t->id, RESULT, "its result");
        return;
    case SEVERAL:
        check_several(t, values);
        return;
    case HOP:
        if (status || number < 1 || number > t->more + 1)
            violation(t->id, "its result is %lld", (long long)number);
        return;
    case STREAM:
        if (status || number != t->more || number != t->parts)
            violation(t->id, "%lld parts are said to have been sent, of %lld; %lld came", (long long)number,
                      (long long)t->more, (long long)t->parts);
        return;
    case GATHER:
    case GATHER_LATER:
        check_tensor(weft_future_tensor(t->future, 1), t->id, RESULT, "its row");
        break;
    case PLAIN:
    case INLINE:
    case URGENT:
    case LAZY:
        check_bytes(t, values);
        break;
    case FETCH:
        check_tensor(weft_future_tensor(t->future, 0), t->more, RESULT, "the value fetched");
        return;
    case USE:
        if (status || number != t->more)
            violation(t->id, "it was done on object %lld instead of %lld", (long long)number, (long long)t->more);
        return;
    case MAKE:
        return;
    default:
        break;
    }
    if (status || number != t->id + 1)
        violation(t->id, "its result is %lld (%s)", (long long)number, weft_status_name(status));
}

static void check_landed(const trip *t)
{
    for (int i = 0; i < t->land_count; i++)
        check_tensor(t->land_tensors[i], t->id, RESULT + 16 * (unsigned)i, "what landed");
}

void trip_over(trip *t, weft_status status, weft_status inner, const weft_values *values)
{
    uint64_t took_ms = now_ms() - t->began_ms;
    if (!status_fits(t->kind, status, t->cancelled))
        violation(t->id, "it may not end with %s (%s)", weft_status_name(status), weft_status_name(inner));
    if (status == WEFT_ERR_TIMEOUT && t->kind < MAKE && !t->attempt_ms &&
        (t->limit_ms < 0 || took_ms + 1 < (uint64_t)t->limit_ms))
        violation(t->id, "its time was over after %llu ms", (unsigned long long)took_ms);
    if (status == WEFT_ERR_UNKNOWN && !t->plan.retry.attempts)
        violation(t->id, "its answer was given up, though there is memory for it");
    if (t->kind == FAIL && status == WEFT_ERR_REMOTE && inner != (weft_status)t->more)
        violation(t->id, "its handler failed with %s, not %s", weft_status_name((weft_status)t->more),
                  weft_status_name(inner));
    if (status == WEFT_OK && t->kind != FAIL) {
        check_values(t, values);
        check_landed(t);
    }
    t->over = true;
    book_end(t->id, status, inner);
    trip_free(t);
}

/* Overwrites what was sent, and what results were to land in, at once: nobody else may touch it any more. */
void trip_free(trip *t)
{
    for (int i = 0; i < t->sent_count; i++)
        room_end_unread(t->sent[i]);
    for (int i = 0; i < t->land_count; i++) {
        weft_tensor_unref(t->land_tensors[i]);
        room_end_unwritten(t->land[i]);
    }
    weft_future_unref(t->future);
    weft_rref_unref(t->rref);
    free(t);
    atomic_fetch_sub(&self.seat->under_way, 1);
}

static void forget(trip *t)
{
    pthread_mutex_lock(&trips.lock);
    int at = 0;
    while (at < trips.count && trips.items[at] != t)
        at++;
    MUST(at < trips.count);
    trips.items[at] = trips.items[--trips.count];
    pthread_mutex_unlock(&trips.lock);
}

static void on_done(weft_future *future, void *arg)
{
    trip *t = arg;
    const weft_error *error = weft_future_error(future);
    forget(t);
    trip_over(t, weft_error_code(error), inner_of(error), weft_future_values(future));
}

/* ---- Starting ------------------------------------------------------------------------------------------------- */

static int64_t choose_limit(void)
{
    uint64_t chance = chance_below(100);
    if (chance < 15)
        return 1 + (int64_t)chance_below(300);
    if (chance < 30)
        return 500 + (int64_t)chance_below(2500);
    return chance < 40 ? WEFT_FOREVER : DEFAULT_MS;
}

calls_plan plan_call(weft_agent *agent)
{
    static const char *const names[SEATS] = {"worker0", "worker1", "worker2", "worker3", "worker4"};
    calls_plan plan = {.to = (int)chance_below(SEATS), .limit_ms = choose_limit(), .wait_for_room = once_in(2)};
    plan.target = weft_to_rank(plan.to);
    if (once_in(4))
        plan.target = weft_to_name(names[plan.to]);
    else if (once_in(4) && weft_agent_worker(agent, plan.to).incarnation)
        plan.target = weft_to_worker(weft_agent_worker(agent, plan.to));
    if (once_in(6))
        plan.retry = (weft_retry){.attempts = 2 + (int)chance_below(3),
                                  .pause_ms = 5 + (int64_t)chance_below(50),
                                  .attempt_ms = once_in(2) ? 20 + (int64_t)chance_below(500) : 0};
    return plan;
}

trip *trip_begin(calls_kind kind, const calls_plan *plan, int count)
{
    int64_t id = book_begin(kind, plan, count);
    if (id < 0)
        return NULL;
    trip *t = calloc(1, sizeof(*t));
    MUST(t);
    *t = (trip){.id = id,
                .kind = kind,
                .plan = *plan,
                .limit_ms = plan->limit_ms,
                .attempt_ms = plan->retry.attempts ? plan->retry.attempt_ms : 0,
                .began_ms = now_ms()};
    atomic_fetch_add(&self.seat->under_way, 1);
    return t;
}

/* `future` moves in. It may be over before this returns. */
static void watch(trip *t, weft_future *future, weft_done_fn done)
{
    t->future = weft_future_ref(future);
    pthread_mutex_lock(&trips.lock);
    MUST(trips.count < TRIPS_MAX);
    trips.items[trips.count++] = t;
    pthread_mutex_unlock(&trips.lock);
    MUST_OK(weft_future_add_done_callback(future, done, t, NULL));
    weft_future_unref(future);
}

void trip_watch(trip *t, weft_future *future)
{
    watch(t, future, on_done);
}

static weft_rpc_options options_of(trip *t)
{
    return (weft_rpc_options){.timeout_ms = t->limit_ms,
                              .wait_for_room = t->plan.wait_for_room,
                              .retry = t->plan.retry,
                              .land = {t->land_tensors, (size_t)t->land_count}};
}

void trip_start(trip *t, weft_args arguments, weft_item_fn on_item)
{
    weft_error *error = NULL;
    weft_future *future = NULL;
    weft_rpc_options options = options_of(t);
    options.error = &error;
    options.on_item = on_item;
    options.item_arg = t;
    weft_status status =
        t->rref ? weft_rref_rpc_async(t->rref, calls_kind_names[t->kind], arguments, &options, &future)
                : weft_rpc_async(self.agent, t->plan.target, calls_kind_names[t->kind], arguments, &options, &future);
    if (status)
        trip_over(t, status, inner_of(error), NULL);
    else
        trip_watch(t, future);
    weft_error_unref(error);
}

weft_tensor *trip_send(trip *t, size_t count)
{
    calls_room *room = room_make(count, t->id);
    words_fill(room_words(room), count, t->id, ARGUMENT + 16 * (unsigned)t->sent_count);
    t->sent[t->sent_count++] = room;
    return room_tensor(room);
}

static void land(trip *t, size_t count)
{
    calls_room *room = room_make(count, t->id);
    t->land[t->land_count] = room;
    t->land_tensors[t->land_count++] = room_tensor(room);
}

static size_t choose_count(void)
{
    static const size_t counts[] = {1, 100, 600, 5000, 40000, 262144, 262144, 1048576};
    return counts[chance_below(once_in(3) ? 8 : 5)];
}

/* ---- Kinds ---------------------------------------------------------------------------------------------------- */

static void step_plain(trip *t)
{
    static const size_t counts[] = {0, 8, 700, 25000};
    size_t count = counts[chance_below(4)];
    uint32_t *words = malloc(count * sizeof(*words) + 1);
    MUST(words);
    words_fill(words, count, t->id, ARGUMENT);
    t->more = (int64_t)count;
    trip_start(t, WEFT_VALUES(weft_of_i64(t->id), weft_of_bytes(words, count * sizeof(*words))), NULL);
    free(words); /* it was copied */
}

void check_bytes(trip *t, const weft_values *values)
{
    const void *data;
    size_t size;
    if (weft_values_get_bytes(values, 1, &data, &size) || size != (size_t)t->more * sizeof(uint32_t)) {
        violation(t->id, "its bytes are missing");
        return;
    }
    uint32_t *words = malloc(size + 1);
    MUST(words);
    memcpy(words, data, size);
    if (words_wrong_at(words, (size_t)t->more, t->id, RESULT) < (size_t)t->more)
        violation(t->id, "its bytes are wrong");
    free(words);
}

static void step_echo(trip *t)
{
    size_t count = choose_count();
    weft_tensor *tensor = trip_send(t, count);
    if (once_in(2))
        land(t, count);
    trip_start(t, WEFT_VALUES(weft_of_i64(t->id), weft_of_i64((int64_t)chance_below(12)), weft_of_tensor(tensor)),
               NULL);
    weft_tensor_unref(tensor);
}

/* Calls whose arguments are an id and a tensor. */
static void step_tensor(trip *t, size_t count)
{
    weft_tensor *tensor = trip_send(t, count);
    trip_start(t, WEFT_VALUES(weft_of_i64(t->id), weft_of_tensor(tensor)), NULL);
    weft_tensor_unref(tensor);
}

static void step_sum(trip *t)
{
    int64_t value = (int64_t)chance_below(1000);
    weft_tensor *tensor = tensor_full(WEFT_SHAPE(SUM_COUNT), WEFT_DTYPE_INT64, (double)value);
    MUST(tensor);
    trip_start(t, WEFT_VALUES(weft_of_i64(t->id), weft_of_tensor(tensor), weft_of_i64(value)), NULL);
    weft_tensor_unref(tensor);
}

static void step_several(trip *t)
{
    static const size_t counts[] = {50, 3000, 60000, 300000};
    weft_tensor *items[TRIP_TENSORS];
    size_t count = 1 + (size_t)chance_below(TRIP_TENSORS);
    bool lands = once_in(2);
    for (size_t i = 0; i < count; i++) {
        size_t words = counts[chance_below(4)];
        items[i] = trip_send(t, words);
        if (lands)
            land(t, words);
    }
    t->more = (int64_t)count;
    trip_start(t, WEFT_VALUES(weft_of_i64(t->id), weft_of_tensors((weft_tensors){items, count})), NULL);
    for (size_t i = 0; i < count; i++)
        weft_tensor_unref(items[i]);
}

void check_several(trip *t, const weft_values *values)
{
    weft_tensors got = {0};
    if (weft_values_get_tensors(values, 0, &got) || got.count != (size_t)t->more) {
        violation(t->id, "it has %zu results instead of %lld", got.count, (long long)t->more);
        return;
    }
    for (size_t i = 0; i < got.count; i++)
        check_tensor(got.items[i], t->id, RESULT + 16 * (unsigned)i, "one of its results");
}

static void on_item(const weft_values *part, void *arg)
{
    trip *t = arg;
    int64_t number = -1;
    weft_tensor *tensor = NULL;
    if (weft_values_get_i64(part, 0, &number) || weft_values_get_tensor(part, 1, &tensor)) {
        violation(t->id, "a part is no part");
        return;
    }
    if (number != t->parts || t->over)
        violation(t->id, "part %lld came as number %lld%s", (long long)number, (long long)t->parts,
                  t->over ? ", after the end" : "");
    check_tensor(tensor, t->id, RESULT + 16 * (unsigned)number, "a part");
    t->parts++;
}

/* A second argument that is a number. */
static void step_number(trip *t, int64_t number)
{
    t->more = number;
    trip_start(t, WEFT_VALUES(weft_of_i64(t->id), weft_of_i64(number)), t->kind == STREAM ? on_item : NULL);
}

static void on_all_done(weft_future *future, void *arg)
{
    trip *t = arg;
    weft_future **each = weft_future_payload(future);
    forget(t);
    if (weft_future_error(future))
        violation(t->id, "a multicast fails as a whole: %s",
                  weft_status_name(weft_error_code(weft_future_error(future))));
    for (int i = 0; i < SEATS && each; i++) {
        const weft_error *error = weft_future_error(each[i]);
        weft_status status = weft_error_code(error);
        int64_t number = -1;
        if (!status_fits(ALL, status, t->cancelled))
            violation(t->id + i, "it may not end with %s", weft_status_name(status));
        if (!error && (weft_values_get_i64(weft_future_values(each[i]), 0, &number) || number != t->id + i + 1))
            violation(t->id + i, "its result is %lld", (long long)number);
        book_end(t->id + i, status, inner_of(error));
    }
    trip_free(t);
}

static void step_multicast(void)
{
    calls_plan plan = plan_call(self.agent);
    plan.target = weft_to_rank(0);
    plan.retry.attempts = 0;
    trip *t = trip_begin(ALL, &plan, SEATS);
    weft_target targets[SEATS];
    weft_future *future;
    if (!t)
        return;
    for (int i = 0; i < SEATS; i++)
        targets[i] = weft_to_rank(i);
    weft_tensor *tensor = trip_send(t, once_in(2) ? 20000 : 10);
    weft_rpc_options options = options_of(t);
    weft_status status = weft_rpc_multicast(self.agent, targets, SEATS, "all",
                                            WEFT_VALUES(weft_of_i64(t->id), weft_of_tensor(tensor)), &options, &future);
    weft_tensor_unref(tensor);
    if (!status) {
        watch(t, future, on_all_done);
        return;
    }
    for (int i = 0; i < SEATS; i++)
        book_end(t->id + i, status, WEFT_OK);
    trip_free(t);
}

/* Some of the calls without a time limit are left to end by themselves: an answer that was lost shows in these
 * alone. */
static bool is_left_alone(const trip *t)
{
    return t->limit_ms < 0 && t->id % 4;
}

static void step_cancel(void)
{
    weft_future *future = NULL;
    pthread_mutex_lock(&trips.lock);
    trip *t = trips.count ? trips.items[chance_below((uint64_t)trips.count)] : NULL;
    if (t && !is_left_alone(t)) {
        t->cancelled = true;
        future = weft_future_ref(t->future);
    }
    pthread_mutex_unlock(&trips.lock);
    if (!future)
        return;
    weft_status status = weft_future_cancel(future);
    if (status != WEFT_OK && status != WEFT_ERR_COMPLETED)
        violation(-1, "cancelling returned %s", weft_status_name(status));
    weft_future_unref(future);
}

/* One large result, which lands, and is given up after some milliseconds, whatever has come of it by then. */
static void haul(calls_plan plan)
{
    static const size_t counts[] = {1U << 20, 2U << 20, 4U << 20};
    size_t count = counts[chance_below(3)];
    trip *t = trip_begin(HAUL, &plan, 1);
    if (!t)
        return;
    t->cancelled = true;
    land(t, count);
    weft_rpc_options options = options_of(t);
    weft_future *future;
    weft_status status =
        weft_rpc_async(self.agent, plan.target, "haul", WEFT_VALUES(weft_of_i64(t->id), weft_of_i64((int64_t)count)),
                       &options, &future);
    if (status) {
        trip_over(t, status, WEFT_OK, NULL);
        return;
    }
    weft_future *again = weft_future_ref(future);
    trip_watch(t, future);
    status = weft_future_wait(again, (int64_t)chance_below(20));
    if (!weft_future_done(again))
        status = weft_future_cancel(again);
    (void)status; /* it may be over just now */
    weft_future_unref(again);
}

void step_haul(void)
{
    calls_plan plan = plan_call(self.agent);
    plan.retry.attempts = 0;
    for (int i = 0; i < HAULS && goes_on(); i++)
        haul(plan);
}

static void step_kind(trip *t)
{
    static const weft_status failures[] = {WEFT_ERR_INVALID, WEFT_ERR_FORMAT, WEFT_ERR_TIMEOUT, WEFT_ERR_PEER_DEAD};
    switch (t->kind) {
    case ECHO:
        step_echo(t);
        break;
    case PLACE:
        step_tensor(t, PLACE_WORDS);
        break;
    case SUM:
        step_sum(t);
        break;
    case SEVERAL:
        step_several(t);
        break;
    case GATHER:
    case GATHER_LATER:
        step_tensor(t, once_in(2) ? 600 : 40000);
        break;
    case HOLD:
    case RETAIN:
        step_tensor(t, once_in(3) ? 262144 : 5000);
        break;
    case STREAM:
        step_number(t, (int64_t)chance_below(40));
        break;
    case HOP:
        step_number(t, 1 + (int64_t)chance_below(3));
        break;
    case LINGER:
        step_number(t, (int64_t)chance_below(once_in(4) ? 3000 : 100));
        break;
    case FAIL:
        step_number(t, failures[chance_below(4)]);
        break;
    default:
        step_plain(t);
    }
}

int calls_under_way(void)
{
    return atomic_load(&self.seat->under_way);
}

void step_call(void)
{
    static const calls_kind kinds[] = {PLAIN,  PLAIN, INLINE, URGENT,  LAZY,   ECHO,   ECHO,
                                       ECHO,   PLACE, SUM,    SEVERAL, GATHER, GATHER, GATHER_LATER,
                                       STREAM, HOP,   HOLD,   LINGER,  FAIL,   RETAIN};
    if (once_in(5))
        step_cancel();
    if (once_in(12)) {
        step_multicast();
        return;
    }
    calls_plan plan = plan_call(self.agent);
    calls_kind kind = kinds[chance_below(sizeof(kinds) / sizeof(*kinds))];
    if (kind == STREAM)
        plan.retry.attempts = 0; /* parts would come from every attempt */
    trip *t = trip_begin(kind, &plan, 1);
    if (t)
        step_kind(t);
}
