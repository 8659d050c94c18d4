/* SPDX-License-Identifier: Apache-2.0 */
/* libraries.h - OpenMP and OpenBLAS, which the kernels share with the host program. */
#ifndef WFI_LIBRARIES_H
#define WFI_LIBRARIES_H

/* The host program's numbers of threads. */
typedef struct wfi_libraries {
    int openmp; /* of the calling thread */
} wfi_libraries;

/*
 * Call before and after oneDNN and OpenBLAS, on the same thread: their thread pools get weft's size meanwhile, and
 * the host program's size afterwards. Returns how many threads oneDNN may use. Any thread, many at once; not nested.
 */
int wfi_libraries_enter(wfi_libraries *host);
void wfi_libraries_leave(const wfi_libraries *host);

#endif
