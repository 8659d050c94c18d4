/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.c - see descriptors.h. */
#include "base/descriptors.h"

#include "base/env.h"

#include <sys/resource.h>

#define ENOUGH ((rlim_t)1 << 20) /* with more, programs that close all descriptors they may have take seconds */

weft_status wfi_descriptors_raise(weft_error **error)
{
    bool keep = false;
    struct rlimit limit;
    weft_status status = wfi_env_bool("WEFT_KEEP_DESCRIPTOR_LIMIT", &keep, error);
    if (status || keep || getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return status;
    rlim_t wanted = limit.rlim_max < ENOUGH ? limit.rlim_max : ENOUGH;
    if (limit.rlim_cur >= wanted)
        return WEFT_OK;
    limit.rlim_cur = wanted;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    return WEFT_OK;
}
