/* SPDX-License-Identifier: Apache-2.0 */
/* mutex.h - a mutex that functions can assert to be held. Never held across a park or a call into user code. */
#ifndef WFI_MUTEX_H
#define WFI_MUTEX_H

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

typedef struct wfi_mutex {
    pthread_mutex_t lock;
    _Atomic(pthread_t) owner; /* for assertions only */
    atomic_bool held;
    bool bars_devices; /* likewise: wfi_mutex_bar_devices */
} wfi_mutex;

void wfi_mutex_init(wfi_mutex *mutex);
void wfi_mutex_fini(wfi_mutex *mutex);
void wfi_mutex_lock(wfi_mutex *mutex);
bool wfi_mutex_trylock(wfi_mutex *mutex);
void wfi_mutex_unlock(wfi_mutex *mutex);

/* For assertions: while a thread holds this mutex it must not call the driver of a device, which may take long and may
 * call back. Whether the calling thread holds such a mutex. */
void wfi_mutex_bar_devices(wfi_mutex *mutex);
bool wfi_devices_are_barred(void);

/* For assertions: whether the library was compiled with them, and so records the owners of mutexes; and whether the
 * caller owns this one. */
extern const bool wfi_mutex_knows_owner;
bool wfi_mutex_is_mine(const wfi_mutex *mutex);

#ifdef NDEBUG
#define wfi_assert_held(mutex) ((void)(mutex)) /* avoids warnings about unused variables */
#else
#define wfi_assert_held(mutex) assert(wfi_mutex_is_mine(mutex))
#endif

#endif
