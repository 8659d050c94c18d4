/* SPDX-License-Identifier: Apache-2.0 */
/* parallel.c - the threads of the kernels. They start when first needed and end with the process. */
#include "tensor/parallel.h"

#include "base/env.h"
#include "base/text/log.h"
#include "base/thread.h"
#include "topo/quota.h"

#include <pthread.h>
#include <stdlib.h>

#define THREADS_MAX 256

typedef struct parallel_job {
    void (*run)(void *arg, int64_t begin, int64_t end);
    void *arg;
    int64_t count, grain;
    _Atomic int64_t next; /* first item not yet taken */
} parallel_job;

/*
 * Locking: the caller whose job the pool runs holds `busy`. Meanwhile other callers run their jobs alone. That is as
 * fast when there are few cores, and it cannot deadlock. `lock` protects all fields below it. A worker takes a job
 * whose number it has not served yet. The caller returns when `inside` is 0 again, so the job may be on its stack.
 */
static struct parallel_pool {
    pthread_mutex_t busy, lock;
    pthread_cond_t work, done;
    parallel_job *job;
    uint64_t number; /* number of the present job */
    int wanted;      /* workers that may still join the job */
    int inside;      /* workers that run the job now */
    int workers;     /* workers that were started */
} pool = {
    .busy = PTHREAD_MUTEX_INITIALIZER,
    .lock = PTHREAD_MUTEX_INITIALIZER,
    .work = PTHREAD_COND_INITIALIZER,
    .done = PTHREAD_COND_INITIALIZER,
};

#define SHARE (-1)

static _Atomic int thread_setting; /* 0: not read yet; SHARE: the process's share of the cores */

weft_status wfi_cpu_threads_setting(int64_t *threads, weft_error **error)
{
    *threads = 0;
    return wfi_env_i64("WEFT_CPU_THREADS", 1, THREADS_MAX, threads, error);
}

static int setting_at_start(void)
{
    int64_t threads;
    weft_error *error = NULL;
    weft_status status = wfi_cpu_threads_setting(&threads, &error);
    if (status == WEFT_OK && threads == 0)
        status = wfi_env_i64("OMP_NUM_THREADS", 1, INT32_MAX, &threads, NULL); /* a list is ignored */
    if (error)
        wfi_log(WEFT_LOG_ERROR, "%s", weft_error_message(error));
    weft_error_unref(error);
    if (status != WEFT_OK || threads == 0)
        return SHARE;
    return threads > THREADS_MAX ? THREADS_MAX : (int)threads;
}

int wfi_cpu_threads(void)
{
    int threads = atomic_load_explicit(&thread_setting, memory_order_relaxed);
    if (threads == 0) {
        int found = setting_at_start();
        if (atomic_compare_exchange_strong(&thread_setting, &threads, found))
            threads = found;
    }
    if (threads == SHARE)
        threads = wfi_quota_cores();
    return threads > THREADS_MAX ? THREADS_MAX : threads;
}

void wfi_cpu_threads_set(int threads)
{
    if (threads < 1)
        threads = 1;
    atomic_store(&thread_setting, threads > THREADS_MAX ? THREADS_MAX : threads);
}

static void work_on(parallel_job *job)
{
    for (;;) {
        int64_t begin = atomic_fetch_add_explicit(&job->next, job->grain, memory_order_relaxed);
        if (begin >= job->count)
            return;
        int64_t left = job->count - begin;
        job->run(job->arg, begin, begin + (left < job->grain ? left : job->grain));
    }
}

static void *worker(void *arg)
{
    (void)arg;
    uint64_t served = 0;
    pthread_mutex_lock(&pool.lock);
    for (;;) {
        while (!pool.job || pool.number == served || pool.wanted == 0)
            pthread_cond_wait(&pool.work, &pool.lock);
        parallel_job *job = pool.job;
        served = pool.number;
        pool.wanted--;
        pool.inside++;
        pthread_mutex_unlock(&pool.lock);
        work_on(job);
        pthread_mutex_lock(&pool.lock);
        if (--pool.inside == 0)
            pthread_cond_signal(&pool.done);
    }
    return NULL;
}

static void forget_workers(void) /* in a child of fork(2), which has none of the threads */
{
    pthread_mutex_init(&pool.busy, NULL);
    pthread_mutex_init(&pool.lock, NULL);
    pthread_cond_init(&pool.work, NULL);
    pthread_cond_init(&pool.done, NULL);
    pool.job = NULL;
    pool.workers = pool.inside = pool.wanted = 0;
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, forget_workers);
}

static pthread_once_t forks_once = PTHREAD_ONCE_INIT;

static void start_workers(int wanted)
{
    pthread_once(&forks_once, watch_forks);
    while (pool.workers < wanted) {
        pthread_t thread;
        if (wfi_thread_start(&thread, worker, NULL, "weft-compute") != 0)
            break; /* fewer workers are enough */
        pthread_detach(thread);
        pool.workers++;
    }
}

static void offer(parallel_job *job, int helpers)
{
    pthread_mutex_lock(&pool.lock);
    start_workers(helpers);
    pool.job = job;
    pool.number++;
    pool.wanted = helpers;
    pthread_cond_broadcast(&pool.work);
    pthread_mutex_unlock(&pool.lock);
}

static void withdraw(void)
{
    pthread_mutex_lock(&pool.lock);
    pool.job = NULL;
    while (pool.inside > 0)
        pthread_cond_wait(&pool.done, &pool.lock);
    pthread_mutex_unlock(&pool.lock);
}

void wfi_parallel(int64_t count, int64_t grain, void (*run)(void *arg, int64_t begin, int64_t end), void *arg)
{
    parallel_job job = {.run = run, .arg = arg, .count = count, .grain = grain};
    int64_t pieces = (count + grain - 1) / grain;
    int threads = pieces > 1 ? wfi_cpu_threads() : 1;
    if (threads > pieces)
        threads = (int)pieces;
    if (threads <= 1 || pthread_mutex_trylock(&pool.busy) != 0) {
        work_on(&job);
        return;
    }
    offer(&job, threads - 1);
    work_on(&job);
    withdraw();
    pthread_mutex_unlock(&pool.busy);
}
