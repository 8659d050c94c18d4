/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retry.c - calls with retries, and calls whose arguments are first copied from devices.
 *
 * The user gets one future. Behind it, ordinary calls (attempts) are made one after another, until one succeeds or
 * fails permanently, or no attempts or no time are left:
 *
 *     STAGING -> TRYING -> PAUSING -> TRYING -> ... -> OVER
 *
 * It begins with STAGING if there are tensors of devices (staging.h), otherwise with TRYING.
 *
 * An observer of the attempt's future begins the pause or ends the call. A timer, or room in the peer's queue, ends the
 * pause. A deferred task then makes the next attempt, on the thread that releases the lock. Neither the observer nor
 * the task needs a thread of the executor, as weft_future_then would: all these threads may be waiting for retried
 * calls.
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

typedef enum retry_state {
    STAGING, /* the arguments are being copied to page-locked memory, until `copied` is called or `timer` fires */
    TRYING,  /* an attempt is about to start, is being started, or is in flight */
    PAUSING, /* until `timer` fires or `room` is woken */
    OVER,    /* the user's future is complete, and `task` will drop the retry's own reference */
} retry_state;

typedef struct retry {
    weft_agent *agent;
    atomic_int refs;     /* the retry itself, and cancellers */
    weft_future *future; /* the user's */
    wfi_call_spec spec;  /* of all attempts; its pointers are to the fields below, its deadline is that of the call */
    weft_rpc_options options;
    wfi_span within;          /* for spec.within */
    uint8_t *devices;         /* for spec.devices */
    weft_values *args, *kept; /* `kept`: landing places, name of the function, name of the target */
    wfi_shared_body *packed;  /* set by the first attempt that needs it */

    /* ---- agent lock. `attempts` and `room` change only in a pause, and on the thread that starts an attempt ---- */
    retry_state state;
    wfi_list link; /* agent->retries */
    wfi_child child;
    weft_future *attempt; /* in flight; NULL: none */
    wfi_observer observer;
    weft_error *stop; /* why no further attempt is made; NULL: one may be */
    bool may_have_run;
    int attempts; /* number of the current attempt; one that waits for room in the queue keeps its number */
    uint64_t pause_ns, pause_most_ns; /* the next pause, and the longest one, before they are varied */
    size_t waiting_bytes;             /* its part of agent->waiting_bytes: in STAGING and PAUSING */
    wfi_timer timer;
    wfi_stage_waiter copied;
    wfi_room_waiter room; /* waits from a pause for room until the attempt after it has been tried */
    wfi_task task;
} retry;

static void drop(retry *r)
{
    if (atomic_fetch_sub(&r->refs, 1) != 1)
        return;
    weft_values_unref(r->args);
    weft_values_unref(r->kept);
    wfi_shared_body_unref(r->packed);
    if (r->spec.source)
        wfi_recording_ops_get()->unref(r->spec.source);
    weft_rref_unref(r->spec.remote);
    weft_future_unref(r->future);
    weft_error_unref(r->stop);
    free(r->devices);
    wfi_agent_unref(r->agent);
    free(r);
}

/* ---- The end ----------------------------------------------------------------------------------------------------- */

/*
 * The error of the call as a whole, if its last attempt failed with `error`. If an earlier attempt may have run, the
 * error must not say that the call did not run. The codes of timeouts, cancellations, peers and agents are kept: with
 * them weft_error_ran says whether the call may have run. Any other code becomes WEFT_ERR_UNKNOWN. A reference
 * for the caller. [agent lock]
 */
static weft_error *failure_of_all(const retry *r, const weft_error *error)
{
    weft_status code = weft_error_code(error);
    if (!r->may_have_run || weft_error_ran(error) != WEFT_RAN_NO)
        return weft_error_ref(error);
    /* peers and agents have the last two blocks of codes, from WEFT_ERR_PEER_DEAD on */
    if (code == WEFT_ERR_TIMEOUT || code == WEFT_ERR_CANCELLED || code <= WEFT_ERR_PEER_DEAD)
        return wfi_error_recoded(error, code, WEFT_ERR_UNKNOWN, -1);
    wfi_error_detail detail = {.code = WEFT_ERR_UNKNOWN,
                               .remote_code = WEFT_ERR_UNKNOWN,
                               .function = r->spec.function,
                               .worker = weft_error_worker(error)};
    return wfi_error_create(&detail, "an attempt before the last may have run; the last one did not: %s, %s",
                            weft_status_name(code), weft_error_message(error));
}

