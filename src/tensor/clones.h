/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clones.h - loops compiled several times: for the oldest processor that weft supports, for AVX2 and for AVX-512. When
 * the library is loaded, the loader chooses one version by the processor's features. (A version for an `arch=` would be
 * chosen only on processors of one manufacturer.) Kernels are compiled without contraction to fused operations, so all
 * versions of an elementwise loop give the same bits.
 */
#ifndef WFI_CLONES_H
#define WFI_CLONES_H

/*
 * With a sanitizer there is only one version: the sanitizer would instrument the functions that choose a version, and
 * the loader runs these functions before the sanitizer is set up. WFI_ONE_CLONE: set by tests that
 * compile a file for one processor.
 */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&               \
    !defined(__SANITIZE_THREAD__) && !defined(WFI_ONE_CLONE)
#define WFI_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define WFI_CLONES
#endif

/* Before a loop whose output is one of its inputs, or overlaps none of them. It tells the compiler that no iteration
 * writes what a later one reads. */
#if defined(__clang__)
#define WFI_NO_STEP_NEEDS_ANOTHER _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define WFI_NO_STEP_NEEDS_ANOTHER _Pragma("GCC ivdep")
#else
#define WFI_NO_STEP_NEEDS_ANOTHER
#endif

#endif
