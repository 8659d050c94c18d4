/* SPDX-License-Identifier: Apache-2.0 */
/* thread.c - see thread.h. */
#include "base/thread.h"

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

const char *wfi_thread_strerror(int errnum, char text[WFI_THREAD_STRERROR])
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    const char *why = strerrordesc_np(errnum);
    (void)getrlimit(RLIMIT_NPROC, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, WFI_THREAD_STRERROR, "%s (ulimit -u unlimited; look at pids.max of the cgroup)",
                 why ? why : "?");
    else
        snprintf(text, WFI_THREAD_STRERROR, "%s (ulimit -u %llu, or pids.max of the cgroup)", why ? why : "?",
                 (unsigned long long)limit.rlim_cur);
    return text;
}

void wfi_signals_block(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof(faults) / sizeof(*faults); i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, before);
}

int wfi_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *name)
{
    sigset_t before;
    wfi_signals_block(&before);
    int errnum = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!errnum && name)
        (void)pthread_setname_np(*thread, name);
    return errnum;
}