/* No-op if there is no pause. [agent lock] */
static void end_wait(retry *r)
{
    r->agent->waiting_bytes -= r->waiting_bytes;
    r->waiting_bytes = 0;
    wfi_net_timer_clear(r->agent->net, &r->timer);
}

/* Completes the user's future: with `values`, or with failure_of_all of `error`. [agent lock] */
static void finish(retry *r, const weft_values *values, const weft_error *error)
{
    weft_error *failure = error ? failure_of_all(r, error) : NULL;
    end_wait(r);
    r->state = OVER;
    wfi_room_leave(&r->room);
    wfi_stage_waiter_leave(&r->copied);
    wfi_list_remove(&r->link);
    wfi_child_end(&r->child, failure);
    wfi_call_complete_future(r->future, r->spec.remote, values, failure);
    weft_error_unref(failure);
    wfi_net_defer(r->agent->net, &r->task, WFI_DEFER_RELEASE);
}

/* Makes no more attempts. The function that calls this ends an attempt in flight. [agent lock] */
static void stop(retry *r, weft_status why, const char *text)
{
    if (r->state == OVER || r->stop)
        return;
    wfi_error_detail detail = {.code = why, .function = r->spec.function, .worker = -1};
    r->stop = wfi_error_create(&detail, "%s", text);
    if (r->state == PAUSING || r->state == STAGING)
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

/* Takes over the reference. Not locked. */
static void cancel_attempt(weft_future *attempt)
{
    if (attempt)
        (void)!weft_future_cancel(attempt); /* if it has ended meanwhile, attempt_ended was called */
    weft_future_unref(attempt);
}

static void hold_retry(void *owner)
{
    atomic_fetch_add(&((retry *)owner)->refs, 1);
}

static void cancel_retry(void *owner, uint64_t id)
{
    retry *r = owner;
    weft_future *attempt = NULL;
    (void)id;
    if (wfi_agent_enter_locked(r->agent)) {
        stop(r, WEFT_ERR_CANCELLED, "the caller cancelled it");
        attempt = weft_future_ref(r->attempt);
        wfi_agent_leave_locked(r->agent);
    }
    cancel_attempt(attempt);
    drop(r);
}

static const wfi_canceller retry_canceller = {.hold = hold_retry, .cancel = cancel_retry};

/* ---- Whether to try again ---------------------------------------------------------------------------------------- */

/* Whether a worker may still get the name, which no living worker has. In an elastic job any new worker may; in a
 * static one, a worker that takes the rank of one that had it. A name that no worker of a static job ever had is a
 * mistake. [agent lock] */
static bool may_be_named(const retry *r)
{
    bool may = r->attempts > 1 || r->agent->options.values.elastic;
    for (int rank = 0; !may && rank < r->agent->options.values.world_size; rank++) {
        const wfi_member *last = wfi_net_member(r->agent->net, rank);
        may = last && strcmp(last->name, r->spec.to.name) == 0;
    }
    return may;
}

/*
 * Whether another attempt may succeed. A call of weft_rpc_remote has one name for its result in all attempts, and the
 * owner keeps the outcome under that name. So it is tried again only if it certainly did not run: it was not started,
 * or was refused with WEFT_ERR_BUSY (then the owner keeps the name for the next attempt). [agent lock]
 */
static bool may_pass(const retry *r, const weft_error *error, bool started)
{
    const weft_agent *agent = r->agent;
    weft_status inner = weft_error_handler_code(error);
    bool named = r->spec.to.name != NULL, is_remote = r->spec.remote != NULL;
    switch (weft_error_code(error)) {
    case WEFT_ERR_BUSY:
        return true;
    case WEFT_ERR_AGAIN: /* a first attempt is final if the retries in their pauses hold queue_limit_bytes */
        return started ? !is_remote : r->attempts > 1 || agent->waiting_bytes < agent->options.values.queue_limit_bytes;
    case WEFT_ERR_UNREACHABLE:
        return !started || !is_remote;
    case WEFT_ERR_UNKNOWN:
        return !is_remote;
    case WEFT_ERR_TIMEOUT:
        return !is_remote && r->options.retry.attempt_ms > 0;
    case WEFT_ERR_REMOTE: /* the handler itself may ask for another attempt */
        return !is_remote && (inner == WEFT_ERR_BUSY || inner == WEFT_ERR_AGAIN);
    case WEFT_ERR_PEER_DEAD:
    case WEFT_ERR_PEER_LEFT:
        return named;
    case WEFT_ERR_NOT_FOUND:
        return named && !started && may_be_named(r);
    default:
        return false;
    }
}

/* Returns when the pause that begins now ends, and lengthens the next one. The pause is varied by up to a quarter, with
 * a hash of time, call, rank and attempt, so that a simulation repeats it. [agent lock] */
static uint64_t end_of_pause(retry *r)
{
    uint64_t now = wfi_now(wfi_net_clock(r->agent->net));
    uint64_t pause = r->pause_ns < r->pause_most_ns ? r->pause_ns : r->pause_most_ns;
    const uint64_t seed[] = {now, r->agent->next_call_id, (uint64_t)wfi_agent_rank(r->agent), (uint64_t)r->attempts};
    uint64_t share = wfi_hash_bytes(seed, sizeof(seed)) >> 33 & 0xffff; /* of 65,536 */
    r->pause_ns = pause + pause / 2;
    return now + pause / 4 * 3 + pause / 2 / 65536 * share;
}

/* [agent lock] */
static void begin_wait(retry *r, retry_state state)
{
    r->waiting_bytes = sizeof(*r) + wfi_values_bytes(r->spec.arguments) + wfi_shared_body_bytes(r->packed);
    r->agent->waiting_bytes += r->waiting_bytes;
    r->state = state;
}

/*
 * An attempt failed: begins a pause, or ends the call. With wait_for_room, an attempt that found the queue full is made
 * again when there is room, or when the deadline passes: then it ends with WEFT_ERR_TIMEOUT. [agent lock]
 */
static void retry_or_finish(retry *r, const weft_error *error, bool started)
{
    weft_agent *agent = r->agent;
    weft_status why = weft_error_code(error);
    bool awaits_room = why == WEFT_ERR_AGAIN && !started && r->options.wait_for_room;
    wfi_peer *full = awaits_room ? wfi_net_peer(agent->net, weft_error_worker(error)) : NULL;
    r->may_have_run |= weft_error_ran(error) != WEFT_RAN_NO;
    uint64_t until = full ? r->spec.deadline_ns : end_of_pause(r);
    bool has_next = full || (r->attempts < r->options.retry.attempts && until < r->spec.deadline_ns);
    bool pauses = has_next && !r->stop && may_pass(r, error, started);
    if (pauses && until != WFI_NEVER)
        pauses = wfi_net_timer_set(agent->net, &r->timer, until) == WEFT_OK;
    if (!pauses) {
        bool by_itself = !r->stop || (started && why != WEFT_ERR_CANCELLED);
        finish(r, NULL, by_itself ? error : r->stop);
        return;
    }
    if (full)
        wfi_room_await(&r->room, full);
    begin_wait(r, PAUSING);
}

/* An attempt's future is complete. [agent lock] */
static void attempt_ended(wfi_observer *observer)
{
    retry *r = wfi_container_of(observer, retry, observer);
    weft_future *attempt = r->attempt;
    wfi_assert_held(wfi_net_mutex(r->agent->net)); /* calls complete with the lock held */
    r->attempt = NULL;
    wfi_future_unref_unless_last(attempt); /* the observer's reference; r->attempt was another one */
    if (weft_future_error(attempt))
        retry_or_finish(r, weft_future_error(attempt), true);
    else
        finish(r, weft_future_values(attempt), NULL);
    weft_future_unref(attempt); /* frees no values: the user's future or the call also holds them */
}

/* ---- Attempts ---------------------------------------------------------------------------------------------------- */

/* Makes an attempt. If it could not be started, and no further attempt may succeed, returns why, with a reference;
 * otherwise NULL. The retry may be freed before this function returns. Not locked; the state is TRYING. */
static weft_error *make_attempt(retry *r)
{
    weft_agent *agent = r->agent;
    weft_future *attempt = NULL, *unwanted = NULL;
    weft_error *error = NULL, *failure = NULL;
    wfi_call_spec spec = r->spec;
    weft_rpc_options options = r->options;
    spec.options = &options;
    spec.waited = r->room.peer != NULL;
    options.wait_for_room &=
        r->attempts == 1 &&
        !wfi_shared_body_staging(r->packed); /* only the first attempt is made on a thread that may block */
    if (options.retry.attempt_ms && !spec.remote) {
        uint64_t limit = wfi_deadline(wfi_net_clock(agent->net), options.retry.attempt_ms);
        spec.deadline_ns = limit < spec.deadline_ns ? limit : spec.deadline_ns;
    }
    weft_status status = wfi_call_begin(agent, &spec, &attempt, &error);
    wfi_net_lock(agent->net);
    wfi_room_leave(&r->room); /* wakes the next waiter if there is still room */
    if (!status) {
        r->attempt = attempt;
        unwanted = r->stop ? weft_future_ref(attempt) : NULL;
        wfi_future_observe(attempt, &r->observer);
    } else {
        if (!may_pass(r, error, false))
            failure = weft_error_ref(error);
        retry_or_finish(r, error, false);
    }
    wfi_net_unlock(agent->net);
    cancel_attempt(unwanted);
    weft_error_unref(error);
    return failure;
}

/* After a pause, or at the end. */
static void go_on(wfi_task *task)
{
    retry *r = wfi_container_of(task, retry, task);
    weft_agent *agent = r->agent;
    if (r->state == OVER) {
        drop(r);
        return;
    }
    wfi_net_lock(agent->net);
    bool is_stopped = r->stop != NULL; /* since the pause ended */
    if (is_stopped)
        finish(r, NULL, r->stop);
    wfi_net_unlock(agent->net);
    if (!is_stopped)
        weft_error_unref(make_attempt(r));
    wfi_agent_leave(agent);
}

/* The timer has fired, or there is room. [agent lock] */
static void end_pause(retry *r)
{
    weft_agent *agent = r->agent;
    if (r->state != PAUSING)
        return;
    end_wait(r);
    r->state = TRYING;
    if (!r->room.peer) {
        r->attempts++;
        agent->stats.calls_retried++;
    }
    (void)wfi_agent_enter(agent); /* it stays open until go_on; it is open: wfi_retries_fail_all ends all pauses */
    wfi_net_defer(agent->net, &r->task, WFI_DEFER_RELEASE);
}

static void time_came(wfi_timer *timer)
{
    retry *r = wfi_container_of(timer, retry, timer);
    if (r->state == STAGING)
        stop(r, WEFT_ERR_TIMEOUT, "its time ran out while its arguments were copied from a device");
    else
        end_pause(r);
}

/* The arguments have been copied from their devices. [agent lock] */
static void arguments_copied(wfi_stage_waiter *waiter, weft_status status)
{
    retry *r = wfi_container_of(waiter, retry, copied);
    wfi_error_detail detail = {.code = status, .function = r->spec.function, .worker = -1};
    weft_error *error = status ? wfi_error_create(&detail, "its arguments could not be copied from a device: %s",
                                                  weft_status_text(status))
                               : NULL;
    wfi_shared_body_copied(r->packed);
    if (error) {
        finish(r, NULL, error);
    } else {
        end_wait(r);
        r->state = TRYING;
        (void)wfi_agent_enter(r->agent); /* it is open: closing waits for the copies */
        wfi_net_defer(r->agent->net, &r->task, WFI_DEFER_RELEASE);
    }
    weft_error_unref(error);
}

static void room_came(wfi_done *done)
{
    end_pause(wfi_container_of(done, retry, room.woken));
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

/* Copies the spec, and what it points to: the attempts use it later. */
static weft_status keep_spec(retry *r, const wfi_call_spec *spec)
{
    const char *name = spec->to.name;
    weft_args kept = WEFT_VALUES(weft_of_tensors(spec->options->land), weft_of_string(spec->function),
                                 name ? weft_of_string(name) : weft_of_null());
    weft_status status = wfi_values_create(spec->arguments, &r->args);
    if (!status)
        status = wfi_values_create(kept, &r->kept);
    if (status)
        return status;
    kept = weft_values_args(r->kept);
    r->options = *spec->options;
    r->options.land = kept.items[0].as.tensors;
    r->options.parent = NULL;
    r->options.error = NULL;
    r->spec = (wfi_call_spec){.to = {spec->to.rank, name ? kept.items[2].as.bytes.data : NULL, spec->to.incarnation},
                              .function = kept.items[1].as.bytes.data,
                              .arguments = weft_values_args(r->args),
                              .options = &r->options,
                              .remote = weft_rref_ref(spec->remote),
                              .is_attempt = true,
                              .packed = &r->packed,
                              .parent = (const weft_call *const *)&r->child.parent,
                              .source = spec->source ? wfi_recording_ops_get()->ref(spec->source) : NULL,
                              .exempt = spec->exempt};
    if (spec->within) {
        r->within = *spec->within;
        r->spec.within = &r->within;
    }
    size_t tensors = spec->devices ? wfi_values_tensors(r->spec.arguments, NULL, 0) : 0;
    if (tensors && !(r->devices = malloc(tensors)))
        return WEFT_ERR_MEMORY;
    if (tensors)
        memcpy(r->devices, spec->devices, tensors);
    r->spec.devices = r->devices;
    if (spec->packed && *spec->packed)
        r->packed = wfi_shared_body_ref(*spec->packed);
    return WEFT_OK;
}

static weft_status make_retry(weft_agent *agent, const wfi_call_spec *spec, retry **out)
{
    const weft_retry *how = &spec->options->retry;
    int64_t pause_ms = how->pause_ms ? how->pause_ms : PAUSE_MS;
    int64_t most_ms = pause_ms > PAUSE_MOST_MS ? pause_ms : PAUSE_MOST_MS;
    retry *r = wfi_calloc(1, sizeof(*r));
    if (!r)
        return WEFT_ERR_MEMORY;
    *out = r;
    r->agent = wfi_agent_ref(agent);
    atomic_init(&r->refs, 1);
    r->attempts = 1;
    r->state = TRYING;
    r->pause_ns = wfi_ns_of_ms(pause_ms);
    r->pause_most_ns = wfi_ns_of_ms(how->pause_most_ms ? how->pause_most_ms : most_ms) / 5 * 4;
    r->child.parent_ended = stop_with_parent;
    r->observer.completed = attempt_ended;
    r->timer.fire = time_came;
    r->room.woken.run = room_came;
    r->task.run = go_on;
    r->copied.run = arguments_copied;
    wfi_list_init(&r->copied.link);
    r->future = wfi_agent_future(agent);
    return r->future ? keep_spec(r, spec) : WEFT_ERR_MEMORY;
}

/* ---- Arguments on devices ---------------------------------------------------------------------------------------- */

/* Begins to wait for the copies of the arguments from devices, if there are any. [agent lock] */
static weft_status await_staging(retry *r)
{
    wfi_staging *staging = wfi_shared_body_staging(r->packed);
    if (!staging)
        return WEFT_OK;
    if (!wfi_staging_await(staging, &r->copied)) {
        wfi_shared_body_copied(r->packed);
        return staging->status;
    }
    /* A later call that names the handle is perhaps sent first. */
    wfi_peer *peer = r->spec.remote ? wfi_net_peer(r->agent->net, r->spec.to.rank) : NULL;
    if (peer)
        (void)wfi_rref_announce(r->spec.remote, peer); /* if it fails, so does the call */
    weft_status status =
        r->spec.deadline_ns == WFI_NEVER ? WEFT_OK : wfi_net_timer_set(r->agent->net, &r->timer, r->spec.deadline_ns);
    if (status)
        wfi_stage_waiter_leave(&r->copied);
    else
        begin_wait(r, STAGING);
    return status;
}

/* Sets the deadline, unless it is set. WEFT_OK, or why the call cannot start. [agent lock] */
static weft_status may_start(retry *r, wfi_call_spec *spec)
{
    weft_agent *agent = r->agent;
    weft_status status = wfi_agent_usable(agent);
    return status ? status : wfi_call_limit(agent, spec, wfi_now(wfi_net_clock(agent->net)), &r->spec.deadline_ns);
}

weft_status wfi_retry_start(weft_agent *agent, wfi_call_spec *spec, weft_future **out, weft_error **error)
{
    retry *r = NULL;
    weft_status status = make_retry(agent, spec, &r);
    wfi_net_lock(agent->net);
    if (!status)
        status = may_start(r, spec);
    if (!status && wfi_values_on_device(spec->arguments)) {
        wfi_net_unlock(agent->net);
        status = wfi_spec_pack(agent, &r->spec); /* it may wait */
        wfi_net_lock(agent->net);
        if (!status)
            status = may_start(r, spec);
    }
    if (!status)
        status = await_staging(r);
    bool is_staging = !status && r->state == STAGING;
    if (!status) {
        wfi_child_join(&r->child, (weft_call *)*spec->parent);
        wfi_list_push_back(&agent->retries, &r->link);
        wfi_future_set_canceller(r->future, &retry_canceller, r, 0);
    }
    weft_future *future = status ? NULL : weft_future_ref(r->future); /* the retry may end once the lock is released */
    wfi_net_unlock(agent->net);
    if (status) {
        *error = wfi_spec_explain(agent, spec, status, -1);
        if (r)
            drop(r);
        return status;
    }
    if (is_staging) {
        *out = future;
        return WEFT_OK;
    }
    *error = make_attempt(r);
    if (*error)
        weft_future_unref(future);
    else
        *out = future;
    return weft_error_code(*error);
}
