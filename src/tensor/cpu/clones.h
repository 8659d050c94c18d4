/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clones.h - loops compiled several times: for the oldest processor that weft runs on, for those with AVX2 and those with AVX-512. The
 * loader picks one when the library is loaded. Kernels are compiled without contraction to fused operations, so elementwise loops
 * give the same bits in each.
 */
#ifndef WFI_CLONES_H
#define WFI_CLONES_H

/* The sanitizers instrument what the loader runs before they are set up. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&               \
    !defined(__SANITIZE_THREAD__)
#define WFI_CLONES __attribute__((target_clones("default", "arch=haswell", "arch=skylake-avx512")))
#else
#define WFI_CLONES
#endif

#endif
