/* SPDX-License-Identifier: Apache-2.0 */
/* said.c - log lines about calls of libfabric that failed. */
#include "objects.h"

#include "base/clock.h"
#include "base/text/log.h"

#include <errno.h>
#include <sys/resource.h>

/* between two log lines about missing descriptors: there are many attempts in a second */
#define SAY_NS UINT64_C(60000000000)

void wfofi_say_exhausted(wfofi_fabric *fabric)
{
    uint64_t now = wfi_now(&wfi_clock_real), said = atomic_load(&fabric->exhausted_said_ns);
    struct rlimit limit = {0};
    bool is_news = said == 0 || now - said >= SAY_NS;
    if (!is_news || !atomic_compare_exchange_strong(&fabric->exhausted_said_ns, &said, now))
        return;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    wfofi_log(fabric, WEFT_LOG_ERROR,
              "out of file descriptors (the limit is %llu): this worker can neither open nor accept a connection",
              (unsigned long long)limit.rlim_cur);
}

void wfofi_say_failed(wfofi_fabric *fabric, const char *doing, int ret)
{
    if (ret == -EMFILE || ret == -ENFILE)
        wfofi_say_exhausted(fabric);
    else
        wfofi_log(fabric, WEFT_LOG_WARN, "%s: %s", doing, fi_strerror(-ret));
}
