/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle.h - checks handles: a use of an object after its end, or a second release, writes one sentence to stderr and
 * aborts.
 *
 * Each object that a program holds begins with a wfi_handle: one word that says whether the program may use the object.
 * Each public function checks the word of its arguments first:
 *
 *     weft_status weft_future_wait(weft_future *future, int64_t wait_ms)
 *     {
 *         WFI_CHECK_HANDLE(future);          NULL passes; the code below handles it
 *
 * wfi_handle_end overwrites the word when the program gives the object up, and wfi_handle_free before it frees the
 * memory. The check is certain while the memory lives, and also later until it is used again. AddressSanitizer and
 * valgrind find the other misuses. THREADS. Any.
 */
#ifndef WFI_HANDLE_H
#define WFI_HANDLE_H

#include <weft/base.h>

#include <stdatomic.h>

/* The first member of every object that a program holds. */
typedef struct wfi_handle {
    _Atomic uint32_t word;
} wfi_handle;

#define WFI_HANDLE_LIVE 0x77656674u

/* The word of an object that is created. */
#define WFI_HANDLE_INIT(object) atomic_init(&((wfi_handle *)(object))->word, WFI_HANDLE_LIVE)

/* The program gives the object up, in `function`. If two threads do so at the same time, one of them aborts. */
void wfi_handle_end(void *handle, const char *function);
#define WFI_HANDLE_END(object) wfi_handle_end(object, __func__)
/* Ends the object if the program has not, and frees the memory that begins with `handle`. */
void wfi_handle_free(void *handle);

/* Writes one sentence and aborts. `why` completes "0x... is". NULL: the object has ended, or never was one. */
_Noreturn void wfi_handle_refuse(const void *handle, const char *function, const char *why);

static inline void wfi_handle_check(const void *handle, const char *function)
{
    if (handle &&
        __builtin_expect(
            atomic_load_explicit(&((const wfi_handle *)handle)->word, memory_order_relaxed) != WFI_HANDLE_LIVE, 0))
        wfi_handle_refuse(handle, function, NULL);
}

/* For releasing a reference: whether the count `before` was 1; then the object ends. If it was less, the object was
 * released too often, and this aborts. */
#define WFI_HANDLE_IS_LAST(object, before) wfi_handle_was_last(object, (int64_t)(before), __func__)
static inline bool wfi_handle_was_last(void *handle, int64_t before, const char *function)
{
    if (__builtin_expect(before < 1, 0))
        wfi_handle_refuse(handle, function, "an object that was released more often than it was referenced");
    if (before != 1)
        return false;
    atomic_store_explicit(&((wfi_handle *)handle)->word, 0, memory_order_relaxed);
    return true;
}

/* WFI_CHECK_HANDLE(a, b, ...): checks up to six pointers to objects. Aborts if one is neither NULL nor live. */
#define WFI_CHECK_HANDLE(...)                                                                                          \
    WFI_CHECK_HANDLE_PICK(__VA_ARGS__, WFI_CHECK_HANDLE_6, WFI_CHECK_HANDLE_5, WFI_CHECK_HANDLE_4, WFI_CHECK_HANDLE_3, \
                          WFI_CHECK_HANDLE_2, WFI_CHECK_HANDLE_1)                                                      \
    (__VA_ARGS__)
#define WFI_CHECK_HANDLE_PICK(a, b, c, d, e, f, macro, ...) macro
#define WFI_CHECK_HANDLE_1(a) wfi_handle_check(a, __func__)
#define WFI_CHECK_HANDLE_2(a, ...) WFI_CHECK_HANDLE_1(a), WFI_CHECK_HANDLE_1(__VA_ARGS__)
#define WFI_CHECK_HANDLE_3(a, ...) WFI_CHECK_HANDLE_1(a), WFI_CHECK_HANDLE_2(__VA_ARGS__)
#define WFI_CHECK_HANDLE_4(a, ...) WFI_CHECK_HANDLE_1(a), WFI_CHECK_HANDLE_3(__VA_ARGS__)
#define WFI_CHECK_HANDLE_5(a, ...) WFI_CHECK_HANDLE_1(a), WFI_CHECK_HANDLE_4(__VA_ARGS__)
#define WFI_CHECK_HANDLE_6(a, ...) WFI_CHECK_HANDLE_1(a), WFI_CHECK_HANDLE_5(__VA_ARGS__)

#endif
