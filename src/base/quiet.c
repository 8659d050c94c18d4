/* SPDX-License-Identifier: Apache-2.0 */
/* quiet.c - see quiet.h. The kernel sends both signals to the writing thread, so its mask is enough. */
#include "base/quiet.h"

#include <errno.h>
#include <string.h>
#include <time.h>

static const int signals[] = {SIGPIPE, SIGXFSZ};
#define SIGNALS (sizeof(signals) / sizeof(*signals))

void wfi_quiet_begin(wfi_quiet *quiet)
{
    sigset_t all, pending;
    sigemptyset(&all);
    sigemptyset(&quiet->ours);
    (void)!sigpending(&pending);
    for (size_t i = 0; i < SIGNALS; i++) {
        sigaddset(&all, signals[i]);
        if (!sigismember(&pending, signals[i]))
            sigaddset(&quiet->ours, signals[i]);
    }
    pthread_sigmask(SIG_BLOCK, &all, &quiet->before);
}

void wfi_quiet_end(const wfi_quiet *quiet)
{
    static const struct timespec none;
    int error = errno;
    while (sigtimedwait(&quiet->ours, NULL, &none) > 0 || errno == EINTR)
        continue;
    pthread_sigmask(SIG_SETMASK, &quiet->before, NULL);
    errno = error;
}

const char *wfi_quiet_trouble(int error)
{
    return error == EFBIG ? "too large for the process's limit of file sizes (ulimit -f): raise it"
                          : strerrordesc_np(error);
}

bool wfi_quiet_write(FILE *to, const void *data, size_t size)
{
    wfi_quiet quiet;
    wfi_quiet_begin(&quiet);
    bool written = fwrite(data, 1, size, to) == size;
    wfi_quiet_end(&quiet);
    return written;
}

bool wfi_quiet_flush(FILE *to)
{
    wfi_quiet quiet;
    wfi_quiet_begin(&quiet);
    bool flushed = fflush(to) == 0 && !ferror(to);
    wfi_quiet_end(&quiet);
    return flushed;
}
