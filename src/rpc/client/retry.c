/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retry.c - calls with retries.
 *
 * The user gets one future. Behind it one ordinary call (an attempt) is made after another, until one succeeds or fails
 * permanently, or no attempts or no time are left. Between two attempts there is a pause, by a timer.
 *
 * The fields of `retry` above the line "agent lock" are set while starting and constant afterwards, except `packed`.
 * One thread at a time starts attempts: the thread that started the call, later the task that the timer defers. `refs`
 * counts the retry itself (until the user's future is complete), that task, and cancellers.
 */
#include "base/alloc.h"
#include "rpc/client/client.h"

#include "base/error.h"
#include "rpc/refs/refs.h"
#include "rpc/server/server.h"
#include "value/value.h"

#include <stdlib.h>
#include <string.h>

#define PAUSE_MS 50
#define PAUSE_MOST_MS 5000

typedef struct retry {
    weft_agent *agent;
    atomic_int refs;
    weft_future *future; /* the user's */
    weft_target to;      /* its name is `name` */
    char function[WFI_FUNCTION_NAME_MAX + 1], name[WFI_FUNCTION_NAME_MAX + 1];
    weft_values *args;
    wfi_shared_body *packed; /* set by the first attempt that needs it */
    wfi_link_source *source;
    weft_rpc_options options;
    weft_tensor **land; /* referenced; options.land points here */
    weft_rref *remote;
    uint64_t deadline_ns;
    bool exempt;

    /* ---- agent lock ---- */
    wfi_list link; /* agent->retries */
    wfi_child child;
    weft_future *attempt; /* the current one; NULL: none */
    wfi_observer observer;
    bool starting, over;
    bool awaits_room; /* the last attempt found the queue full */
    wfi_room_waiter room;
    weft_error *stop; /* set: no more attempts; the retry ends with this error, unless the current attempt succeeds */
    bool may_have_run;
    int attempts;
    size_t resting_bytes; /* its part of agent->resting_bytes: only in a pause */
    uint64_t pause_ns;    /* the next pause, before it is varied */
    wfi_timer timer;
    wfi_task task, release;
} retry;

/* ---- Reference counting ------------------------------------------------------------------------------------------ */

static void free_retry(retry *r)
{
    for (size_t i = 0; r->land && i < r->options.land.count; i++)
        weft_tensor_unref(r->land[i]);
    free(r->land);
    weft_values_unref(r->args);
    wfi_shared_body_unref(r->packed);
    if (r->source)
        wfi_links_get()->unref(r->source);
    weft_future_unref(r->attempt);
    weft_future_unref(r->future);
    weft_rref_unref(r->remote);
    weft_error_unref(r->stop);
    wfi_agent_unref(r->agent);
    free(r);
}

static void release_retry(wfi_task *task)
{
    free_retry(wfi_container_of(task, retry, release));
}

/* [agent lock] */
static void drop_locked(retry *r)
{
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    r->release.run = release_retry;
    wfi_net_defer(r->agent->net, &r->release, WFI_DEFER_RELEASE);
}

static void drop(retry *r)
{
    if (atomic_fetch_sub(&r->refs, 1) == 1)
        free_retry(r);
}

/* ---- Resting ----------------------------------------------------------------------------------------------------- */

/* Bytes that it holds. Its attempts are counted in the queues of their peers. [agent lock] */
static size_t resting_size(const retry *r)
{
    return sizeof *r + wfi_values_bytes(weft_values_args(r->args)) + wfi_shared_body_bytes(r->packed);
}

/* [agent lock] */
static void rest(retry *r, size_t bytes)
{
    r->agent->resting_bytes += bytes - r->resting_bytes;
    r->resting_bytes = bytes;
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/* Whether the code leaves open if the call ran; then weft_error_remote_code tells it. Other codes of attempts whose
 * handler has not begun, such as WEFT_ERR_BUSY, mean that the call did not run. */
static bool leaves_open(weft_status code)
{
    switch (code) {
    case WEFT_ERR_TIMEOUT:
    case WEFT_ERR_CANCELLED:
    case WEFT_ERR_PEER_DEAD:
    case WEFT_ERR_PEER_LEFT:
    case WEFT_ERR_UNREACHABLE:
    case WEFT_ERR_CLOSED:
    case WEFT_ERR_EVICTED:
    case WEFT_ERR_STORE_LOST:
    case WEFT_ERR_JOB_ENDED:
        return true;
    default:
        return false;
    }
}

/*
 * The error of the call as a whole, if its last attempt failed with `error`. If an earlier attempt may have run, the
 * error must not say that the call did not run. A reference for the caller. [agent lock]
 */
static weft_error *failure_of_all(const retry *r, const weft_error *error)
{
    weft_status code = weft_error_code(error);
    bool says_it_did_not_run =
        weft_error_remote_code(error) == WEFT_OK && code != WEFT_ERR_REMOTE && code != WEFT_ERR_UNKNOWN;
    if (!r->may_have_run || !says_it_did_not_run)
        return weft_error_ref(error);
    if (leaves_open(code))
        return wfi_error_recoded(error, code, WEFT_ERR_UNKNOWN, -1);
    wfi_error_detail detail = {.code = WEFT_ERR_UNKNOWN,
                               .remote_code = WEFT_ERR_UNKNOWN,
                               .function = r->function,
                               .worker = weft_error_worker(error)};
    return wfi_error_create(&detail, "an attempt before the last may have run; the last one did not: %s, %s",
                            weft_status_name(code), weft_error_message(error));
}

/* Completes the user's future: with `values`, or with failure_of_all of the last attempt's `error`. [agent lock] */
static void finish(retry *r, const weft_values *values, const weft_error *error)
{
    wfi_assert_held(wfi_net_mutex(r->agent->net));
    if (r->over)
        return;
    weft_error *failure = error ? failure_of_all(r, error) : NULL;
    r->over = true;
    rest(r, 0);
    wfi_list_remove(&r->link);
    wfi_net_timer_clear(r->agent->net, &r->timer);
    wfi_room_leave(&r->room);
    wfi_child_end(&r->child, failure);
    wfi_call_settle(r->future, r->remote, values, failure);
    weft_error_unref(failure);
    drop_locked(r);
}

/* Makes no more attempts. If an attempt is in flight, the caller must end it. [agent lock] */
static void stop(retry *r, weft_status why, const char *text)
{
    if (r->over || r->stop)
        return;
    bool running = r->attempt || r->starting;
    wfi_error_detail detail = {.code = why, .function = r->function, .worker = -1};
    detail.remote_code = r->may_have_run || running ? WEFT_ERR_UNKNOWN : WEFT_OK;
    r->stop = wfi_error_create(&detail, "%s", text);
    if (!running)
        finish(r, NULL, r->stop);
}

static void stop_with_parent(wfi_child *child, weft_status why, const char *text)
{
    if (why)
        stop(wfi_container_of(child, retry, child), why, text); /* the current attempt is also a child, and ends too */
}

void wfi_retries_fail_all(weft_agent *agent, weft_status why, const char *text)
{
    WFI_FOR_LIST_TAKING (retry, r, next, &agent->retries, link)
        stop(r, why, text);
}

static void hold_retry(void *owner)
{
    retry *r = owner;
    atomic_fetch_add(&r->refs, 1);
}

static void cancel_retry(void *owner, uint64_t id)
{
    retry *r = owner;
    weft_agent *agent = r->agent;
    weft_future *attempt = NULL;
    (void)id;
    if (wfi_agent_enter_locked(agent)) {
        stop(r, WEFT_ERR_CANCELLED, "the caller cancelled it");
        attempt = weft_future_ref(r->attempt);
        wfi_net_unlock(agent->net);
        if (attempt) {
            weft_status st = weft_future_cancel(attempt);
            (void)st; /* if it has ended meanwhile, attempt_over was called */
            weft_future_unref(attempt);
        }
        wfi_agent_leave(agent);
    }
    drop(r);
}

static const wfi_canceller retry_canceller = {.hold = hold_retry, .cancel = cancel_retry};

/* ---- Whether to try again ---------------------------------------------------------------------------------------- */

/* Whether the last worker of some rank had that name. [agent lock] */
static bool name_was_held(const retry *r)
{
    const weft_agent *agent = r->agent;
    for (int rank = 0; rank < agent->options.values.world_size; rank++) {
        const wfi_member *member = wfi_net_member(agent->net, rank);
        if (member && strcmp(member->name, r->name) == 0)
            return true;
    }
    return false;
}

/* Whether a worker may still get the name, which no living worker has: in an elastic job any new worker, in a static
 * one a worker that takes the rank of one that had the name. A name that no worker of a static job ever had is a
 * mistake. [agent lock] */
static bool may_be_named(const retry *r)
{
    return r->attempts > 1 || r->agent->options.values.elastic || name_was_held(r);
}

/* Whether the handler itself has returned a status that asks for another attempt. */
static bool is_refusal(weft_status why, weft_status inner)
{
    return why == WEFT_ERR_REMOTE && (inner == WEFT_ERR_BUSY || inner == WEFT_ERR_AGAIN);
}

/*
 * Whether another attempt may succeed. A call of weft_rpc_remote has one name for its result in all attempts, and the
 * owner keeps the outcome under that name. So it is tried again only if it certainly did not run: it was not started,
 * or was refused with WEFT_ERR_BUSY (then the owner keeps the name for the next attempt). [agent lock]
 */
static bool may_pass(const retry *r, const weft_error *error, bool started)
{
    weft_status why = weft_error_code(error);
    bool named = r->to.name != NULL;
    if (r->remote && started)
        return why == WEFT_ERR_BUSY;
    if (why == WEFT_ERR_BUSY || why == WEFT_ERR_AGAIN || why == WEFT_ERR_UNREACHABLE)
        return true;
    if (r->remote)
        return false;
    if (why == WEFT_ERR_PEER_DEAD || why == WEFT_ERR_PEER_LEFT)
        return named;
    if (why == WEFT_ERR_NOT_FOUND)
        return named && !started && may_be_named(r);
    if (is_refusal(why, weft_error_remote_code(error)))
        return true;
    return why == WEFT_ERR_UNKNOWN || (why == WEFT_ERR_TIMEOUT && r->options.retry.attempt_ms > 0);
}

/* A quarter more or less, from what differs from worker to worker and call to call, so that a simulation replays. */
static uint64_t vary(const retry *r, uint64_t now)
{
    const uint64_t seed[3] = {now, r->agent->next_call_id,
                              (uint64_t)wfi_agent_rank(r->agent) << 32 | (uint32_t)r->attempts};
    uint64_t share = wfi_hash_bytes(seed, sizeof seed) >> 33 & 0xffff; /* of 65,536 */
    return r->pause_ns / 4 * 3 + r->pause_ns / 2 / 65536 * share;
}

static uint64_t next_pause(retry *r, uint64_t now)
{
    uint64_t most = wfi_ns_of_ms(r->options.retry.pause_most_ms) / 5 * 4; /* at most that when it is varied */
    if (r->pause_ns > most)
        r->pause_ns = most;
    uint64_t pause = vary(r, now);
    r->pause_ns += r->pause_ns / 2;
    return pause;
}

/* Makes the next attempt when the peer's queue has room, or the deadline passes: that attempt then ends with
 * WEFT_ERR_TIMEOUT, as without retries. [agent lock] */
static weft_status await_room(retry *r, wfi_peer *peer)
{
    weft_status st = WEFT_OK;
    r->attempts--; /* an attempt that found the queue full does not count */
    if (r->deadline_ns != WFI_NEVER)
        st = wfi_net_timer_set(r->agent->net, &r->timer, r->deadline_ns);
    if (!st)
        wfi_room_await(&r->room, peer);
    return st;
}

/*
 * The error of a retry that was stopped. If the attempt ended by itself, its error. If it was cancelled because of the
 * stop, r->stop, with the attempt's statement whether it may have run. [agent lock]
 */
static const weft_error *last_word(retry *r, const weft_error *error, bool started)
{
    if (started && weft_error_code(error) != WEFT_ERR_CANCELLED)
        return error;
    if (started) {
        weft_error *why = r->stop;
        r->stop = wfi_error_recoded(why, weft_error_code(why), weft_error_remote_code(error), -1);
        weft_error_unref(why);
    }
    return r->stop;
}

/* An attempt failed: a pause and the next one, or the end. [agent lock] */
static void consider(retry *r, const weft_error *error, bool started)
{
    weft_status why = weft_error_code(error);
    uint64_t now = wfi_now(wfi_net_clock(r->agent->net));
    wfi_peer *full = NULL; /* the peer whose queue was full */
    if (why == WEFT_ERR_AGAIN && !started && r->options.wait_for_room)
        full = wfi_net_peer(r->agent->net, weft_error_worker(error));
    bool no_room = full != NULL;
    r->agent->stats.calls_retried += !started && !no_room && r->attempts > 1;
    r->may_have_run |=
        weft_error_remote_code(error) == WEFT_ERR_UNKNOWN || why == WEFT_ERR_UNKNOWN || why == WEFT_ERR_REMOTE;
    if (r->stop || !may_pass(r, error, started) || (!no_room && r->attempts >= r->options.retry.attempts)) {
        finish(r, NULL, r->stop ? last_word(r, error, started) : error);
        return;
    }
    r->awaits_room = no_room;
    rest(r, resting_size(r));
    uint64_t at = no_room ? 0 : now + next_pause(r, now);
    weft_status st = WEFT_ERR_TIMEOUT;
    if (no_room)
        st = await_room(r, full);
    else if (at < r->deadline_ns)
        st = wfi_net_timer_set(r->agent->net, &r->timer, at);
    if (st)
        finish(r, NULL, error);
}

/* An attempt's future is complete. [agent lock] */
static void attempt_over(wfi_observer *observer)
{
    retry *r = wfi_container_of(observer, retry, observer);
    weft_future *attempt = r->attempt;
    wfi_assert_held(wfi_net_mutex(r->agent->net)); /* calls complete with the lock held */
    r->attempt = NULL;
    wfi_future_unref_unless_last(attempt); /* the observer's reference; r->attempt was another one */
    if (weft_future_error(attempt))
        consider(r, weft_future_error(attempt), true);
    else
        finish(r, weft_future_values(attempt), NULL);
    weft_future_unref(attempt); /* frees no values: the user's future or the call also holds them */
}

/* ---- Attempts ---------------------------------------------------------------------------------------------------- */

/* Makes the next attempt. If it cannot be started, sets *error, and the caller handles it. Not locked; `starting` is
 * set. */
static weft_status begin(retry *r, bool wait_for_room, weft_error **error)
{
    weft_agent *agent = r->agent;
    weft_rpc_options how = r->options;
    weft_future *attempt = NULL;
    how.wait_for_room = wait_for_room;
    wfi_call_spec spec = {.to = r->to,
                          .function = r->function,
                          .arguments = weft_values_args(r->args),
                          .options = &how,
                          .remote = r->remote,
                          .is_attempt = true,
                          .packed = &r->packed,
                          .source = r->source,
                          .parent = (const weft_call *const *)&r->child.parent,
                          .deadline_ns = r->deadline_ns,
                          .exempt = r->exempt,
                          .waited = r->awaits_room};
    if (r->options.retry.attempt_ms && !r->remote) {
        uint64_t limit = wfi_deadline(wfi_net_clock(agent->net), r->options.retry.attempt_ms);
        spec.deadline_ns = limit < r->deadline_ns ? limit : r->deadline_ns;
    }
    weft_status st = wfi_call_begin(agent, &spec, &attempt, error);
    if (st)
        return st;
    wfi_net_lock(agent->net);
    r->starting = false;
    agent->stats.calls_retried += r->attempts > 1;
    r->attempt = weft_future_ref(attempt);
    bool unwanted = r->stop != NULL;
    wfi_future_observe(attempt, &r->observer);
    wfi_net_unlock(agent->net);
    if (unwanted) {
        weft_status ended = weft_future_cancel(attempt);
        (void)ended;
    }
    weft_future_unref(attempt);
    return WEFT_OK;
}

static void again_task(wfi_task *task)
{
    retry *r = wfi_container_of(task, retry, task);
    weft_agent *agent = r->agent;
    weft_error *error = NULL;
    if (!wfi_agent_enter(agent)) { /* the agent was stopped, and has failed this retry */
        drop(r);
        return;
    }
    wfi_net_lock(agent->net);
    rest(r, 0);
    bool go = !r->over && !r->stop;
    r->starting = go;
    r->attempts += go;
    wfi_net_unlock(agent->net);
    weft_status st = go ? begin(r, false, &error) : WEFT_OK;
    wfi_net_lock(agent->net);
    wfi_room_leave(&r->room); /* wakes the next waiter if there is still room */
    if (st) {
        r->starting = false;
        consider(r, error, false);
    }
    wfi_net_unlock(agent->net);
    weft_error_unref(error);
    drop(r);
    wfi_agent_leave(agent);
}

/* [agent lock] */
static void go_on(retry *r)
{
    atomic_fetch_add(&r->refs, 1);
    wfi_net_defer(r->agent->net, &r->task, WFI_DEFER_RELEASE);
}

static void pause_over(wfi_timer *timer)
{
    retry *r = wfi_container_of(timer, retry, timer);
    wfi_room_leave(&r->room);
    go_on(r);
}

static void go_on_with_room(wfi_done *done)
{
    retry *r = wfi_container_of(done, retry, room.woken);
    wfi_net_timer_clear(r->agent->net, &r->timer);
    go_on(r); /* again_task calls wfi_room_leave after the attempt, which wakes the next waiter */
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

static weft_status keep_options(retry *r, const weft_rpc_options *options)
{
    r->options = *options;
    r->options.parent = NULL;
    r->options.error = NULL;
    r->options.land.count = 0;
    r->options.retry.pause_ms = options->retry.pause_ms ? options->retry.pause_ms : PAUSE_MS;
    if (!r->options.retry.pause_most_ms)
        r->options.retry.pause_most_ms =
            r->options.retry.pause_ms > PAUSE_MOST_MS ? r->options.retry.pause_ms : PAUSE_MOST_MS;
    r->pause_ns = wfi_ns_of_ms(r->options.retry.pause_ms);
    if (!options->land.count)
        return WEFT_OK;
    r->land = wfi_calloc(options->land.count, sizeof *r->land);
    if (!r->land)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < options->land.count; i++)
        r->land[i] = weft_tensor_ref(options->land.items[i]);
    r->options.land = (weft_tensors){r->land, options->land.count};
    return WEFT_OK;
}

static weft_status keep_plan(retry *r, const wfi_call_spec *spec)
{
    snprintf(r->function, sizeof r->function, "%s", spec->function);
    r->to = spec->to;
    if (spec->to.name) {
        snprintf(r->name, sizeof r->name, "%s", spec->to.name);
        r->to.name = r->name;
    }
    r->remote = weft_rref_ref(spec->remote);
    if (spec->source)
        r->source = wfi_links_get()->ref(spec->source);
    r->exempt = spec->exempt;
    if (spec->packed && *spec->packed)
        r->packed = wfi_shared_body_ref(*spec->packed);
    r->future = wfi_agent_future(r->agent);
    weft_status st = r->future ? keep_options(r, spec->options) : WEFT_ERR_MEMORY;
    return st ? st : wfi_values_create(spec->arguments, &r->args);
}

static weft_status make_retry(weft_agent *agent, const wfi_call_spec *spec, retry **out)
{
    retry *r = wfi_calloc(1, sizeof *r);
    if (!r)
        return WEFT_ERR_MEMORY;
    r->agent = wfi_agent_ref(agent);
    atomic_init(&r->refs, 1);
    wfi_list_init(&r->link);
    wfi_list_init(&r->child.link);
    wfi_list_init(&r->observer.link);
    r->child.parent_over = stop_with_parent;
    r->observer.completed = attempt_over;
    r->timer.fire = pause_over;
    r->room.woken.run = go_on_with_room;
    r->task.run = again_task;
    weft_status st = keep_plan(r, spec);
    if (st)
        free_retry(r);
    else
        *out = r;
    return st;
}

/* Sets the deadline, and registers the retry so that it can be stopped. [agent lock] */
static weft_status enter(retry *r, wfi_call_spec *spec)
{
    weft_agent *agent = r->agent;
    weft_status st = wfi_agent_usable(agent);
    if (!st)
        st = wfi_call_limit(agent, spec, wfi_now(wfi_net_clock(agent->net)), &r->deadline_ns);
    if (st)
        return st;
    wfi_child_join(&r->child, (weft_call *)*spec->parent);
    wfi_list_push_back(&agent->retries, &r->link);
    r->starting = true;
    r->attempts = 1;
    wfi_future_set_canceller(r->future, &retry_canceller, r, 0);
    return WEFT_OK;
}

/* The first attempt did not start. Returns whether the whole call fails to start: another attempt cannot succeed, or
 * the queue is full and the calls that pause already hold queue_limit_bytes. [agent lock] */
static bool is_hopeless(retry *r, const weft_error *error)
{
    r->starting = false;
    bool full = weft_error_code(error) == WEFT_ERR_AGAIN &&
                r->agent->resting_bytes >= r->agent->options.values.queue_limit_bytes;
    if (r->stop || (!full && may_pass(r, error, false)))
        return false;
    r->over = true;
    wfi_list_remove(&r->link);
    wfi_child_leave(&r->child);
    return true;
}

weft_status wfi_retry_start(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error)
{
    retry *r = NULL;
    weft_status st = make_retry(agent, spec, &r);
    if (!st) {
        wfi_net_lock(agent->net);
        st = enter(r, spec);
        wfi_net_unlock(agent->net);
    }
    if (st) {
        *error = wfi_spec_explain(agent, spec, st, -1);
        if (r)
            drop(r);
        return st;
    }
    weft_future *future = weft_future_ref(r->future);
    atomic_fetch_add(&r->refs, 1); /* for this function: after `begin` the retry may end at any moment */
    st = begin(r, r->options.wait_for_room, error);
    bool hopeless = false;
    if (st) {
        wfi_net_lock(agent->net);
        hopeless = is_hopeless(r, *error);
        if (hopeless)
            drop_locked(r);
        else
            consider(r, *error, false);
        wfi_net_unlock(agent->net);
    }
    drop(r);
    if (hopeless) {
        weft_future_unref(future);
        return st;
    }
    weft_error_unref(*error);
    *error = NULL;
    *out = future;
    return WEFT_OK;
}
