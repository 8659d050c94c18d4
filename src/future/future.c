/* SPDX-License-Identifier: Apache-2.0 */
/*
 * future.c - creates futures, completes them once, submits their callbacks, and frees them.
 *
 * A pending callback holds no reference to its future: otherwise an abandoned future could never be freed. It gets one
 * when the future completes and the callback is submitted. Callbacks are submitted under the future's lock, so that
 * they run in the order of registration, even if one is added at the moment of completion.
 */
#include "base/alloc.h"
#include "base/text/refuse.h"
#include "future/future_impl.h"

#include <stdlib.h>

/* A callback of the user. */
typedef struct done_callback {
    wfi_callback base;
    weft_done_fn fn;
    void *arg;
    weft_drop_fn drop;
} done_callback;

void wfi_future_init(weft_future *future, wfi_executor *executor, wfi_driver *driver)
{
    WFI_HANDLE_INIT(future);
    atomic_init(&future->refs, 1);
    atomic_init(&future->state, FUTURE_PENDING);
    wfi_mutex_init(&future->lock);
    future->executor = wfi_executor_ref(executor ? executor : wfi_executor_process());
    future->driver = driver;
    wfi_list_init(&future->callbacks);
    wfi_list_init(&future->waiters);
    wfi_list_init(&future->observers);
}

weft_future *wfi_future_create(wfi_executor *executor, wfi_driver *driver)
{
    weft_future *future = wfi_calloc(1, sizeof(*future));
    if (future)
        wfi_future_init(future, executor, driver);
    return future;
}

void wfi_future_own(weft_future *future)
{
    future->owned = true;
}

void wfi_future_has_spun(weft_future *future)
{
    future->has_spun = true;
}

weft_future *weft_future_ref(weft_future *future)
{
    WFI_CHECK_HANDLE(future);
    uint32_t before;
    if (!future)
        return NULL;
    before = atomic_fetch_add_explicit(&future->refs, 1, memory_order_relaxed);
    assert(before > 0 && before < UINT32_MAX);
    (void)before;
    return future;
}

static void drop_arg(void *arg, weft_drop_fn drop)
{
    if (drop)
        drop(arg);
}

static void free_future(weft_future *future)
{
    wfi_list *link;
    assert(wfi_list_empty(&future->waiters) && "they hold references");
    while ((link = wfi_list_pop_front(&future->observers))) {
        wfi_observer *observer = wfi_container_of(link, wfi_observer, link);
        observer->dropped(observer);
    }
    while ((link = wfi_list_pop_front(&future->callbacks))) {
        wfi_callback *one = wfi_container_of(link, wfi_callback, task.link);
        one->forget(one);
    }
    drop_arg(future->payload, future->drop);
    weft_error_unref(future->error);
    wfi_executor_unref(future->executor);
    wfi_mutex_fini(&future->lock);
    wfi_handle_free(future);
}

/*
 * Freeing a future can drop the last reference to others (the child of a `then`, the futures of a when_all), in
 * chains of any length. Those wait in this queue until the present one is freed, so that the stack does not grow
 * with the chain. `end` is where the next one is linked in; NULL: this thread frees no future.
 */
static _Thread_local struct {
    weft_future *first, **end;
} to_free;

void weft_future_unref(weft_future *future)
{
    WFI_CHECK_HANDLE(future);
    uint32_t before;
    if (!future)
        return;
    before = atomic_fetch_sub_explicit(&future->refs, 1, memory_order_acq_rel);
    if (!WFI_HANDLE_IS_LAST(future, before))
        return;
    if (to_free.end) { /* the loop below runs, further down on this stack */
        *to_free.end = future;
        to_free.end = &future->next_to_free;
        return;
    }
    to_free.end = &to_free.first;
    while (future) {
        free_future(future);
        future = to_free.first;
        if (future)
            to_free.first = future->next_to_free;
        if (!to_free.first)
            to_free.end = &to_free.first;
    }
    to_free.end = NULL;
}

bool wfi_future_unref_unless_last(weft_future *future)
{
    uint32_t refs = atomic_load_explicit(&future->refs, memory_order_relaxed);
    while (refs > 1)
        if (atomic_compare_exchange_weak_explicit(&future->refs, &refs, refs - 1, memory_order_acq_rel,
                                                  memory_order_relaxed))
            return true;
    return false;
}

