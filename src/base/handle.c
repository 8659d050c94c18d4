/* SPDX-License-Identifier: Apache-2.0 */
/* handle.c - the ring of freed handles, and the messages about misuse; see handle.h. */
#include "base/handle.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__has_feature)
#define FEATURE(name) __has_feature(name)
#else
#define FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || FEATURE(address_sanitizer)
#include <sanitizer/asan_interface.h>
#define ASAN 1
#else
#define ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || FEATURE(thread_sanitizer)
#define TSAN 1
#else
#define TSAN 0
#endif
#if !ASAN && !TSAN && __has_include(<valgrind/memcheck.h>)
#include <valgrind/memcheck.h>
#else
#define VALGRIND_GET_VBITS(at, bits, size) 0
#define VALGRIND_MAKE_MEM_NOACCESS(at, size) 0
#define VALGRIND_MAKE_MEM_UNDEFINED(at, size) 0
#endif

#define WORD_BYTES 8 /* these stay readable: AddressSanitizer marks units of eight bytes */

/* ---- The ring ---------------------------------------------------------------------------------------------------- */

#define LINE_SLOTS 8 /* pointers in a cache line */

#define RING(name, size)                                                                                               \
    static struct {                                                                                                    \
        _Atomic uint64_t freed;                                                                                        \
        _Atomic(void *) slots[size];                                                                                   \
    } name
RING(of_calls, WFI_CALLS_KEPT);
RING(of_futures, WFI_CALLS_KEPT);
RING(of_others, WFI_HANDLES_KEPT);

/* Puts a handle into one of the `size` slots, and returns the one that was there. Handles that are freed one after the
 * other, perhaps by different threads, go to different cache lines. Inline: `size` is a constant power of two. */
static inline void *keep(_Atomic uint64_t *freed, _Atomic(void *) *slots, size_t size, void *handle)
{
    uint64_t number = atomic_fetch_add_explicit(freed, 1, memory_order_relaxed);
    size_t lines = size / LINE_SLOTS;
    return atomic_exchange_explicit(&slots[number % lines * LINE_SLOTS + number / lines % LINE_SLOTS], handle,
                                    memory_order_acq_rel);
}
#define KEEP(ring, handle) keep(&(ring).freed, (ring).slots, sizeof(ring).slots / sizeof *(ring).slots, handle)

static bool on_memcheck; /* set before main, and constant */

__attribute__((constructor)) static void find_memcheck(void)
{
    char byte = 0, bits = 0;
    on_memcheck = VALGRIND_GET_VBITS(&byte, &bits, 1) == 1;
    (void)byte;
    (void)bits;
}

/* Tools that check memory report an access to the block from here on, except to its word. */
static void hide(void *handle)
{
    char *rest = (char *)handle + WORD_BYTES;
    if (ASAN || TSAN) /* its pointers do not hide a leak, and an access of another thread races with this one */
        memset(rest, 0xe5, malloc_usable_size(handle) - WORD_BYTES);
#if ASAN
    __asan_poison_memory_region(rest, malloc_usable_size(handle) - WORD_BYTES);
#endif
    if (on_memcheck)
        (void)VALGRIND_MAKE_MEM_NOACCESS(rest, malloc_usable_size(handle) - WORD_BYTES);
}

static void show(void *handle)
{
    char *rest = (char *)handle + WORD_BYTES;
#if ASAN
    __asan_unpoison_memory_region(rest, malloc_usable_size(handle) - WORD_BYTES);
#endif
    if (on_memcheck)
        (void)VALGRIND_MAKE_MEM_UNDEFINED(rest, malloc_usable_size(handle) - WORD_BYTES);
    (void)rest; /* ThreadSanitizer's builds have none of these */
}

void wfi_handle_free(void *handle)
{
    if (handle == NULL)
        return;
    _Atomic uint32_t *word = &((wfi_handle *)handle)->word;
    uint32_t kind = atomic_load_explicit(word, memory_order_relaxed) & 0xff;
    atomic_store_explicit(word, WFI_HANDLE_ENDED(kind), memory_order_relaxed);
    if (ASAN || TSAN || on_memcheck)
        hide(handle);
    void *oldest = kind == WFI_HANDLE_CALL     ? KEEP(of_calls, handle)
                   : kind == WFI_HANDLE_FUTURE ? KEEP(of_futures, handle)
                                               : KEEP(of_others, handle);
    if (oldest != NULL) {
        if (ASAN || on_memcheck)
            show(oldest);
        free(oldest);
    }
}

void wfi_handle_end(void *handle, wfi_handle_kind kind, const char *function)
{
    uint32_t live = WFI_HANDLE_LIVE(kind);
    if (!atomic_compare_exchange_strong_explicit(&((wfi_handle *)handle)->word, &live, WFI_HANDLE_ENDED(kind),
                                                 memory_order_relaxed, memory_order_relaxed))
        wfi_handle_misused(handle, kind, function);
}

/* ---- Misuse ------------------------------------------------------------------------------------------------------ */

