/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - log lines about calls of libfabric that failed. */
#include "objects.h"

#include "base/clock.h"
#include "base/text/log.h"

#include <errno.h>
#include <sys/resource.h>

/* between two log lines about missing descriptors: there are many attempts in a second */
#define LOG_PAUSE_NS UINT64_C(60000000000)

void wfofi_log_exhausted(wfofi_fabric *fabric)
{
    uint64_t now = wfi_now(&wfi_clock_real), logged = atomic_load(&fabric->exhausted_logged_ns);
    struct rlimit limit = {0};
    bool is_news = logged == 0 || now - logged >= LOG_PAUSE_NS;
    if (!is_news || !atomic_compare_exchange_strong(&fabric->exhausted_logged_ns, &logged, now))
        return;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    wfofi_log(fabric, WEFT_LOG_ERROR,
              "out of file descriptors (the limit is %llu): this worker can neither open nor accept a connection",
              (unsigned long long)limit.rlim_cur);
}

void wfofi_log_failed(wfofi_fabric *fabric, const char *doing, int ret)
{
    if (ret == -EMFILE || ret == -ENFILE)
        wfofi_log_exhausted(fabric);
    else
        wfofi_log(fabric, WEFT_LOG_WARN, "%s: %s", doing, fi_strerror(-ret));
}
