/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mutex.c - a mutex that knows its owner.
 *
 * `held` and `owner` are written by the holder only and read by anybody, so they are atomic; relaxed is enough, because the
 * only reader whose answer matters is the holder itself, which sees its own writes.
 */
#include "base/mutex.h"

#include <errno.h> /* EBUSY */

static void take(wfi_mutex *mutex)
{
    atomic_store_explicit(&mutex->owner, pthread_self(), memory_order_relaxed);
    atomic_store_explicit(&mutex->held, true, memory_order_relaxed);
}

void wfi_mutex_init(wfi_mutex *mutex)
{
    pthread_mutex_init(&mutex->lock, NULL); /* cannot fail without attributes */
    atomic_init(&mutex->owner, pthread_self());
    atomic_init(&mutex->held, false);
}

void wfi_mutex_fini(wfi_mutex *mutex)
{
    int rc = pthread_mutex_destroy(&mutex->lock);
    assert(rc == 0 && "a mutex that is destroyed must be free");
    (void)rc;
}

void wfi_mutex_lock(wfi_mutex *mutex)
{
    int rc;
    assert(!wfi_mutex_is_mine(mutex) && "not recursive");
    rc = pthread_mutex_lock(&mutex->lock);
    assert(rc == 0);
    (void)rc;
    take(mutex);
}

bool wfi_mutex_trylock(wfi_mutex *mutex)
{
    int rc = pthread_mutex_trylock(&mutex->lock);
    assert(rc == 0 || rc == EBUSY);
    if (rc != 0)
        return false;
    take(mutex);
    return true;
}

void wfi_mutex_unlock(wfi_mutex *mutex)
{
    int rc;
    assert(wfi_mutex_is_mine(mutex) && "unlocked by its owner only");
    atomic_store_explicit(&mutex->held, false, memory_order_relaxed);
    rc = pthread_mutex_unlock(&mutex->lock);
    assert(rc == 0);
    (void)rc;
}

bool wfi_mutex_is_mine(const wfi_mutex *mutex)
{
    return atomic_load_explicit(&mutex->held, memory_order_relaxed) &&
           pthread_equal(atomic_load_explicit(&mutex->owner, memory_order_relaxed), pthread_self());
}
