/* SPDX-License-Identifier: Apache-2.0 */
/* future_combine.c - futures made of futures: then, when_all, when_any. */
#include "base/alloc.h"
#include "base/text/refuse.h"
#include "future/future_impl.h"

#include <stdlib.h>

/* ---- then ---- */

/* A child of `then` and the function that completes it, in one block of memory that is freed with the child. */
typedef struct continuation {
    weft_future child; /* first, so that freeing it frees all */
    wfi_callback callback;
    /* Not a reference: otherwise an abandoned parent could never be freed. NULL after the parent has called or
     * forgotten `callback`, which it does before it is freed. [the child's lock] */
    weft_future *parent;
    weft_then_fn fn;
    void *arg;
    weft_drop_fn drop;
} continuation;

/* No-op if the child is complete. */
static void fail_child(weft_future *child, weft_status code, const char *text)
{
    weft_error *error = weft_error_create(code, "%s", text);
    weft_status ignored = wfi_future_fail(child, error);
    (void)ignored;
    weft_error_unref(error);
}

static void leave_parent(continuation *self)
{
    wfi_mutex_lock(&self->child.lock);
    self->parent = NULL;
    wfi_mutex_unlock(&self->child.lock);
}

static void end_continuation(continuation *self)
{
    if (self->drop)
        self->drop(self->arg);
    weft_future_unref(&self->child);
}

static void run_continuation(wfi_callback *callback, weft_future *parent)
{
    continuation *self = wfi_container_of(callback, continuation, callback);
    weft_status status;
    leave_parent(self);
    status = self->fn(parent, &self->child, self->arg);
    if (status != WEFT_OK)
        fail_child(&self->child, status < 0 ? status : WEFT_ERR_INVALID,
                   status < 0 ? "the continuation failed" : "the continuation returned what is no status");
    end_continuation(self);
}

/* The parent was freed before it was complete. */
static void forget_continuation(wfi_callback *callback)
{
    continuation *self = wfi_container_of(callback, continuation, callback);
    leave_parent(self);
    fail_child(&self->child, WEFT_ERR_CANCELLED, "the future that this one continues was dropped incomplete");
    end_continuation(self);
}

static void hold_child(void *owner)
{
    continuation *self = owner;
    (void)weft_future_ref(&self->child);
}

/* Removes the callback from the parent, which may exist for a long time, unless the parent is calling it or being
 * freed. */
static void cancel_child(void *owner, uint64_t id)
{
    continuation *self = owner;
    weft_future *parent;
    (void)id;
    fail_child(&self->child, WEFT_ERR_CANCELLED, "the future was cancelled");
    wfi_mutex_lock(&self->child.lock);
    parent = self->parent && wfi_future_ref_unless_dying(self->parent) ? self->parent : NULL;
    wfi_mutex_unlock(&self->child.lock);
    if (parent && wfi_future_remove_callback(parent, &self->callback)) {
        leave_parent(self);
        end_continuation(self);
    }
    weft_future_unref(parent);
    weft_future_unref(&self->child);
}

static const wfi_canceller child_canceller = {.hold = hold_child, .cancel = cancel_child};

static weft_future *continue_future(weft_future *parent, weft_then_fn fn, void *arg, weft_drop_fn drop, bool owned)
{
    continuation *self = parent && fn ? wfi_calloc(1, sizeof(*self)) : NULL;
    if (!self) {
        if (drop)
            drop(arg);
        return NULL;
    }
    wfi_future_init(&self->child, parent->executor, parent->driver);
    self->child.owned = owned;
    self->callback = (wfi_callback){.call = run_continuation, .forget = forget_continuation};
    self->parent = parent;
    self->fn = fn;
    self->arg = arg;
    self->drop = drop;
    wfi_future_set_canceller(&self->child, &child_canceller, self, 0);
    (void)weft_future_ref(&self->child); /* for the callback */
    wfi_future_add_callback(parent, &self->callback);
    return &self->child;
}

