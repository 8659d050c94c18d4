/* SPDX-License-Identifier: Apache-2.0 */
/* threads.c - see threads.h. */
#include "base/threads.h"

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
