/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hooks.c - the hooks of leaves.
 *
 * Hooks are only ever added. The map from a leaf to its hooks is read and changed under the lock. Each leaf's list
 * ends in an atomic pointer, so a pass walks it without the lock while others append.
 */
#include "autograd/hooks.h"

#include "base/alloc.h"
#include "base/handle.h"
#include "base/map.h"
#include "base/mutex.h"
#include "base/text/sized.h"
#include "future/future.h"

#include <weft/future.h>

#include <stdatomic.h>
#include <stdlib.h>

typedef struct hook {
    weft_leaf_hook how;
    _Atomic(struct hook *) next;
} hook;

typedef struct leaf_hooks {
    weft_tensor *leaf; /* referenced */
    _Atomic(hook *) first;
} leaf_hooks;

struct weft_hooks {
    wfi_handle handle;
    _Atomic uint32_t refs;
    wfi_mutex lock; /* guards `leaves` */
    wfi_map leaves; /* tensor id -> leaf_hooks */
    weft_pass_end_fn end;
    void *end_arg;
};

weft_status weft_hooks_create(weft_hooks **out, weft_error **error)
{
    weft_hooks *hooks = wfi_calloc(1, sizeof(*hooks));
    if (hooks) {
        WFI_HANDLE_INIT(hooks);
        atomic_init(&hooks->refs, 1);
        wfi_mutex_init(&hooks->lock);
        wfi_map_init(&hooks->leaves);
    }
    return WFI_GIVE("weft_hooks_create", hooks, NULL, weft_hooks_unref, out, error);
}

weft_hooks *weft_hooks_ref(weft_hooks *hooks)
{
    WFI_CHECK_HANDLE(hooks);
    if (hooks)
        atomic_fetch_add_explicit(&hooks->refs, 1, memory_order_relaxed);
    return hooks;
}

static void end_leaf(leaf_hooks *of)
{
    for (hook *each = atomic_load(&of->first), *next; each; each = next) {
        next = atomic_load(&each->next);
        if (each->how.drop)
            each->how.drop(each->how.arg);
        free(each);
    }
    weft_tensor_unref(of->leaf);
    free(of);
}

void weft_hooks_unref(weft_hooks *hooks)
{
    WFI_CHECK_HANDLE(hooks);
    if (!hooks)
        return;
    uint32_t before = atomic_fetch_sub_explicit(&hooks->refs, 1, memory_order_acq_rel);
    if (!WFI_HANDLE_IS_LAST(hooks, before))
        return;
    size_t cursor = 0;
    leaf_hooks *of;
    while ((of = wfi_map_next(&hooks->leaves, &cursor, NULL)))
        end_leaf(of);
    wfi_map_fini(&hooks->leaves);
    wfi_mutex_fini(&hooks->lock);
    wfi_handle_free(hooks);
}

/* The hooks of a leaf, made if necessary. NULL: no memory. With the lock. */
static leaf_hooks *hooks_for(weft_hooks *hooks, weft_tensor *leaf)
{
    leaf_hooks *of = wfi_map_get(&hooks->leaves, leaf->id);
    if (of || !(of = wfi_calloc(1, sizeof(*of))))
        return of;
    if (wfi_map_put(&hooks->leaves, leaf->id, of) != WEFT_OK) {
        free(of);
        return NULL;
    }
    of->leaf = weft_tensor_ref(leaf);
    return of;
}

static weft_status add(weft_hooks *hooks, weft_tensor *leaf, const weft_leaf_hook *how)
{
    hook *added = wfi_calloc(1, sizeof(*added));
    if (!added)
        return WEFT_ERR_MEMORY;
    added->how = *how;
    wfi_mutex_lock(&hooks->lock);
    leaf_hooks *of = hooks_for(hooks, leaf);
    if (of) {
        _Atomic(hook *) *end = &of->first;
        for (hook *each; (each = atomic_load(end));)
            end = &each->next;
        atomic_store(end, added);
    }
    wfi_mutex_unlock(&hooks->lock);
    if (of)
        return WEFT_OK;
    free(added);
    return WEFT_ERR_MEMORY;
}

weft_status weft_hooks_add_sized(weft_hooks *hooks, weft_tensor *leaf, const weft_leaf_hook *how, size_t size)
{
    WFI_CHECK_HANDLE(hooks, leaf);
    if (!how)
        return wfi_refuse_null("weft_hooks_add", "how");
    weft_status status;
    weft_leaf_hook own;
    const weft_leaf_hook *known = WFI_SIZED(how, size, &own);
    if (!known)
        status = wfi_refuse_newer(NULL, "weft_hooks_add", "weft_leaf_hook");
    else if (!hooks || !leaf)
        status = wfi_refuse_null("weft_hooks_add", !hooks ? "the set of hooks" : "leaf");
    else if (!weft_tensor_requires_grad(leaf))
        status = wfi_refuse(WEFT_ERR_INVALID,
                            "weft_hooks_add: leaf wants no gradient: call weft_tensor_set_requires_grad first");
    else
        status = add(hooks, leaf, known);
    how = known ? known : how;
    if (status != WEFT_OK && how->drop)
        how->drop(how->arg);
    return status;
}

static leaf_hooks *find(weft_hooks *hooks, uint64_t leaf)
{
    wfi_mutex_lock(&hooks->lock);
    leaf_hooks *of = wfi_map_get(&hooks->leaves, leaf);
    wfi_mutex_unlock(&hooks->lock);
    return of;
}