static const struct {
    const char *name;  /* with its article */
    const char *ended; /* what has happened to an ended one */
    const char *advice;
} kinds[WFI_HANDLE_KINDS] = {
#define COUNTED(name, noun)                                                                                            \
    {                                                                                                                  \
        name, "its last reference was released", "call " noun "_ref for each owner, and " noun "_unref once for each"  \
    }
    [WFI_HANDLE_AGENT] = {"an agent", "it was closed", "use an agent only until weft_agent_close or weft_agent_stop"},
    [WFI_HANDLE_BATCH] = {"a batch", "it was finished",
                          "a batch ends when its handler returns, or after weft_batch_defer with weft_batch_finish"},
    [WFI_HANDLE_CALL] = {"a call", "it was finished",
                         "a call ends when its handler returns, or after weft_call_defer with weft_call_finish"},
    [WFI_HANDLE_CONTEXT] = {"a context", "it was closed", "use a context only until weft_context_close"},
    [WFI_HANDLE_DATA_PARALLEL] = COUNTED("a data-parallel module", "weft_data_parallel"),
    [WFI_HANDLE_DIST_OPTIMIZER] = COUNTED("a distributed optimizer", "weft_dist_optimizer"),
    [WFI_HANDLE_ERROR] = COUNTED("an error", "weft_error"),
    [WFI_HANDLE_FUTURE] = COUNTED("a future", "weft_future"),
    [WFI_HANDLE_GROUP] = {"a group", "it was closed", "use a group only until weft_group_close"},
    [WFI_HANDLE_HOOKS] = COUNTED("a list of hooks", "weft_hooks"),
    [WFI_HANDLE_JOB] = {"a job", "it was closed", "use a job only until weft_job_close"},
    [WFI_HANDLE_MODULE] = COUNTED("a module", "weft_module"),
    [WFI_HANDLE_OPTIMIZER] = COUNTED("an optimizer", "weft_optimizer"),
    [WFI_HANDLE_REMOTE_MODULE] = COUNTED("a remote module", "weft_remote_module"),
    [WFI_HANDLE_RREF] = COUNTED("a remote reference", "weft_rref"),
    [WFI_HANDLE_SIM] = {"a simulation", "it was closed", "use a simulation only until weft_sim_close"},
    [WFI_HANDLE_STREAM] = COUNTED("a stream", "weft_stream"),
    [WFI_HANDLE_TAPE] = {"a tape", "it was closed", "use a tape only until weft_tape_close"},
    [WFI_HANDLE_TENSOR] = COUNTED("a tensor", "weft_tensor"),
    [WFI_HANDLE_VALUES] = COUNTED("a list of values", "weft_values"),
};

/* The kind of a handle with this word; 0: it is not the word of a handle. */
static wfi_handle_kind kind_of(uint32_t word, bool *live)
{
    uint32_t kind = word & 0xff;
    *live = word == WFI_HANDLE_LIVE(kind);
    bool known = kind > 0 && kind < WFI_HANDLE_KINDS && (*live || word == WFI_HANDLE_ENDED(kind));
    return known ? (wfi_handle_kind)kind : (wfi_handle_kind)0;
}

/* One write, so that messages of several threads do not mix. */
_Noreturn static void say(const char *text)
{
    size_t size = strlen(text);
    while (size > 0) {
        ssize_t written = write(STDERR_FILENO, text, size);
        if (written <= 0)
            break;
        text += written;
        size -= (size_t)written;
    }
    abort();
}

_Noreturn void wfi_handle_misused(const void *handle, wfi_handle_kind kind, const char *function)
{
    char text[512];
    bool live;
    uint32_t word = atomic_load_explicit(&((const wfi_handle *)handle)->word, memory_order_relaxed);
    wfi_handle_kind is = kind_of(word, &live);
    if (is == kind)
        snprintf(text, sizeof text, "%s: %p is %s that must not be used any more, because %s: %s\n", function, handle,
                 kinds[kind].name, kinds[kind].ended, kinds[kind].advice);
    else if (is != 0)
        snprintf(text, sizeof text, "%s: %p is %s%s where %s is needed: pass another pointer\n", function, handle,
                 kinds[is].name, live ? "" : " that has ended,", kinds[kind].name);
    else
        snprintf(text, sizeof text,
                 "%s: %p is not %s (its first word is 0x%08x): it was never one, it ended long ago (%s), or something "
                 "has overwritten it\n",
                 function, handle, kinds[kind].name, word, kinds[kind].advice);
    say(text);
}

_Noreturn void wfi_handle_refuse(const void *handle, wfi_handle_kind kind, const char *function, const char *why)
{
    char text[512];
    snprintf(text, sizeof text, "%s: %p is %s %s\n", function, handle, kinds[kind].name, why);
    say(text);
}

_Noreturn void wfi_handle_overreleased(const void *handle, wfi_handle_kind kind, const char *function)
{
    char why[256];
    snprintf(why, sizeof why, "that was released more often than it was referenced: %s", kinds[kind].advice);
    wfi_handle_refuse(handle, kind, function, why);
}