weft_future *weft_future_then(weft_future *future, weft_then_fn fn, void *arg, weft_drop_fn drop)
{
    WFI_CHECK_HANDLE(future);
    if (!future || !fn)
        (void)wfi_refuse_null("weft_future_then", !future ? "the future" : "fn");
    (void)weft_future_ref(future); /* the continuation may run at once, and drop the caller's reference */
    weft_future *child = continue_future(future, fn, arg, drop, false);
    weft_future_unref(future);
    return child;
}

weft_future *wfi_future_then(weft_future *future, weft_then_fn fn, void *arg, weft_drop_fn drop)
{
    return continue_future(future, fn, arg, drop, true);
}

/* ---- when_all, when_any ---- */

/* A reference-counted array of futures, each referenced, or NULL. If it is a payload, the payload points to
 * `futures`. */
typedef struct members {
    _Atomic uint32_t refs;
    size_t count;
    weft_future *futures[];
} members;

typedef struct collection collection;
typedef struct part {
    wfi_observer observer;
    collection *whole;
    weft_future *member; /* not a reference: otherwise it could never be freed; NULL if it was freed. [lock] */
} part;

/*
 * Joins the members to the child. It exists while a member may still call it, its parts are being registered, or it is
 * being cancelled. The members hold it. It holds the members that are complete, and those that it is about to leave or
 * to cancel.
 */
struct collection {
    atomic_size_t refs;
    wfi_mutex lock; /* a leaf; guards which members are held: from->futures and part.member */
    weft_future *child;
    members *from;
    members *result;       /* the child's payload, until it completes: `from`, or an array for one */
    bool any;              /* when_any: the first completion is enough */
    atomic_size_t pending; /* when_all: incomplete parts, plus one while they are being registered */
    atomic_size_t left;    /* when_any: members that were not freed before they were complete */
    atomic_bool won;       /* when_any: the child has been completed */
    atomic_int open;       /* when_any: how many of registering and the first completion are still to come */
    collection *next_to_cancel;
    wfi_task release;
    part parts[];
};

static members *make_members(size_t count)
{
    size_t bytes;
    members *made;
    if (__builtin_mul_overflow(count, sizeof(made->futures[0]), &bytes) ||
        __builtin_add_overflow(bytes, sizeof(*made), &bytes) || !(made = wfi_calloc(1, bytes)))
        return NULL;
    atomic_init(&made->refs, 1);
    made->count = count;
    return made;
}

static void unref_members(members *list)
{
    size_t i;
    if (!list || atomic_fetch_sub(&list->refs, 1) != 1)
        return;
    for (i = 0; i < list->count; i++)
        weft_future_unref(list->futures[i]);
    free(list);
}

static void drop_members(void *payload)
{
    unref_members(wfi_container_of(payload, members, futures));
}

/* The same without dropping the last reference to any future. False if such references are left. */
static bool unref_members_unless_last(members *list)
{
    uint32_t refs = atomic_load(&list->refs);
    bool left = false;
    size_t i;
    while (refs > 1)
        if (atomic_compare_exchange_weak(&list->refs, &refs, refs - 1))
            return true;
    for (i = 0; i < list->count; i++) {
        if (list->futures[i] && wfi_future_unref_unless_last(list->futures[i]))
            list->futures[i] = NULL;
        left |= list->futures[i] != NULL;
    }
    if (!left)
        free(list);
    return !left;
}

static void free_collection(collection *whole)
{
    wfi_mutex_fini(&whole->lock);
    free(whole);
}

static void release_collection(wfi_task *task)
{
    collection *whole = wfi_container_of(task, collection, release);
    unref_members(whole->result);
    unref_members(whole->from);
    weft_future_unref(whole->child);
    free_collection(whole);
}

/* The executor drops last references to futures: the thread that completes a member may hold any lock, and dropping a
 * payload runs user code. */
