/* SPDX-License-Identifier: Apache-2.0 */
/* nosignal.c - see nosignal.h. The kernel sends both signals to the writing thread, so its mask is enough. */
#include "base/nosignal.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static const int signals[] = {SIGPIPE, SIGXFSZ};
#define SIGNALS (sizeof(signals) / sizeof(*signals))

void wfi_nosignal_begin(wfi_nosignal *saved)
{
    sigset_t all, pending;
    sigemptyset(&all);
    sigemptyset(&saved->ours);
    (void)!sigpending(&pending);
    for (size_t i = 0; i < SIGNALS; i++) {
        sigaddset(&all, signals[i]);
        if (!sigismember(&pending, signals[i]))
            sigaddset(&saved->ours, signals[i]);
    }
    pthread_sigmask(SIG_BLOCK, &all, &saved->before);
}

void wfi_nosignal_end(const wfi_nosignal *saved)
{
    static const struct timespec none;
    int error = errno;
    while (sigtimedwait(&saved->ours, NULL, &none) > 0 || errno == EINTR)
        continue;
    pthread_sigmask(SIG_SETMASK, &saved->before, NULL);
    errno = error;
}

const char *wfi_nosignal_strerror(int error)
{
    return error == EFBIG ? "too large for the process's limit of file sizes (ulimit -f): raise it"
                          : strerrordesc_np(error);
}

bool wfi_nosignal_write(FILE *to, const void *data, size_t size)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    bool written = fwrite(data, 1, size, to) == size;
    wfi_nosignal_end(&saved);
    return written;
}

bool wfi_nosignal_flush(FILE *to)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    bool flushed = fflush(to) == 0 && !ferror(to);
    wfi_nosignal_end(&saved);
    return flushed;
}
