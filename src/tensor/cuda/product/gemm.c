/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.c - matrix products by cuBLAS, which is loaded when the first one is asked for: it is large, and a program that was built with
 * CUDA starts where there is none.
 *
 * Locking: one lock for the library and for all handles, as a handle is not for two threads at once; what is called under it only queues
 * work, on the stream that copies wait for. A handle lives as long as the process.
 */
#include "base/text/log.h"
#include "mem/cuda.h"
#include "tensor/kernels.h"

#include <cublas_v2.h>
#include <dlfcn.h>
#include <pthread.h>

#define DEVICES_MAX 64
#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)
#define CUBLAS_LIBRARY "libcublas.so." TEXT(CUBLAS_VER_MAJOR)

/* Their types are the header's; its names are macros for those that end in _v2. */
static struct cublas {
    pthread_mutex_t lock;
    bool tried;
    __typeof__(cublasCreate_v2) *create;
    __typeof__(cublasSgemm_v2) *sgemm;
    __typeof__(cublasDgemm_v2) *dgemm; /* the last that is looked for: there if all are */
    cublasHandle_t handles[DEVICES_MAX];
} cublas = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void load(void)
{
    cublas.tried = true;
    void *library = dlopen(CUBLAS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        wfi_log(WEFT_LOG_ERROR, "no matrix products on GPUs: %s", dlerror());
        return;
    }
    *(void **)&cublas.create = dlsym(library, "cublasCreate_v2");
    *(void **)&cublas.sgemm = dlsym(library, "cublasSgemm_v2");
    if (cublas.create != NULL && cublas.sgemm != NULL)
        *(void **)&cublas.dgemm = dlsym(library, "cublasDgemm_v2");
    if (cublas.dgemm == NULL)
        wfi_log(WEFT_LOG_ERROR, "no matrix products on GPUs: %s has not the functions that it should", CUBLAS_LIBRARY);
}

static weft_status status_of(cublasStatus_t code, const char *what)
{
    if (code == CUBLAS_STATUS_SUCCESS)
        return WEFT_OK;
    wfi_log(WEFT_LOG_ERROR, "%s failed: cuBLAS says %d", what, (int)code);
    return code == CUBLAS_STATUS_ALLOC_FAILED ? WEFT_ERR_MEMORY : WEFT_ERR_SYSTEM;
}

/* [lock] For the calling thread's device, which is `device`. */
static weft_status handle_for(int device, cublasHandle_t *out)
{
    if (!cublas.tried)
        load();
    if (cublas.dgemm == NULL || device >= DEVICES_MAX)
        return WEFT_ERR_UNSUPPORTED;
    weft_status status = WEFT_OK;
    if (cublas.handles[device] == NULL)
        status = status_of(cublas.create(&cublas.handles[device]), "opening cuBLAS");
    *out = cublas.handles[device];
    return status;
}

static int at_least_one(int64_t size)
{
    return size > 0 ? (int)size : 1;
}

/* cuBLAS counts by columns: it is given the transposed product, c^T = op(b)^T op(a)^T, which lies in memory as c does. [lock] */
static cublasStatus_t multiply(cublasHandle_t handle, const wfi_gemm_args *g, bool single)
{
    cublasOperation_t op_a = g->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                      op_b = g->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    int m = (int)g->m, n = (int)g->n, k = (int)g->k;
    int lda = at_least_one(g->transpose_a ? m : k), ldb = at_least_one(g->transpose_b ? k : n);
    const float one_f32 = 1, beta_f32 = (float)g->beta;
    const double one_f64 = 1;
    if (single)
        return cublas.sgemm(handle, op_b, op_a, n, m, k, &one_f32, g->b, ldb, g->a, lda, &beta_f32, g->c, n);
    return cublas.dgemm(handle, op_b, op_a, n, m, k, &one_f64, g->b, ldb, g->a, lda, &g->beta, g->c, n);
}

static weft_status gemm(const wfi_gemm_args *args, bool single)
{
    int before = 0;
    if (args->m == 0 || args->n == 0)
        return WEFT_OK;
    weft_status status = wfi_cuda_enter(args->device.index, &before);
    if (status != WEFT_OK)
        return status;
    cublasHandle_t handle;
    pthread_mutex_lock(&cublas.lock);
    status = handle_for(args->device.index, &handle);
    if (status == WEFT_OK)
        status = status_of(multiply(handle, args, single), "a matrix product");
    pthread_mutex_unlock(&cublas.lock);
    wfi_cuda_leave(args->device.index, before);
    return status;
}

static weft_status gemm_f32(const wfi_gemm_args *args)
{
    return gemm(args, true);
}

static weft_status gemm_f64(const wfi_gemm_args *args)
{
    return gemm(args, false);
}

const wfi_product_kernels wfi_product_cuda[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = {gemm_f32}, [WEFT_DTYPE_FLOAT64] = {gemm_f64}};
