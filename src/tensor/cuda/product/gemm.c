/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gemm.c - matrix products on a GPU by cuBLAS, and the table of products. Products are queued on the stream of this
 * thread, as kernels are (tensor/cuda/launch.h). weft declares the functions of cuBLAS itself. It loads the library
 * when the first product is asked for, because it is large and many machines have none. One handle for each stream
 * number of each device is kept until the process ends.
 */
#include "base/text/log.h"
#include "mem/cuda.h"
#include "mem/mem.h"
#include "mem/stream.h"
#include "tensor/cuda/product/product.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_TRANSPOSED = 0, TRANSPOSED = 1 };

/* Each returns 0 or a status of cuBLAS. Matrices are column-major. */
typedef struct cublas_functions {
    int (*create)(void **handle);
    int (*set_stream)(void *handle, void *stream);
    int (*sgemm)(void *handle, int op_a, int op_b, int m, int n, int k, const float *alpha, const float *a, int lda,
                 long long step_a, const float *b, int ldb, long long step_b, const float *beta, float *c, int ldc,
                 long long step_c, int batch);
    int (*dgemm)(void *handle, int op_a, int op_b, int m, int n, int k, const double *alpha, const double *a, int lda,
                 long long step_a, const double *b, int ldb, long long step_b, const double *beta, double *c, int ldc,
                 long long step_c, int batch);
} cublas_functions;

enum { NOT_INITIALIZED = 1, ALLOC_FAILED = 3 }; /* CUBLAS_STATUS_... */

/* `lock` guards all fields. The functions that are called under it only queue work. */
static struct cublas {
    pthread_mutex_t lock;
    bool tried, works;
    cublas_functions functions;
    struct {
        void *handle;
        uint64_t stream;                               /* the id of the stream that the handle was set to */
    } handles[WFI_CUDA_DEVICES_MAX][WFI_STREAMS_MOST]; /* by the number of the stream */
} cublas = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The major versions whose functions have these types; the newest first. */
static const char *const libraries[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"};
enum { LIBRARIES = sizeof(libraries) / sizeof(libraries[0]) };

static bool find(void *library, const char *name, void *place)
{
    void *found = dlsym(library, name);
    memcpy(place, &found, sizeof(found));
    if (!found)
        wfi_log(WEFT_LOG_ERROR, "no matrix products on GPUs: cuBLAS has no %s", name);
    return found != NULL;
}

static bool find_functions(void *library)
{
    return find(library, "cublasCreate_v2", &cublas.functions.create) &&
           find(library, "cublasSetStream_v2", &cublas.functions.set_stream) &&
           find(library, "cublasSgemmStridedBatched", &cublas.functions.sgemm) &&
           find(library, "cublasDgemmStridedBatched", &cublas.functions.dgemm);
}

/* The library at `path`, if it works with this driver: then *handle is its first handle. */
static bool try_library(const char *path, void **handle)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library || !find_functions(library))
        return false;
    int code = cublas.functions.create(handle);
    if (code == NOT_INITIALIZED)
        wfi_log(WEFT_LOG_WARN, "%s does not work with this driver: cublasCreate returned %d", path, code);
    return code != NOT_INITIALIZED; /* without memory it can be asked again */
}

/* Loads the newest library that works: from the folder that WEFT_CUDA_PATH names, or its lib64 or lib; then from where
 * the system looks. The context of the device is current. [lock] */
static void load(void **handle)
{
    static const char *const below[] = {"", "lib64/", "lib/"};
    const char *folder = getenv("WEFT_CUDA_PATH");
    char path[1024];
    cublas.tried = true;
    for (int i = 0; folder && i < LIBRARIES && !cublas.works; i++) {
        for (int k = 0; k < 3 && !cublas.works; k++) {
            snprintf(path, sizeof(path), "%s/%s%s", folder, below[k], libraries[i]);
            cublas.works = try_library(path, handle);
        }
    }
    for (int i = 0; i < LIBRARIES && !cublas.works; i++)
        cublas.works = try_library(libraries[i], handle);
    if (!cublas.works)
        wfi_log(WEFT_LOG_ERROR,
                "no matrix products on GPUs: none of libcublas.so.13, .12 and .11 was found that works here: set "
                "WEFT_CUDA_PATH to the folder of the CUDA toolkit");
}

static weft_status status_of(int code, const char *what)
{
    if (code == 0)
        return WEFT_OK;
    wfi_log(WEFT_LOG_ERROR, "%s failed: cuBLAS returned %d", what, code);
    return code == ALLOC_FAILED ? WEFT_ERR_MEMORY : WEFT_ERR_SYSTEM;
}

