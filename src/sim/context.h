/* SPDX-License-Identifier: Apache-2.0 */
/* context.h - switches between stacks, and tells sanitizers and valgrind about it. For fiber.c. */
#ifndef WFI_SIM_CONTEXT_H
#define WFI_SIM_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

/* A stack with an inaccessible page below it. */
typedef struct wfi_stack {
    char *mapping; /* guard page first */
    size_t mapping_size;
    char *base; /* lowest usable byte */
    size_t size;
    unsigned valgrind_id;
} wfi_stack;

/* A flow of control that is not running now, or the one that is. */
typedef struct wfi_ucontext {
#if defined(__x86_64__)
    void *stack_pointer;
#else
    ucontext_t registers;
#endif
    const void *stack_base; /* for AddressSanitizer; that of the thread's own stack is found at the first switch */
    size_t stack_size;
    void *fake_stack; /* AddressSanitizer's */
    void *tsan_fiber; /* ThreadSanitizer's */
} wfi_ucontext;

bool wfi_stack_map(wfi_stack *stack, size_t size); /* false: no memory */
void wfi_stack_unmap(wfi_stack *stack);
/* Instead of unmapping it, if its frames were never left: leak checkers count what they point to as reachable. */
void wfi_stack_drop(wfi_stack *stack);

void wfi_ucontext_init_thread(wfi_ucontext *context); /* for the thread's own stack */
/* A context that begins in `entry`. `entry` must first call wfi_ucontext_entered, and must not return. */
void wfi_ucontext_init(wfi_ucontext *context, wfi_stack *stack, void (*entry)(void));
void wfi_ucontext_fini(wfi_ucontext *context);
/* Switches from `from` to `to`; returns when `to` switches back. `last`: `from` is left forever. */
void wfi_ucontext_switch(wfi_ucontext *from, wfi_ucontext *to, bool last);
void wfi_ucontext_entered(wfi_ucontext *left); /* `left`: the context that switched to this one */

#endif
