/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c - see threads.h. */
#include "base/threads.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

const char *wfi_threads_text(int trouble, char text[WFI_THREADS_TEXT])
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    const char *why = strerrordesc_np(trouble);
    (void)getrlimit(RLIMIT_NPROC, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        snprintf(text, WFI_THREADS_TEXT, "%s (ulimit -u unlimited; look at pids.max of the cgroup)", why ? why : "?");
    else
        snprintf(text, WFI_THREADS_TEXT, "%s (ulimit -u %llu, or pids.max of the cgroup)", why ? why : "?",
                 (unsigned long long)limit.rlim_cur);
    return text;
}

int wfi_start_quiet_thread(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *name)
{
    sigset_t all, before;
    sigfillset(&all);
    int trouble = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (trouble)
        return trouble;
    trouble = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!trouble)
        (void)pthread_setname_np(*thread, name);
    return trouble;
}
