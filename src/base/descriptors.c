/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.c - see descriptors.h. */
#include "base/descriptors.h"

#include "base/error.h"

#include <assert.h>
#include <errno.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#define ENOUGH ((rlim_t)1 << 20) /* with a higher limit, programs that close all possible descriptors take seconds */

void wfi_descriptors_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    rlim_t wanted = limit.rlim_max < ENOUGH ? limit.rlim_max : ENOUGH;
    if (limit.rlim_cur >= wanted)
        return;
    limit.rlim_cur = wanted;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

bool wfi_descriptors_lack(int count)
{
    int fds[WFI_DESCRIPTORS_LACK_MAX], have = 0;
    assert(count <= WFI_DESCRIPTORS_LACK_MAX);
    while (have < count && (fds[have] = eventfd(0, EFD_CLOEXEC)) >= 0)
        have++;
    bool lack = have < count && (errno == EMFILE || errno == ENFILE);
    while (have > 0)
        close(fds[--have]);
    return lack;
}

unsigned long long wfi_descriptors_limit(void)
{
    struct rlimit limit = {0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_cur;
}

unsigned long long wfi_descriptors_hard_limit(void)
{
    struct rlimit limit = {0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return limit.rlim_max;
}

weft_status wfi_descriptors_fail(const char *doing, weft_error **error)
{
    return wfi_error_fail(error, WEFT_ERR_SYSTEM,
                          "cannot %s: this process is out of file descriptors (its limit is %llu): "
                          "raise it (ulimit -n, or WEFT_RAISE_DESCRIPTOR_LIMIT=1), or close some",
                          doing, wfi_descriptors_limit());
}
