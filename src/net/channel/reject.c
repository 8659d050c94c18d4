/* SPDX-License-Identifier: Apache-2.0 */
/* reject.c - strangers and nonsense: counted all, said aloud a few times a second. */
#include "net/net_internal.h"

#include <stdarg.h>
#include <stdio.h>

#define ALOUD 5 /* a second */
#define SECOND_NS UINT64_C(1000000000)

void wfi_net_refused(wfi_net *net, const char *format, ...)
{
    wfi_assert_held(&net->progress.lock);
    uint64_t now = wfi_now(net->progress.clock);
    net->stats.strangers_refused++;
    if (now - net->refused_ns >= SECOND_NS || net->stats.strangers_refused == 1) {
        net->refused_ns = now;
        net->refused_aloud = 0;
    }
    net->refused_aloud++;
    char text[160];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    wfi_log_net(net, net->refused_aloud <= ALOUD ? WEFT_LOG_WARN : WEFT_LOG_DEBUG, "%s%s", text,
                net->refused_aloud == ALOUD ? " (and what else is refused in this second)" : "");
}

void wfi_silent_came(wfi_net *net, size_t count)
{
    net->silent += count;
    if (!net->silent_timer.heap_index && !net->closing)
        (void)wfi_timer_set(&net->progress, &net->silent_timer,
                            wfi_now(net->progress.clock) + WFI_SILENT_NS); /* reserved */
}

void wfi_silent_excuse(wfi_net *net, uint64_t attempts)
{
    net->silent -= attempts < net->silent ? attempts : net->silent;
}

void wfi_silent_due(wfi_timer *timer)
{
    wfi_net *net = wfi_container_of(timer, wfi_net, silent_timer);
    uint64_t count = net->silent;
    net->silent = 0;
    if (!count)
        return;
    net->stats.strangers_refused += count - 1;
    wfi_net_refused(net,
                    "%llu unauthenticated callers of the fabric's port never asked for anything and were hung up on",
                    (unsigned long long)count);
}
