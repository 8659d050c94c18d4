/* SPDX-License-Identifier: Apache-2.0 */
/* future_combine.c - futures made of futures: then, collect_all. */
#include "future/future_impl.h"

#include <stdlib.h>

/* ---- then ---- */

typedef struct continuation {
    weft_future *child;
    weft_then_fn fn;
    void *arg;
    weft_drop_fn drop;
} continuation;

/* The first completion wins; that one came before is not this one's concern. */
static void fail_child(weft_future *child, weft_status code, const char *text)
{
    weft_error *error = weft_error_create(code, "%s", text);
    weft_status ignored = weft_future_fail(child, error);
    (void)ignored;
    weft_error_unref(error);
}

static void run_continuation(weft_future *parent, void *arg)
{
    continuation *self = arg;
    weft_status status = self->fn(parent, self->child, self->arg);
    if (status < 0)
        fail_child(self->child, status, "the continuation failed");
    weft_future_unref(self->child);
    self->child = NULL;
}

static void drop_continuation(void *arg)
{
    continuation *self = arg;
    if (self->child != NULL) { /* it never ran: nobody can complete the parent any more */
        fail_child(self->child, WEFT_ERR_CANCELLED, "the future that this one continues was dropped incomplete");
        weft_future_unref(self->child);
    }
    if (self->drop != NULL)
        self->drop(self->arg);
    free(self);
}

weft_future *weft_future_then(weft_future *future, weft_then_fn fn, void *arg, weft_drop_fn drop)
{
    weft_future *child = wfi_future_create(future->executor, future->driver);
    continuation *self = malloc(sizeof *self);
    if (child == NULL || self == NULL) {
        weft_future_unref(child);
        free(self);
        if (drop != NULL)
            drop(arg);
        return NULL;
    }
    *self = (continuation){.child = weft_future_ref(child), .fn = fn, .arg = arg, .drop = drop};
    if (weft_future_add_done_callback(future, run_continuation, self, drop_continuation) != WEFT_OK) {
        weft_future_unref(child); /* `self` was dropped */
        return NULL;
    }
    return child;
}

/* ---- collect_all ---- */

/* The array that the child's payload points at, and what is needed to release it. */
typedef struct collected {
    size_t count;
    weft_future *futures[];
} collected;

typedef struct collection collection;
typedef struct part {
    wfi_observer observer;
    collection *whole;
} part;

struct collection {
    weft_future *child;
    collected *result;
    atomic_size_t pending; /* parts, and one for who registers them */
    part parts[];
};

static void drop_collected(void *arg)
{
    collected *result = wfi_container_of(arg, collected, futures);
    size_t i;
    for (i = 0; i < result->count; i++)
        weft_future_unref(result->futures[i]);
    free(result);
}

static void count_down(collection *whole)
{
    weft_status status;
    if (atomic_fetch_sub(&whole->pending, 1) != 1)
        return;
    status = weft_future_complete(whole->child, whole->result->futures, drop_collected);
    (void)status; /* WEFT_ERR_COMPLETED if the user completed it against the rules; the result was dropped */
    weft_future_unref(whole->child);
    free(whole);
}

static void part_completed(wfi_observer *observer)
{
    count_down(wfi_container_of(observer, part, observer)->whole);
}

static collected *collect(weft_future *const *futures, size_t count)
{
    size_t bytes, i;
    collected *result;
    if (__builtin_mul_overflow(count, sizeof *futures, &bytes) ||
        __builtin_add_overflow(bytes, sizeof *result, &bytes) || (result = malloc(bytes)) == NULL)
        return NULL;
    result->count = count;
    for (i = 0; i < count; i++)
        result->futures[i] = weft_future_ref(futures[i]);
    return result;
}

weft_future *weft_future_collect_all(weft_future *const *futures, size_t count)
{
    const weft_future *first = count > 0 ? futures[0] : NULL;
    weft_future *child =
        first != NULL ? wfi_future_create(first->executor, first->driver) : wfi_future_create(NULL, NULL);
    collected *result = collect(futures, count);
    collection *whole = result != NULL ? calloc(1, sizeof *whole + count * sizeof whole->parts[0]) : NULL;
    size_t i;
    if (child == NULL || whole == NULL)
        goto no_memory;
    whole->child = weft_future_ref(child);
    whole->result = result;
    atomic_init(&whole->pending, count + 1);
    for (i = 0; i < count; i++) {
        whole->parts[i] = (part){.observer.completed = part_completed, .whole = whole};
        wfi_future_observe(futures[i], &whole->parts[i].observer);
    }
    count_down(whole);
    return child;
no_memory:
    free(whole);
    if (result != NULL)
        drop_collected(result->futures);
    weft_future_unref(child);
    return NULL;
}