bool wfi_hooks_has(weft_hooks *hooks, uint64_t leaf)
{
    return find(hooks, leaf) != NULL;
}

weft_tensor *wfi_gradient_from(weft_gradient_fn fn, void *arg, weft_tensor *gradient)
{
    weft_tensor *made = fn(gradient, arg);
    if (made == gradient || !made)
        return made;
    weft_tensor *contiguous = NULL;
    if (made->dtype == gradient->dtype && weft_tensor_same_shape(made, gradient))
        contiguous = wfi_tensor_contiguous(made, NULL);
    weft_tensor_unref(made);
    return contiguous;
}

weft_tensor *wfi_hooks_pre(weft_hooks *hooks, uint64_t leaf, weft_tensor *share)
{
    leaf_hooks *of = find(hooks, leaf);
    for (hook *each = !of ? NULL : atomic_load(&of->first); each && share; each = atomic_load(&each->next)) {
        if (!each->how.pre)
            continue;
        weft_tensor *made = wfi_gradient_from(each->how.pre, each->how.arg, share);
        weft_tensor_unref(share);
        share = made;
    }
    return share;
}

/* Remembers a future that a hook started, for the end of the pass; without memory for that, waits for it now. */
static weft_status follow(wfi_pointers *waits, weft_future *wait, weft_status status)
{
    if (!wait || wfi_pointers_push(waits, wait))
        return status;
    weft_status ended = wfi_future_wait(wait, WEFT_FOREVER); /* it may still write to the sum */
    weft_future_unref(wait);
    ended = ended == WEFT_OK ? WEFT_ERR_MEMORY : ended;
    return status == WEFT_OK ? ended : status;
}

static bool is_like(const weft_tensor *made, const weft_tensor *other)
{
    return made->dtype == other->dtype && weft_tensor_same_shape(made, other) && weft_tensor_is_contiguous(made);
}

static weft_status replace(const hook *each, weft_tensor *leaf, weft_gradient *sum, weft_future **wait)
{
    weft_tensor *made = each->how.replace(leaf, sum->values, wait, each->how.arg);
    if (!made || !is_like(made, sum->values)) {
        weft_tensor_unref(made);
        return WEFT_ERR_INVALID;
    }
    weft_tensor_unref(sum->values);
    sum->values = made;
    return WEFT_OK;
}

weft_status wfi_hooks_post(weft_hooks *hooks, uint64_t leaf, weft_gradient *sum, wfi_pointers *waits)
{
    leaf_hooks *of = find(hooks, leaf);
    weft_status status = !of ? WEFT_OK : wfi_gradient_make_dense(sum, &of->leaf->shape);
    if (of && status == WEFT_OK)
        status = wfi_gradient_make_own(sum);
    for (hook *each = !of ? NULL : atomic_load(&of->first); each && status == WEFT_OK;
         each = atomic_load(&each->next)) {
        weft_future *wait = NULL;
        if (each->how.replace)
            status = replace(each, of->leaf, sum, &wait);
        status = follow(waits, wait, status);
        wait = NULL;
        if (each->how.post && status == WEFT_OK)
            status = each->how.post(of->leaf, sum->values, &wait, each->how.arg);
        status = follow(waits, wait, status);
    }
    return status;
}

/* Lists the leaves that are not in `came`, for use without the lock: leaves live as long as the set. */
static bool list_absent(weft_hooks *hooks, const wfi_map *came, wfi_pointers *out)
{
    bool listed = true;
    uint64_t leaf;
    leaf_hooks *of;
    wfi_mutex_lock(&hooks->lock);
    for (size_t cursor = 0; listed && (of = wfi_map_next(&hooks->leaves, &cursor, &leaf));)
        if (!wfi_map_get(came, leaf))
            listed = wfi_pointers_push(out, of);
    wfi_mutex_unlock(&hooks->lock);
    return listed;
}

/* Uses the first hook that has something to give. */
static weft_status give_absent(leaf_hooks *of, wfi_give_fn give, void *arg)
{
    weft_gradient made = {0};
    for (hook *each = atomic_load(&of->first); each && !made.values; each = atomic_load(&each->next))
        if (each->how.absent)
            made.values = each->how.absent(of->leaf, each->how.arg);
    if (!made.values)
        return WEFT_OK;
    if (is_like(made.values, of->leaf))
        return give(arg, of->leaf->id, &made);
    wfi_gradient_clear(&made);
    return WEFT_ERR_INVALID;
}

weft_status wfi_hooks_give_absent(weft_hooks *hooks, const wfi_map *came, wfi_give_fn give, void *arg)
{
    wfi_pointers absent = {0};
    weft_status status = list_absent(hooks, came, &absent) ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < absent.count && status == WEFT_OK; i++)
        status = give_absent(absent.items[i], give, arg);
    free(absent.items);
    return status;
}

weft_status wfi_hooks_end(weft_hooks *hooks, const weft_error *why, wfi_pointers *waits)
{
    weft_future *wait = NULL;
    if (!hooks || !hooks->end)
        return WEFT_OK;
    weft_status status = hooks->end(why, &wait, hooks->end_arg);
    return follow(waits, wait, status);
}

void weft_hooks_set_end(weft_hooks *hooks, weft_pass_end_fn fn, void *arg)
{
    WFI_CHECK_HANDLE(hooks);
    if (!hooks)
        return;
    hooks->end = fn;
    hooks->end_arg = arg;
}
