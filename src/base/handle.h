/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.h - checks handles: a use after the end of an object, a second release, or a pointer to another kind of object
 * writes one sentence to stderr and aborts.
 *
 * Each object that a program holds begins with a wfi_handle: one word that says its kind and whether the program may
 * use it. Each public function checks the word of its arguments first:
 *
 *     weft_status weft_future_wait(weft_future *future, int64_t wait_ms)
 *     {
 *         WFI_LIVE(future);          NULL passes; the code below handles it
 *
 * wfi_handle_end overwrites the word when the program gives the object up. wfi_handle_free puts the memory into a ring
 * of the last WFI_HANDLES_KEPT freed objects, and frees the oldest of these. So their words can still be read. Calls and
 * futures have rings of their own, of WFI_CALLS_KEPT each in a build with NDEBUG: with 1,024 of them, each remote call
 * would get memory that is no longer in the processor's cache (measured: up to 13 % fewer calls a second). Only the
 * block of the handle waits: everything it points to is freed at once. After the ring, detection is best effort. With
 * AddressSanitizer and under valgrind a block in the ring is marked as freed, except its word. So both tools report an
 * access to any other field.
 *
 * THREADS. Any. There is no lock: freeing a handle takes one atomic addition and one exchange.
 */
#ifndef WFI_HANDLE_H
#define WFI_HANDLE_H

#include <weft/base.h>

#include <stdatomic.h>

#define WFI_HANDLES_KEPT 1024
#ifdef NDEBUG
#define WFI_CALLS_KEPT 64
#else
#define WFI_CALLS_KEPT WFI_HANDLES_KEPT
#endif

typedef enum wfi_handle_kind {
    WFI_HANDLE_AGENT = 1,
    WFI_HANDLE_BATCH,
    WFI_HANDLE_CALL,
    WFI_HANDLE_CONTEXT,
    WFI_HANDLE_DATA_PARALLEL,
    WFI_HANDLE_DIST_OPTIMIZER,
    WFI_HANDLE_ERROR,
    WFI_HANDLE_FUTURE,
    WFI_HANDLE_GROUP,
    WFI_HANDLE_HOOKS,
    WFI_HANDLE_JOB,
    WFI_HANDLE_MODULE,
    WFI_HANDLE_OPTIMIZER,
    WFI_HANDLE_REMOTE_MODULE,
    WFI_HANDLE_RREF,
    WFI_HANDLE_SIM,
    WFI_HANDLE_STREAM,
    WFI_HANDLE_TAPE,
    WFI_HANDLE_TENSOR,
    WFI_HANDLE_VALUES,
    WFI_HANDLE_KINDS
} wfi_handle_kind;

/* The first member of every object that a program holds. */
typedef struct wfi_handle {
    _Atomic uint32_t word;
} wfi_handle;

#define WFI_HANDLE_LIVE(kind) (0x77651000u + (uint32_t)(kind))
#define WFI_HANDLE_ENDED(kind) (0x77650e00u + (uint32_t)(kind))

/* The word of an object that is created. */
#define WFI_BEGIN(object) atomic_init(&((wfi_handle *)(object))->word, WFI_HANDLE_LIVE(WFI_HANDLE_KIND_OF(object)))

/* The program gives the object up, in `function`. If two threads do so at the same time, one of them aborts. */
void wfi_handle_end(void *handle, wfi_handle_kind kind, const char *function);
#define WFI_END(object) wfi_handle_end(object, WFI_HANDLE_KIND_OF(object), __func__)
/* Ends the object if the program has not, and frees the memory that begins with `handle`. */
void wfi_handle_free(void *handle);

/* Writes one sentence about a handle whose word is not that of a live object of `kind`, and aborts. */
_Noreturn void wfi_handle_misused(const void *handle, wfi_handle_kind kind, const char *function);
/* The same for a counted object that was released more often than it was referenced. */
_Noreturn void wfi_handle_overreleased(const void *handle, wfi_handle_kind kind, const char *function);

/* The same for a live object; `why` says what the program must not do with it. */
_Noreturn void wfi_handle_refuse(const void *handle, wfi_handle_kind kind, const char *function, const char *why);

static inline void wfi_handle_check(const void *handle, wfi_handle_kind kind, const char *function)
{
    if (handle != NULL && __builtin_expect(atomic_load_explicit(&((const wfi_handle *)handle)->word,
                                                                memory_order_relaxed) != WFI_HANDLE_LIVE(kind),
                                           0))
        wfi_handle_misused(handle, kind, function);
}

/* For releasing a reference: whether the count `before` was 1; then the object ends. If it was less, the object was
 * released too often, and this aborts. */
#define WFI_LAST(object, before) wfi_handle_was_last(object, (int64_t)(before), WFI_HANDLE_KIND_OF(object), __func__)
static inline bool wfi_handle_was_last(void *handle, int64_t before, wfi_handle_kind kind, const char *function)
{
    if (__builtin_expect(before < 1, 0))
        wfi_handle_overreleased(handle, kind, function);
    if (before != 1)
        return false;
    atomic_store_explicit(&((wfi_handle *)handle)->word, WFI_HANDLE_ENDED(kind), memory_order_relaxed);
    return true;
}

/* WFI_LIVE(a, b, ...): checks up to six pointers to objects. Aborts if one is neither NULL nor live. */
#define WFI_LIVE(...)                                                                                                  \
    WFI_LIVE_PICK(__VA_ARGS__, WFI_LIVE_6, WFI_LIVE_5, WFI_LIVE_4, WFI_LIVE_3, WFI_LIVE_2, WFI_LIVE_1)(__VA_ARGS__)
#define WFI_LIVE_PICK(a, b, c, d, e, f, macro, ...) macro
#define WFI_LIVE_1(a) wfi_handle_check(a, WFI_HANDLE_KIND_OF(a), __func__)
#define WFI_LIVE_2(a, ...) WFI_LIVE_1(a), WFI_LIVE_1(__VA_ARGS__)
#define WFI_LIVE_3(a, ...) WFI_LIVE_1(a), WFI_LIVE_2(__VA_ARGS__)
#define WFI_LIVE_4(a, ...) WFI_LIVE_1(a), WFI_LIVE_3(__VA_ARGS__)
#define WFI_LIVE_5(a, ...) WFI_LIVE_1(a), WFI_LIVE_4(__VA_ARGS__)
#define WFI_LIVE_6(a, ...) WFI_LIVE_1(a), WFI_LIVE_5(__VA_ARGS__)

struct weft_batch;
struct weft_dist_optimizer;
struct weft_remote_module;
/* clang-format off */
#define WFI_HANDLE_KIND_OF(pointer)                                    \
    _Generic((pointer),                                                \
        weft_agent *: WFI_HANDLE_AGENT, const weft_agent *: WFI_HANDLE_AGENT, \
        struct weft_batch *: WFI_HANDLE_BATCH, const struct weft_batch *: WFI_HANDLE_BATCH, \
        weft_call *: WFI_HANDLE_CALL, const weft_call *: WFI_HANDLE_CALL, \
        weft_context *: WFI_HANDLE_CONTEXT, const weft_context *: WFI_HANDLE_CONTEXT, \
        weft_data_parallel *: WFI_HANDLE_DATA_PARALLEL, const weft_data_parallel *: WFI_HANDLE_DATA_PARALLEL, \
        struct weft_dist_optimizer *: WFI_HANDLE_DIST_OPTIMIZER, \
        const struct weft_dist_optimizer *: WFI_HANDLE_DIST_OPTIMIZER, \
        weft_error *: WFI_HANDLE_ERROR, const weft_error *: WFI_HANDLE_ERROR, \
        weft_future *: WFI_HANDLE_FUTURE, const weft_future *: WFI_HANDLE_FUTURE, \
        weft_group *: WFI_HANDLE_GROUP, const weft_group *: WFI_HANDLE_GROUP, \
        weft_hooks *: WFI_HANDLE_HOOKS, const weft_hooks *: WFI_HANDLE_HOOKS, \
        weft_job *: WFI_HANDLE_JOB, const weft_job *: WFI_HANDLE_JOB, \
        weft_module *: WFI_HANDLE_MODULE, const weft_module *: WFI_HANDLE_MODULE, \
        weft_optimizer *: WFI_HANDLE_OPTIMIZER, const weft_optimizer *: WFI_HANDLE_OPTIMIZER, \
        struct weft_remote_module *: WFI_HANDLE_REMOTE_MODULE, \
        const struct weft_remote_module *: WFI_HANDLE_REMOTE_MODULE, \
        weft_rref *: WFI_HANDLE_RREF, const weft_rref *: WFI_HANDLE_RREF, \
        weft_sim *: WFI_HANDLE_SIM, const weft_sim *: WFI_HANDLE_SIM, \
        weft_stream *: WFI_HANDLE_STREAM, const weft_stream *: WFI_HANDLE_STREAM, \
        weft_tape *: WFI_HANDLE_TAPE, const weft_tape *: WFI_HANDLE_TAPE, \
        weft_tensor *: WFI_HANDLE_TENSOR, const weft_tensor *: WFI_HANDLE_TENSOR, \
        weft_values *: WFI_HANDLE_VALUES, const weft_values *: WFI_HANDLE_VALUES)
/* clang-format on */

#endif
