/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clones.h - loops compiled several times: for the oldest processor that weft runs on, for those with AVX2 and those with AVX-512. The
 * loader picks one when the library is loaded, by what the processor can do; a clone for an `arch=` would be picked by the maker's name
 * of the model, so on no other maker's. Kernels are compiled without contraction to fused operations: elementwise loops give the
 * same bits in each.
 */
#ifndef WFI_CLONES_H
#define WFI_CLONES_H

/* The sanitizers instrument what the loader runs before they are set up. WFI_ONE_CLONE: tests compile a file for one processor. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&               \
    !defined(__SANITIZE_THREAD__) && !defined(WFI_ONE_CLONE)
#define WFI_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define WFI_CLONES
#endif

/* Before a loop whose output is one of its inputs, or apart from them: nothing that a later step reads is written by an earlier one. */
#if defined(__clang__)
#define WFI_NO_STEP_NEEDS_ANOTHER _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define WFI_NO_STEP_NEEDS_ANOTHER _Pragma("GCC ivdep")
#else
#define WFI_NO_STEP_NEEDS_ANOTHER
#endif

#endif
