/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clones.h - loops compiled several times: for the oldest processor that weft supports, for AVX2 and for AVX-512. The
 * loader picks one when the library is loaded, by the processor's features. (Clones for an `arch=` would be picked
 * only on processors of one maker.) Kernels are compiled without contraction to fused operations: elementwise loops
 * give the same bits in each.
 */
#ifndef WFI_CLONES_H
#define WFI_CLONES_H

/*
 * Sanitizers instrument the resolvers, which the loader runs before the sanitizers are set up. WFI_ONE_CLONE: tests
 * compile a file for one processor.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&               \
    !defined(__SANITIZE_THREAD__) && !defined(WFI_ONE_CLONE)
#define WFI_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define WFI_CLONES
#endif

/* Before a loop whose output is one of its inputs, or does not overlap them: no step writes what a later step reads. */
#if defined(__clang__)
#define WFI_NO_STEP_NEEDS_ANOTHER _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define WFI_NO_STEP_NEEDS_ANOTHER _Pragma("GCC ivdep")
#else
#define WFI_NO_STEP_NEEDS_ANOTHER
#endif

#endif
