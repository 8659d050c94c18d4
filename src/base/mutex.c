/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mutex.c - a mutex that records its owner for assertions.
 *
 * `held` and `owner` are written only by the holder and read by any thread, so they are atomic. Relaxed order is
 * enough, because only the holder relies on the result, and it sees its own writes. Without assertions they are not
 * written, and this is only the system's mutex: a remote call takes about thirty of them.
 */
#include "base/mutex.h"

#include <errno.h> /* EBUSY */

#ifdef NDEBUG
const bool wfi_mutex_knows_owner = false;
#else
const bool wfi_mutex_knows_owner = true;
#endif

static _Thread_local int bars; /* how many mutexes that bar devices this thread holds */

void wfi_mutex_bar_devices(wfi_mutex *mutex)
{
    mutex->bars_devices = true;
}

bool wfi_devices_are_barred(void)
{
    return bars > 0;
}

static void note_taken(wfi_mutex *mutex)
{
    if (!wfi_mutex_knows_owner)
        return;
    atomic_store_explicit(&mutex->owner, pthread_self(), memory_order_relaxed);
    atomic_store_explicit(&mutex->held, true, memory_order_relaxed);
    bars += mutex->bars_devices;
}

static void note_left(wfi_mutex *mutex)
{
    if (!wfi_mutex_knows_owner)
        return;
    atomic_store_explicit(&mutex->held, false, memory_order_relaxed);
    bars -= mutex->bars_devices;
}

void wfi_mutex_init(wfi_mutex *mutex)
{
    pthread_mutex_init(&mutex->lock, NULL); /* cannot fail without attributes */
    atomic_init(&mutex->owner, pthread_self());
    atomic_init(&mutex->held, false);
    mutex->bars_devices = false;
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
    note_taken(mutex);
}

bool wfi_mutex_trylock(wfi_mutex *mutex)
{
    int rc = pthread_mutex_trylock(&mutex->lock);
    assert(rc == 0 || rc == EBUSY);
    if (rc != 0)
        return false;
    note_taken(mutex);
    return true;
}

void wfi_mutex_unlock(wfi_mutex *mutex)
{
    int rc;
    assert(wfi_mutex_is_mine(mutex) && "unlocked by its owner only");
    note_left(mutex);
    rc = pthread_mutex_unlock(&mutex->lock);
    assert(rc == 0);
    (void)rc;
}

bool wfi_mutex_is_mine(const wfi_mutex *mutex)
{
    return atomic_load_explicit(&mutex->held, memory_order_relaxed) &&
           pthread_equal(atomic_load_explicit(&mutex->owner, memory_order_relaxed), pthread_self());
}
