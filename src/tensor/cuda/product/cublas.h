/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cublas.h - the functions of cuBLAS that weft calls. weft declares them itself, and loads the library when the first
 * product is asked for: the library is large, and many machines have none.
 */
#ifndef WFI_CUBLAS_H
#define WFI_CUBLAS_H

#include <weft/status.h>

#include <stdint.h>

enum { WFI_CUBLAS_NOT_TRANSPOSED = 0, WFI_CUBLAS_TRANSPOSED = 1 };

/* Each returns 0 or a status of cuBLAS. Matrices are column-major. */
typedef struct wfi_cublas {
    int (*create)(void **handle);
    int (*set_stream)(void *handle, void *stream);
    int (*sgemm)(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a, int lda,
                 long long step_a, const float *b, int ldb, long long step_b, const float *beta, float *c, int ldc,
                 long long step_c, int batch);
    int (*dgemm)(void *handle, int op_a, int op_b, int m, int n, int k, const double *alpha, const double *a, int lda,
                 long long step_a, const double *b, int ldb, long long step_b, const double *beta, double *c, int ldc,
                 long long step_c, int batch);
} wfi_cublas;

/*
 * Locks cuBLAS, and gives its functions and the handle for the stream of this thread on `device`, whose context is
 * current. Each stream has a handle, as cuBLAS advises: so they do not share its workspace. A handle is not for two
 * threads at once. WEFT_ERR_UNSUPPORTED: there is no cuBLAS. If it fails, wfi_cublas_unlock must not be called.
 */
weft_status wfi_cublas_lock(int device, const wfi_cublas **functions, void **handle);
void wfi_cublas_unlock(void);
weft_status wfi_cublas_status(int code, const char *what); /* logs an error */

#endif
