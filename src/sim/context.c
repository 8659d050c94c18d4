/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.c - switches between stacks: with assembly on x86-64, because the C library's swapcontext makes two system
 * calls a switch for the signal mask; with ucontext on other processors.
 */
#include "sim/context.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__has_feature)
#define FEATURE(name) __has_feature(name)
#else
#define FEATURE(name) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || FEATURE(address_sanitizer)
#define ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#else
#define ASAN 0
#endif
#if defined(__SANITIZE_THREAD__) || FEATURE(thread_sanitizer)
#define TSAN 1
#include <sanitizer/tsan_interface.h>
#else
#define TSAN 0
#endif
#if __has_include(<valgrind/valgrind.h>)
#include <valgrind/valgrind.h>
#else
#define VALGRIND_STACK_REGISTER(low, high) 0u
#define VALGRIND_STACK_DEREGISTER(id) ((void)(id))
#endif

bool wfi_stack_map(wfi_stack *stack, size_t size)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes;
    if (__builtin_add_overflow(size, 2 * page - 1, &bytes))
        return false;
    bytes -= bytes % page; /* rounded up, and a guard page */
    stack->mapping = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack->mapping == MAP_FAILED)
        return false;
    if (mprotect(stack->mapping, page, PROT_NONE) != 0) {
        munmap(stack->mapping, bytes);
        return false;
    }
    stack->mapping_size = bytes;
    stack->base = stack->mapping + page;
    stack->size = bytes - page;
    stack->valgrind_id = (unsigned)VALGRIND_STACK_REGISTER(stack->base, stack->base + stack->size);
    return true;
}

void wfi_stack_unmap(wfi_stack *stack)
{
    VALGRIND_STACK_DEREGISTER(stack->valgrind_id);
#if ASAN
    __asan_unpoison_memory_region(stack->base, stack->size); /* marks of frames that were never left */
#endif
    munmap(stack->mapping, stack->mapping_size);
}

void wfi_stack_drop(wfi_stack *stack)
{
#if ASAN
    __lsan_register_root_region(stack->base, stack->size);
#else
    wfi_stack_unmap(stack);
#endif
}

#if defined(__x86_64__)

/*
 * Pushes the registers that a call preserves in the System V ABI (rbp, rbx, r12 to r15, the control words of SSE and
 * x87), stores the stack pointer in *save, sets it to `to`, and pops the same registers: 56 bytes and the return
 * address.
 */
void wfi_switch_stack(void **save, void *to);
__asm__(".pushsection .text\n"
        ".globl wfi_switch_stack\n"
        ".hidden wfi_switch_stack\n"
        ".type wfi_switch_stack, @function\n"
        "wfi_switch_stack:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    subq $8, %rsp\n"
        "    stmxcsr (%rsp)\n"
        "    fnstcw 4(%rsp)\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    ldmxcsr (%rsp)\n"
        "    fldcw 4(%rsp)\n"
        "    addq $8, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size wfi_switch_stack, . - wfi_switch_stack\n"
        ".popsection\n");

static void prepare(wfi_ucontext *context, wfi_stack *stack, void (*entry)(void))
{
    enum { CONTROL = 0, RETURN = 7, WORDS = 9 }; /* the frame that wfi_switch_stack pops */
    /* The stack pointer at `entry` is like after a call: 8 off a multiple of 16. */
    uint64_t *frame = (uint64_t *)((uintptr_t)(stack->base + stack->size) & ~(uintptr_t)15) - WORDS;
    uint32_t sse;
    uint16_t x87;
    memset(frame, 0, WORDS * sizeof(*frame));
    __asm__("stmxcsr %0\n\tfnstcw %1" : "=m"(sse), "=m"(x87));
    frame[CONTROL] = sse | (uint64_t)x87 << 32;
    frame[RETURN] = (uint64_t)(uintptr_t)entry;
    context->stack_pointer = frame;
}

static void switch_registers(wfi_ucontext *from, wfi_ucontext *to)
{
    wfi_switch_stack(&from->stack_pointer, to->stack_pointer);
}

#else

static void prepare(wfi_ucontext *context, wfi_stack *stack, void (*entry)(void))
{
    getcontext(&context->registers);
    context->registers.uc_stack.ss_sp = stack->base;
    context->registers.uc_stack.ss_size = stack->size;
    context->registers.uc_link = NULL;
    makecontext(&context->registers, entry, 0);
}

static void switch_registers(wfi_ucontext *from, wfi_ucontext *to)
{
    swapcontext(&from->registers, &to->registers);
}

#endif

void wfi_ucontext_init_thread(wfi_ucontext *context)
{
    memset(context, 0, sizeof(*context));
}

void wfi_ucontext_init(wfi_ucontext *context, wfi_stack *stack, void (*entry)(void))
{
    memset(context, 0, sizeof(*context));
    context->stack_base = stack->base;
    context->stack_size = stack->size;
#if ASAN
    __asan_unpoison_memory_region(stack->base, stack->size); /* a used stack keeps marks of its last frames */
#endif
#if TSAN
    context->tsan_fiber = __tsan_create_fiber(0);
#endif
    prepare(context, stack, entry);
}

void wfi_ucontext_fini(wfi_ucontext *context)
{
#if TSAN
    __tsan_destroy_fiber(context->tsan_fiber);
#endif
    context->tsan_fiber = NULL;
}

void wfi_ucontext_switch(wfi_ucontext *from, wfi_ucontext *to, bool last)
{
    (void)last;
#if ASAN
    __sanitizer_start_switch_fiber(last ? NULL : &from->fake_stack, to->stack_base, to->stack_size);
#endif
#if TSAN
    from->tsan_fiber = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to->tsan_fiber, 0);
#endif
    switch_registers(from, to);
#if ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, &to->stack_base, &to->stack_size);
#endif
}

void wfi_ucontext_entered(wfi_ucontext *left)
{
    (void)left;
#if ASAN
    __sanitizer_finish_switch_fiber(NULL, &left->stack_base, &left->stack_size);
#endif
}
