/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cublas.c - a stand-in for libcublas.so on the emulated GPU: the functions that weft uses, by loops. Matrices are
 * column-major. Sums are made in float64. EMULATED_CUBLAS_BROKEN has the number of a version that finds the driver too
 * old.
 */
#include "emulated.h"

#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

enum { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };

typedef struct handle {
    void *stream;
} handle;

int cuMemAlloc_v2(uint64_t *at, size_t size);
int cuMemFree_v2(uint64_t at);

/* Takes device memory for a moment: the workspace of a real one. */
EXPORT int cublasCreate_v2(void **out)
{
    const char *broken = getenv("EMULATED_CUBLAS_BROKEN");
    uint64_t workspace = 0;
    if (broken && atoi(broken) == VERSION)
        return NOT_INITIALIZED;
    if (cuMemAlloc_v2(&workspace, 4096) != 0)
        return ALLOC_FAILED;
    (void)cuMemFree_v2(workspace);
    *out = calloc(1, sizeof(handle));
    return !*out ? ALLOC_FAILED : SUCCESS;
}

EXPORT int cublasDestroy_v2(void *at)
{
    free(at);
    return SUCCESS;
}

EXPORT int cublasSetStream_v2(void *at, void *stream)
{
    ((handle *)at)->stream = stream;
    return SUCCESS;
}

/* c = alpha op(a) op(b) + beta c, with op(a) [m, k], op(b) [k, n]; `batch` times, each `step` elements further. */
#define GEMM(name, batched, T)                                                                                         \
    typedef struct name##_args {                                                                                       \
        int transpose_a, transpose_b, m, n, k, lda, ldb, ldc, batch, reserved; /* no padding */                        \
        long long step_a, step_b, step_c;                                                                              \
        const T *a, *b;                                                                                                \
        T alpha, beta, *c;                                                                                             \
    } name##_args;                                                                                                     \
    static void name##_one(const name##_args *g, const T *a, const T *b, T *c)                                         \
    {                                                                                                                  \
        for (long j = 0; j < g->n; j++) {                                                                              \
            for (long i = 0; i < g->m; i++) {                                                                          \
                double sum = 0;                                                                                        \
                for (long l = 0; l < g->k; l++)                                                                        \
                    sum += (double)(g->transpose_a ? a[l + i * g->lda] : a[i + l * g->lda]) *                          \
                           (double)(g->transpose_b ? b[j + l * g->ldb] : b[l + j * g->ldb]);                           \
                T *to = &c[i + j * g->ldc];                                                                            \
                *to = (T)((double)g->alpha * sum + (g->beta != 0 ? (double)g->beta * (double)*to : 0));                \
            }                                                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void name##_run(const void *args)                                                                           \
    {                                                                                                                  \
        const name##_args *g = args;                                                                                   \
        for (long i = 0; i < g->batch; i++)                                                                            \
            name##_one(g, g->a + i * g->step_a, g->b + i * g->step_b, g->c + i * g->step_c);                           \
    }                                                                                                                  \
    EXPORT int batched(void *at, int op_a, int op_b, int m, int n, int k, const T *alpha, const T *a, int lda,         \
                       long long step_a, const T *b, int ldb, long long step_b, const T *beta, T *c, int ldc,          \
                       long long step_c, int batch)                                                                    \
    {                                                                                                                  \
        const handle *h = at;                                                                                          \
        if (lda < (op_a ? k : m) || ldb < (op_b ? n : k) || ldc < m || lda < 1 || ldb < 1 || ldc < 1)                  \
            return INVALID_VALUE;                                                                                      \
        name##_args args = {op_a != 0, op_b != 0, m,      n,      k, lda, ldb,    ldc,   batch,                        \
                            0,         step_a,    step_b, step_c, a, b,   *alpha, *beta, c};                           \
        return emulated_gpu_enqueue(h->stream, #name, name##_run, &args, sizeof(args)) == 0 ? SUCCESS                  \
                                                                                            : EXECUTION_FAILED;        \
    }                                                                                                                  \
    EXPORT int name(void *at, int op_a, int op_b, int m, int n, int k, const T *alpha, const T *a, int lda,            \
                    const T *b, int ldb, const T *beta, T *c, int ldc)                                                 \
    {                                                                                                                  \
        return batched(at, op_a, op_b, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0, 1);                      \
    }
GEMM(cublasSgemm_v2, cublasSgemmStridedBatched, float)
GEMM(cublasDgemm_v2, cublasDgemmStridedBatched, double)
