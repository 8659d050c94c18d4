/* SPDX-License-Identifier: Apache-2.0 */
/* libraries.h - OpenMP and OpenBLAS, which the kernels share with the host program. */
#ifndef WFI_LIBRARIES_H
#define WFI_LIBRARIES_H

/* What the host program's numbers of threads were. */
typedef struct wfi_libraries {
    int openmp; /* the calling thread's */
} wfi_libraries;

/*
 * To be called around oneDNN and OpenBLAS, on the same thread: they keep pools of their own, whose sizes are the host program's
 * before and after. Says how many threads oneDNN may use. Any thread, many at once; not one inside the other's.
 */
int wfi_libraries_enter(wfi_libraries *host);
void wfi_libraries_leave(const wfi_libraries *host);

#endif
