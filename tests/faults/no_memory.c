/* SPDX-License-Identifier: Apache-2.0 */
/* no_memory.c - see no_memory.h. */
#include "faults/no_memory.h"

#include "base/simulation.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#define NOBODY (-1)

static _Thread_local int thread_worker = NOBODY;
static atomic_int victim = NOBODY; /* stored last */
static _Atomic uint64_t asked, refused, nth_;
static atomic_bool again_;

void no_memory_is_worker(int rank)
{
    thread_worker = rank;
}

void no_memory_refuse(int rank, uint64_t nth, bool again)
{
    atomic_store(&asked, 0);
    atomic_store(&refused, 0);
    atomic_store(&nth_, nth);
    atomic_store(&again_, again);
    atomic_store(&victim, rank);
}

uint64_t no_memory_end(void)
{
    atomic_store(&victim, NOBODY);
    return atomic_load(&refused);
}

static bool is_refused(void)
{
    int of = atomic_load(&victim);
    if (of == NOBODY)
        return false;
    wfi_fiber *fiber = wfi_fiber_current();
    if ((fiber ? fiber->group : thread_worker) != of)
        return false;
    uint64_t count = atomic_fetch_add(&asked, 1) + 1, nth = atomic_load(&nth_);
    if (count % nth || (count > nth && !atomic_load(&again_)))
        return false;
    atomic_fetch_add(&refused, 1);
    errno = ENOMEM;
    return true;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
char *__real_strdup(const char *text);
void *__real_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);

void *__wrap_malloc(size_t size)
{
    return is_refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return is_refused() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return is_refused() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return is_refused() ? NULL : __real_aligned_alloc(alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return is_refused() ? NULL : __real_strdup(text);
}

void *__wrap_mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset)
{
    return is_refused() ? MAP_FAILED : __real_mmap(address, length, protection, flags, fd, offset);
}

typedef struct birth {
    void *(*run)(void *);
    void *arg;
    int worker;
} birth;

static void *begin(void *arg)
{
    birth of = *(birth *)arg;
    free(arg);
    thread_worker = of.worker;
    return of.run(of.arg);
}

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    birth *of = is_refused() ? NULL : __real_malloc(sizeof(*of));
    if (!of)
        return EAGAIN;
    *of = (birth){.run = run, .arg = arg, .worker = thread_worker};
    int trouble = __real_pthread_create(thread, attributes, begin, of);
    if (trouble)
        free(of);
    return trouble;
}
