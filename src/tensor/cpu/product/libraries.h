/* SPDX-License-Identifier: Apache-2.0 */
/* libraries.h - OpenMP and OpenBLAS, which the kernels share with the host program. */
#ifndef WFI_LIBRARIES_H
#define WFI_LIBRARIES_H

#include <cblas.h>

/*
 * The functions of OpenBLAS. Loaded when first needed: OpenBLAS starts a thread for each processor when it
 * is loaded, and each of them spins for 130 ms (docs/decisions/080-openblas-is-loaded-late.md).
 */
typedef struct wfi_openblas {
    __typeof__(cblas_sgemm) *sgemm;
    __typeof__(cblas_dgemm) *dgemm;
    __typeof__(openblas_get_corename) *corename;
    __typeof__(openblas_get_num_threads) *threads;
    __typeof__(openblas_set_num_threads) *set_threads;
} wfi_openblas;

/* NULL: it cannot be loaded; the reason is logged once. Any thread. */
const wfi_openblas *wfi_openblas_find(void);

/* The host program's numbers of threads. */
typedef struct wfi_libraries {
    int openmp; /* of the calling thread */
} wfi_libraries;

/*
 * Call before and after oneDNN and OpenBLAS, on the same thread: their thread pools get weft's size meanwhile, and
 * the host program's size afterwards. Returns how many threads oneDNN may use. Any thread, many at once; not nested.
 * Loads OpenBLAS.
 */
int wfi_libraries_enter(wfi_libraries *host);
void wfi_libraries_leave(const wfi_libraries *host);

#endif