static void unref_collection(collection *whole)
{
    if (atomic_fetch_sub(&whole->refs, 1) != 1)
        return;
    if (whole->result && unref_members_unless_last(whole->result))
        whole->result = NULL;
    if (unref_members_unless_last(whole->from))
        whole->from = NULL;
    if (!whole->result && !whole->from && wfi_future_unref_unless_last(whole->child)) {
        free_collection(whole);
        return;
    }
    whole->release.run = release_collection;
    wfi_executor_submit(whole->child->executor, &whole->release);
}

static void complete_child(collection *whole)
{
    members *result = whole->result;
    /* Held until the child has taken it: dropping it may run user code, which must not run here. */
    atomic_fetch_add(&result->refs, 1);
    if (wfi_future_complete(whole->child, result->futures, drop_members) == WEFT_OK) {
        atomic_fetch_sub(&result->refs, 1); /* the child has one, and `whole` holds the child */
        whole->result = NULL;
    }
}

/* The member, which is held until the collection is freed; NULL if the member was freed. */
static weft_future *hold_member(part *one)
{
    collection *whole = one->whole;
    weft_future **held = &whole->from->futures[one - whole->parts];
    wfi_mutex_lock(&whole->lock);
    if (!*held && one->member && wfi_future_ref_unless_dying(one->member))
        *held = one->member;
    weft_future *member = *held;
    wfi_mutex_unlock(&whole->lock);
    return member;
}

/* Removes the observers from incomplete members, which may exist for a long time. */
static void forget_parts(collection *whole)
{
    size_t i;
    for (i = 0; i < whole->from->count; i++) {
        weft_future *member = hold_member(&whole->parts[i]);
        if (member && wfi_future_unobserve(member, &whole->parts[i].observer))
            unref_collection(whole); /* not the last reference: the caller has one */
    }
}

static void close_one(collection *whole)
{
    if (atomic_fetch_sub(&whole->open, 1) == 1)
        forget_parts(whole);
}

static void keep_completed(part *self)
{
    collection *whole = self->whole;
    weft_future **held = &whole->from->futures[self - whole->parts], *extra;
    wfi_mutex_lock(&whole->lock);
    extra = *held;
    *held = self->observer.future;
    wfi_mutex_unlock(&whole->lock);
    if (extra)
        wfi_future_unref_unless_last(extra); /* never the last: both references are to the same future */
}

static void part_completed(wfi_observer *observer)
{
    part *self = wfi_container_of(observer, part, observer);
    collection *whole = self->whole;
    keep_completed(self);
    if (!whole->any) {
        if (atomic_fetch_sub(&whole->pending, 1) == 1)
            complete_child(whole);
    } else if (!atomic_exchange(&whole->won, true)) {
        whole->result->futures[0] = weft_future_ref(observer->future);
        whole->result->count = 1;
        complete_child(whole);
        close_one(whole);
    }
    unref_collection(whole);
}

/* The member was freed before it was complete. when_all then fails; when_any fails only if no member is left. */
static void part_dropped(wfi_observer *observer)
{
    part *self = wfi_container_of(observer, part, observer);
    collection *whole = self->whole;
    wfi_mutex_lock(&whole->lock);
    self->member = NULL;
    wfi_mutex_unlock(&whole->lock);
    if (!whole->any || atomic_fetch_sub(&whole->left, 1) == 1)
        fail_child(whole->child, WEFT_ERR_CANCELLED, "a future that this one was made of was dropped incomplete");
    unref_collection(whole);
}

/* ---- Cancelling them ---- */

static void hold_collection(void *owner)
{
    collection *whole = owner;
    atomic_fetch_add(&whole->refs, 1);
}

/* Members may be collections, in chains of any length. Collections to be cancelled while this thread cancels another
 * one wait in this queue, so that the stack does not grow with the chain. `end` is where the next one is linked in;
 * NULL: this thread cancels none. */
static _Thread_local struct {
    collection *first, **end;
} to_cancel;