bool wfi_future_ref_unless_dying(weft_future *future)
{
    uint32_t refs = atomic_load_explicit(&future->refs, memory_order_relaxed);
    while (refs > 0)
        if (atomic_compare_exchange_weak_explicit(&future->refs, &refs, refs + 1, memory_order_relaxed,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void run_callback(wfi_task *task)
{
    wfi_callback *one = wfi_container_of(task, wfi_callback, task);
    weft_future *future = one->future;
    one->call(one, future);
    weft_future_unref(future);
}

/* The future is complete. [future lock] */
static void submit_callback(weft_future *future, wfi_callback *one)
{
    wfi_assert_held(&future->lock);
    one->future = weft_future_ref(future);
    wfi_executor_submit(future->executor, &one->task);
}

/* Notifies one waiter, which may be gone after the lock is released. [future lock] */
static void unpark_waiter(weft_future *future, wfi_waiting *waiting)
{
    int status = wfi_future_status(future), none = WEFT_OK;
    wfi_assert_held(&future->lock);
    if (status != WEFT_OK)
        atomic_compare_exchange_strong(&waiting->failure, &none, status);
    if (atomic_fetch_sub(&waiting->pending, 1) == 1 || status != WEFT_OK || waiting->any)
        wfi_unpark(&waiting->parker);
}

/* Observers complete other futures (a when_all of a when_all, in chains of any length). While this thread calls
 * observers, further ones are appended to the list, so that the stack does not grow with the chain. */
static _Thread_local wfi_list *calling;

static void call_observers(wfi_list *observers)
{
    wfi_list *link;
    if (calling) {
        wfi_list_splice(calling, observers);
        return;
    }
    calling = observers;
    while ((link = wfi_list_pop_front(observers))) {
        wfi_observer *observer = wfi_container_of(link, wfi_observer, link);
        observer->completed(observer);
    }
    calling = NULL;
}

/* Sets the state, then notifies callbacks, waiters and observers. [future lock], which it releases */
static void publish(weft_future *future, future_state state)
{
    wfi_list observers, *link;
    wfi_assert_held(&future->lock);
    atomic_store_explicit(&future->state, state, memory_order_release);
    wfi_list_init(&observers);
    wfi_list_splice(&observers, &future->observers);
    for (link = observers.next; link != &observers; link = link->next)
        wfi_container_of(link, wfi_observer, link)->future = weft_future_ref(future);
    while ((link = wfi_list_pop_front(&future->callbacks)))
        submit_callback(future, wfi_container_of(link, wfi_callback, task.link));
    while ((link = wfi_list_pop_front(&future->waiters)))
        unpark_waiter(future, wfi_container_of(link, wfi_waiter, link)->waiting);
    wfi_mutex_unlock(&future->lock);
    call_observers(&observers);
}

weft_status wfi_future_complete(weft_future *future, void *payload, weft_drop_fn drop)
{
    wfi_mutex_lock(&future->lock);
    if (weft_future_done(future)) {
        wfi_mutex_unlock(&future->lock);
        drop_arg(payload, drop);
        return WEFT_ERR_COMPLETED;
    }
    future->payload = payload;
    future->drop = drop;
    publish(future, FUTURE_PAYLOAD);
    return WEFT_OK;
}

weft_status wfi_future_fail(weft_future *future, const weft_error *error)
{
    wfi_mutex_lock(&future->lock);
    if (weft_future_done(future)) {
        wfi_mutex_unlock(&future->lock);
        return WEFT_ERR_COMPLETED;
    }
    future->error = weft_error_ref(error);
    publish(future, FUTURE_FAILED);
    return WEFT_OK;
}

/* Only weft completes the future, which may be complete. */
static weft_status refuse_owned(const char *function, const weft_future *future)
{
    if (weft_future_done(future))
        return WEFT_ERR_COMPLETED;
    return wfi_refuse(WEFT_ERR_STATE,
                      "%s: weft completes this future: complete only those of weft_future_create and "
                      "weft_future_then, or cancel it",
                      function);
}

weft_status weft_future_complete(weft_future *future, void *payload, weft_drop_fn drop)
{
    WFI_CHECK_HANDLE(future);
    if (future && !future->owned)
        return wfi_future_complete(future, payload, drop);
    drop_arg(payload, drop);
    return !future ? wfi_refuse_null("weft_future_complete", "the future")
                   : refuse_owned("weft_future_complete", future);
}

weft_status weft_future_fail(weft_future *future, const weft_error *error)
{
    WFI_CHECK_HANDLE(future, error);
    if (!future || !error)
        return wfi_refuse_null("weft_future_fail", !future ? "the future" : "error");
    return future->owned ? refuse_owned("weft_future_fail", future) : wfi_future_fail(future, error);
}

bool weft_future_done(const weft_future *future)
{
    WFI_CHECK_HANDLE(future);
    return future && atomic_load_explicit(&future->state, memory_order_acquire) != FUTURE_PENDING;
}

weft_status wfi_future_status(const weft_future *future)
{
    assert(weft_future_done(future));
    return weft_error_code(future->error);
}

void *weft_future_payload(const weft_future *future)
{
    WFI_CHECK_HANDLE(future);
    return weft_future_done(future) ? future->payload : NULL;
}

const weft_error *weft_future_error(const weft_future *future)
{
    WFI_CHECK_HANDLE(future);
    return weft_future_done(future) ? future->error : NULL;
}

weft_drop_fn wfi_future_payload_kind(const weft_future *future)
{
    return weft_future_done(future) ? future->drop : NULL;
}

/* ---- Callbacks ---- */

void wfi_future_add_callback(weft_future *future, wfi_callback *one)
{
    one->task = (wfi_task){.run = run_callback, .urgency = one->urgency};
    wfi_mutex_lock(&future->lock);
    if (weft_future_done(future))
        submit_callback(future, one);
    else
        wfi_list_push_back(&future->callbacks, &one->task.link);
    wfi_mutex_unlock(&future->lock);
}

bool wfi_future_remove_callback(weft_future *future, wfi_callback *one)
{
    bool pending;
    wfi_mutex_lock(&future->lock);
    pending = !weft_future_done(future);
    if (pending)
        wfi_list_remove(&one->task.link);
    wfi_mutex_unlock(&future->lock);
    return pending;
}

static void forget_done_callback(wfi_callback *base)
{
    done_callback *one = wfi_container_of(base, done_callback, base);
    drop_arg(one->arg, one->drop);
    free(one);
}

static void call_done_callback(wfi_callback *base, weft_future *future)
{
    done_callback *one = wfi_container_of(base, done_callback, base);
    one->fn(future, one->arg);
    forget_done_callback(base);
}

static weft_status add_done_callback(weft_future *future, wfi_urgency urgency, weft_done_fn fn, void *arg,
                                     weft_drop_fn drop)
{
    if (!future || !fn) {
        drop_arg(arg, drop);
        return wfi_refuse_null("weft_future_add_done_callback", !future ? "the future" : "fn");
    }
    done_callback *one = malloc(sizeof(*one));
    if (!one) {
        drop_arg(arg, drop);
        return WEFT_ERR_MEMORY;
    }
    *one = (done_callback){.base = {.urgency = urgency, .call = call_done_callback, .forget = forget_done_callback},
                           .fn = fn,
                           .arg = arg,
                           .drop = drop};
    (void)weft_future_ref(future); /* the callback may run at once, and drop the caller's reference */
    wfi_future_add_callback(future, &one->base);
    weft_future_unref(future);
    return WEFT_OK;
}

weft_status weft_future_add_done_callback(weft_future *future, weft_done_fn fn, void *arg, weft_drop_fn drop)
{
    WFI_CHECK_HANDLE(future);
    return add_done_callback(future, WFI_NORMAL, fn, arg, drop);
}

weft_status wfi_future_add_ending_callback(weft_future *future, weft_done_fn fn, void *arg, weft_drop_fn drop)
{
    return add_done_callback(future, WFI_ENDING, fn, arg, drop);
}

void wfi_future_observe(weft_future *future, wfi_observer *observer)
{
    bool done;
    wfi_mutex_lock(&future->lock);
    done = weft_future_done(future);
    if (!done)
        wfi_list_push_back(&future->observers, &observer->link);
    wfi_mutex_unlock(&future->lock);
    if (!done)
        return;
    observer->future = weft_future_ref(future);
    observer->completed(observer);
}

bool wfi_future_unobserve(weft_future *future, wfi_observer *observer)
{
    bool pending;
    wfi_mutex_lock(&future->lock);
    pending = !weft_future_done(future);
    if (pending)
        wfi_list_remove(&observer->link);
    wfi_mutex_unlock(&future->lock);
    return pending;
}

/* ---- Cancelling ---- */

void wfi_future_set_canceller(weft_future *future, const wfi_canceller *canceller, void *owner, uint64_t id)
{
    future->canceller = canceller;
    future->cancel_owner = owner;
    future->cancel_id = id;
}

static weft_status fail_cancelled(weft_future *future)
{
    weft_error *error = weft_error_create(WEFT_ERR_CANCELLED, "the future was cancelled");
    weft_status status = wfi_future_fail(future, error);
    weft_error_unref(error);
    return status;
}

weft_status weft_future_cancel(weft_future *future)
{
    WFI_CHECK_HANDLE(future);
    const wfi_canceller *canceller = future ? future->canceller : NULL;
    bool done, asked;
    if (!future)
        return wfi_refuse_null("weft_future_cancel", "the future");
    if (!canceller)
        return fail_cancelled(future);
    wfi_mutex_lock(&future->lock);
    done = weft_future_done(future);
    asked = future->cancel_asked;
    future->cancel_asked = true;
    if (!done && !asked)
        canceller->hold(future->cancel_owner);
    wfi_mutex_unlock(&future->lock);
    if (done)
        return WEFT_ERR_COMPLETED;
    if (!asked)
        canceller->cancel(future->cancel_owner, future->cancel_id);
    return WEFT_OK;
}
