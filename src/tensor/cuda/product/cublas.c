/* SPDX-License-Identifier: Apache-2.0 */
/* cublas.c - loads cuBLAS, and keeps one handle for each stream number of each device until the process ends. */
#include "tensor/cuda/product/cublas.h"

#include "base/text/log.h"
#include "mem/cuda.h"
#include "mem/stream.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALLOC_FAILED = 3 }; /* CUBLAS_STATUS_ALLOC_FAILED */

/* `lock` guards all fields. The functions that are called under it only queue work. */
static struct cublas {
    pthread_mutex_t lock;
    bool tried, works;
    wfi_cublas functions;
    struct {
        void *handle;
        uint64_t stream;                               /* the id of the stream that the handle was set to */
    } handles[WFI_CUDA_DEVICES_MAX][WFI_STREAMS_MOST]; /* by the number of the stream */
} cublas = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The major versions whose functions have the types of cublas.h; the newest first. */
static const char *const libraries[] = {"libcublas.so.13", "libcublas.so.12", "libcublas.so.11", "libcublas.so"};
enum { LIBRARIES = sizeof(libraries) / sizeof(libraries[0]) };

/* In the folder that WEFT_CUDA_PATH names, or its lib64 or lib; then where the system looks. */
static void *open_library(void)
{
    static const char *const below[] = {"", "lib64/", "lib/"};
    const char *folder = getenv("WEFT_CUDA_PATH");
    char path[1024];
    for (int i = 0; folder != NULL && i < LIBRARIES; i++) {
        for (int k = 0; k < 3; k++) {
            snprintf(path, sizeof(path), "%s/%s%s", folder, below[k], libraries[i]);
            void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (library != NULL)
                return library;
        }
    }
    for (int i = 0; i < LIBRARIES; i++) {
        void *library = dlopen(libraries[i], RTLD_NOW | RTLD_LOCAL);
        if (library != NULL)
            return library;
    }
    return NULL;
}

static bool find(void *library, const char *name, void *place)
{
    void *found = dlsym(library, name);
    memcpy(place, &found, sizeof(found));
    if (found == NULL)
        wfi_log(WEFT_LOG_ERROR, "no matrix products on GPUs: cuBLAS has no %s", name);
    return found != NULL;
}

static void load(void)
{
    cublas.tried = true;
    void *library = open_library();
    if (library == NULL)
        wfi_log(WEFT_LOG_ERROR,
                "no matrix products on GPUs: neither libcublas.so.13, .12 nor .11 was found: set WEFT_CUDA_PATH to the "
                "folder of the CUDA toolkit");
    else
        cublas.works = find(library, "cublasCreate_v2", &cublas.functions.create) &&
                       find(library, "cublasSetStream_v2", &cublas.functions.set_stream) &&
                       find(library, "cublasSgemmStridedBatched", &cublas.functions.sgemm) &&
                       find(library, "cublasDgemmStridedBatched", &cublas.functions.dgemm);
}

weft_status wfi_cublas_status(int code, const char *what)
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
    weft_status status = WEFT_OK;
    if (cublas.handles[device][n].handle == NULL)
        status = wfi_cublas_status(cublas.functions.create(&cublas.handles[device][n].handle), "opening cuBLAS");
    if (status == WEFT_OK && cublas.handles[device][n].stream != stream->id) {
        status = wfi_cublas_status(cublas.functions.set_stream(cublas.handles[device][n].handle, stream->driver),
                                   "setting the stream of cuBLAS");
        cublas.handles[device][n].stream = status == WEFT_OK ? stream->id : 0;
    }
    *handle = cublas.handles[device][n].handle;
    return status;
}

weft_status wfi_cublas_lock(int device, const wfi_cublas **functions, void **handle)
{
    pthread_mutex_lock(&cublas.lock);
    if (!cublas.tried)
        load();
    weft_status status = cublas.works ? handle_of(wfi_stream_now(device), handle) : WEFT_ERR_UNSUPPORTED;
    *functions = &cublas.functions;
    if (status != WEFT_OK)
        pthread_mutex_unlock(&cublas.lock);
    return status;
}

void wfi_cublas_unlock(void)
{
    pthread_mutex_unlock(&cublas.lock);
}