/* [lock] */
static weft_status handle_of(const weft_stream *stream, void **handle)
{
    int device = stream->device, n = stream->number;
    void **kept = &cublas.handles[device][n].handle;
    weft_status status = WEFT_OK;
    if (!cublas.tried)
        load(kept);
    if (!cublas.works)
        return WEFT_ERR_UNSUPPORTED;
    if (!*kept) {
        int code = cublas.functions.create(kept);
        if (code == ALLOC_FAILED) { /* its workspace is the driver's memory, as that of weft's idle slabs */
            wfi_slab_trim(0);
            code = cublas.functions.create(kept);
        }
        status = status_of(code, "opening cuBLAS");
    }
    if (status == WEFT_OK && cublas.handles[device][n].stream != stream->id) {
        status = status_of(cublas.functions.set_stream(cublas.handles[device][n].handle, stream->driver),
                           "setting the stream of cuBLAS");
        cublas.handles[device][n].stream = status == WEFT_OK ? stream->id : 0;
    }
    *handle = cublas.handles[device][n].handle;
    return status;
}

/*
 * Locks cuBLAS, and gives its functions and the handle for the stream of this thread on `device`, whose context is
 * current. Each stream has a handle, as cuBLAS advises: so they do not share its workspace. A handle is not for two
 * threads at once. WEFT_ERR_UNSUPPORTED: there is no cuBLAS. If it fails, cublas.lock is not held.
 */
static weft_status lock_cublas(int device, const cublas_functions **functions, void **handle)
{
    pthread_mutex_lock(&cublas.lock);
    weft_status status = handle_of(wfi_stream_now(device), handle);
    *functions = &cublas.functions;
    if (status != WEFT_OK)
        pthread_mutex_unlock(&cublas.lock);
    return status;
}

static int at_least_one(int64_t size)
{
    return size > 0 ? (int)size : 1;
}

/* Matrices of cuBLAS are column-major. So it is asked for c^T = op(b)^T op(a)^T, which is c in row-major order. */
static int multiply(const cublas_functions *functions, void *handle, const wfi_gemm_args *g, bool single)
{
    int op_a = g->transpose_a ? TRANSPOSED : NOT_TRANSPOSED;
    int op_b = g->transpose_b ? TRANSPOSED : NOT_TRANSPOSED;
    int m = (int)g->m, n = (int)g->n, k = (int)g->k, batch = at_least_one(g->batch);
    int lda = at_least_one(g->transpose_a ? m : k), ldb = at_least_one(g->transpose_b ? k : n);
    const float one_f32 = 1, beta_f32 = (float)g->beta;
    const double one_f64 = 1;
    if (single)
        return functions->sgemm(handle, op_b, op_a, n, m, k, &one_f32, g->b, ldb, g->step_b, g->a, lda, g->step_a,
                                &beta_f32, g->c, n, g->step_c, batch);
    return functions->dgemm(handle, op_b, op_a, n, m, k, &one_f64, g->b, ldb, g->step_b, g->a, lda, g->step_a, &g->beta,
                            g->c, n, g->step_c, batch);
}

static weft_status gemm(const wfi_gemm_args *args, bool single)
{
    if (args->m == 0 || args->n == 0)
        return WEFT_OK;
    weft_status status = wfi_cuda_enter(args->device.index);
    if (status != WEFT_OK)
        return status;
    const cublas_functions *functions;
    void *handle;
    status = lock_cublas(args->device.index, &functions, &handle);
    if (status == WEFT_OK) {
        status = status_of(multiply(functions, handle, args, single), "a matrix product");
        pthread_mutex_unlock(&cublas.lock);
    }
    wfi_cuda_leave();
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

static weft_status conv_f32(weft_device device, wfi_conv_kind kind, const wfi_conv_sizes *sizes,
                            const wfi_conv_data *data)
{
    return wfi_cublas_conv(device, WEFT_DTYPE_FLOAT32, kind, sizes, data);
}

static weft_status conv_f64(weft_device device, wfi_conv_kind kind, const wfi_conv_sizes *sizes,
                            const wfi_conv_data *data)
{
    return wfi_cublas_conv(device, WEFT_DTYPE_FLOAT64, kind, sizes, data);
}

const wfi_product_kernels wfi_product_cuda[WFI_DTYPES] = {
    [WEFT_DTYPE_FLOAT32] = {gemm_f32, conv_f32}, [WEFT_DTYPE_FLOAT64] = {gemm_f64, conv_f64}};