static void cancel_members(collection *whole)
{
    size_t i;
    for (i = 0; i < whole->from->count; i++) {
        weft_future *member = hold_member(&whole->parts[i]);
        weft_status status = member ? weft_future_cancel(member) : WEFT_OK;
        (void)status; /* some may be complete */
    }
}

static void cancel_collection(void *owner, uint64_t id)
{
    collection *whole = owner;
    (void)id;
    if (to_cancel.end) { /* the loop below runs, further down on this stack */
        *to_cancel.end = whole;
        to_cancel.end = &whole->next_to_cancel;
        return;
    }
    to_cancel.first = whole;
    to_cancel.end = &whole->next_to_cancel;
    while ((whole = to_cancel.first)) {
        cancel_members(whole);
        to_cancel.first = whole->next_to_cancel;
        if (!to_cancel.first)
            to_cancel.end = &to_cancel.first;
        unref_collection(whole);
    }
    to_cancel.end = NULL;
}

static const wfi_canceller collection_canceller = {.hold = hold_collection, .cancel = cancel_collection};

/* ---- Making them ---- */

static collection *make_collection(weft_future *child, size_t count, bool any)
{
    size_t bytes;
    collection *whole;
    if (__builtin_mul_overflow(count, sizeof(whole->parts[0]), &bytes) ||
        __builtin_add_overflow(bytes, sizeof(*whole), &bytes) || !(whole = wfi_calloc(1, bytes)))
        return NULL;
    whole->from = make_members(count);
    if (any) {
        whole->result = make_members(1);
        if (whole->result)
            whole->result->count = 0; /* until a member is complete */
    } else if (whole->from) {
        whole->result = whole->from;
        atomic_fetch_add(&whole->from->refs, 1);
    }
    if (!whole->from || !whole->result) {
        unref_members(whole->from);
        unref_members(whole->result);
        free(whole);
        return NULL;
    }
    wfi_mutex_init(&whole->lock);
    whole->child = weft_future_ref(child);
    whole->any = any;
    atomic_init(&whole->refs, count + 1); /* one for each part, one for register_parts */
    atomic_init(&whole->pending, count + 1);
    atomic_init(&whole->left, count);
    atomic_init(&whole->open, 2); /* registering, and the first completion */
    return whole;
}

/* The caller holds references to the members. */
static void register_parts(collection *whole, weft_future *const *futures)
{
    size_t i;
    for (i = 0; i < whole->from->count; i++) {
        whole->parts[i] = (part){
            .observer = {.completed = part_completed, .dropped = part_dropped}, .whole = whole, .member = futures[i]};
        wfi_list_init(&whole->parts[i].observer.link);
    }
    for (i = 0; i < whole->from->count; i++)
        wfi_future_observe(futures[i], &whole->parts[i].observer);
    if (whole->any)
        close_one(whole);
    else if (atomic_fetch_sub(&whole->pending, 1) == 1)
        complete_child(whole);
    unref_collection(whole);
}

static weft_future *join(const char *function, weft_future *const *futures, size_t count, bool any)
{
    const weft_future *first;
    weft_future *child;
    collection *whole = NULL;
    if (wfi_futures_check(function, futures, count) != WEFT_OK)
        return NULL;
    first = count > 0 ? futures[0] : NULL;
    child = first ? wfi_future_create(first->executor, first->driver) : wfi_future_create(NULL, NULL);
    if (!child)
        return NULL;
    wfi_future_own(child);
    if (any && count == 0)
        return child; /* it will never complete, but it can be cancelled */
    whole = make_collection(child, count, any);
    if (!whole) {
        weft_future_unref(child);
        return NULL;
    }
    wfi_future_set_canceller(child, &collection_canceller, whole, 0);
    register_parts(whole, futures);
    return child;
}

weft_future *weft_future_when_all(weft_future *const *futures, size_t count)
{
    return join("weft_future_when_all", futures, count, false);
}

weft_future *weft_future_when_any(weft_future *const *futures, size_t count)
{
    return join("weft_future_when_any", futures, count, true);
}
