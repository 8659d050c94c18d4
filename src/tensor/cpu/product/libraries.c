/* SPDX-License-Identifier: Apache-2.0 */
/* libraries.c - see libraries.h. */
#include "tensor/cpu/product/libraries.h"

#include "base/text/log.h"
#include "tensor/parallel.h"

#include <dlfcn.h>
#include <pthread.h>

static struct openmp {
    pthread_once_t once;
    int (*get)(void);
    void (*set)(int); /* both for the calling thread alone; NULL: there is no OpenMP in this process */
} openmp = {.once = PTHREAD_ONCE_INIT};

#define OPENBLAS "libopenblas.so.0"

/* OpenBLAS keeps one number for the process. The first who uses it sets ours, the last puts back the host's. */
static struct openblas {
    pthread_once_t once;
    bool begun, loaded;
    wfi_openblas functions;
    pthread_mutex_t lock; /* guards what follows */
    int users;
    int host; /* what it was before the first */
    int ours;
} openblas = {.once = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER};

/* A child of fork() has no threads of OpenMP, which would wait for them forever: there it gets one thread. */
static bool forked; /* written in the child alone, before anything else runs there */
static pthread_once_t forks_once = PTHREAD_ONCE_INIT;

static void forget_users(void) /* in the child: they did not come along */
{
    pthread_mutex_init(&openblas.lock, NULL);
    openblas.users = 0;
    forked = true;
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, forget_users);
}

/* By name at run time: which OpenMP oneDNN was built with, if any, is the system's choice. */
static void find_openmp(void)
{
    *(void **)&openmp.get = dlsym(RTLD_DEFAULT, "omp_get_max_threads");
    *(void **)&openmp.set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (!openmp.get)
        openmp.set = NULL;
}

static void load_openblas(void)
{
    wfi_openblas *f = &openblas.functions;
    const struct {
        const char *name;
        void **place;
    } wanted[] = {{"cblas_sgemm", (void **)&f->sgemm},
                  {"cblas_dgemm", (void **)&f->dgemm},
                  {"openblas_get_corename", (void **)&f->corename},
                  {"openblas_get_num_threads", (void **)&f->threads},
                  {"openblas_set_num_threads", (void **)&f->set_threads}};
    if (openblas.begun) { /* a child of fork(): there the library, which another thread was loading, is not complete */
        wfi_log(WEFT_LOG_ERROR, "matrix products: this process was forked while OpenBLAS was loaded: let the parent "
                                "compute a product before it forks");
        return;
    }
    openblas.begun = true;
    void *library = dlopen(OPENBLAS, RTLD_NOW | RTLD_LOCAL);
    bool has_all = library != NULL;
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]) && has_all; i++)
        has_all = (*wanted[i].place = dlsym(library, wanted[i].name)) != NULL;
    openblas.loaded = has_all;
    if (!has_all)
        wfi_log(WEFT_LOG_ERROR, "matrix products: OpenBLAS cannot be loaded: %s: install it (Debian: libopenblas0)",
                dlerror());
}

const wfi_openblas *wfi_openblas_find(void)
{
    pthread_once(&openblas.once, load_openblas);
    return openblas.loaded ? &openblas.functions : NULL;
}

static void openblas_enter(int threads)
{
    const wfi_openblas *blas = wfi_openblas_find();
    if (!blas)
        return;
    pthread_mutex_lock(&openblas.lock);
    if (openblas.users++ == 0) {
        openblas.host = blas->threads();
        openblas.ours = threads;
        if (openblas.host != threads)
            blas->set_threads(threads);
    }
    pthread_mutex_unlock(&openblas.lock);
}

/* Restores the program's number of threads, unless the program has set another one meanwhile. */
static void openblas_leave(void)
{
    const wfi_openblas *blas = wfi_openblas_find();
    if (!blas)
        return;
    pthread_mutex_lock(&openblas.lock);
    if (--openblas.users == 0 && openblas.host != openblas.ours && blas->threads() == openblas.ours)
        blas->set_threads(openblas.host);
    pthread_mutex_unlock(&openblas.lock);
}

int wfi_libraries_enter(wfi_libraries *host)
{
    int threads = wfi_cpu_threads();
    pthread_once(&forks_once, watch_forks);
    pthread_once(&openmp.once, find_openmp);
    if (openmp.set)
        host->openmp = openmp.get();
    openblas_enter(threads);
    if (forked) /* OpenBLAS minds forks itself */
        threads = 1;
    if (openmp.set)
        openmp.set(threads);
    return threads;
}

void wfi_libraries_leave(const wfi_libraries *host)
{
    openblas_leave();
    if (openmp.set)
        openmp.set(host->openmp);
}
