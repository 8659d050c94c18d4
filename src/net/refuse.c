/* SPDX-License-Identifier: Apache-2.0 */
/* refuse.c - strangers and nonsense: counted all, said aloud a few times a second. */
#include "net/net_internal.h"

#include <stdarg.h>
#include <stdio.h>

#define ALOUD 5 /* a second */
#define SECOND_NS UINT64_C(1000000000)

void wfi_net_refused(wfi_net *net, const char *format, ...)
{
    wfi_assert_held(&net->lock);
    uint64_t now = wfi_now(net->clock);
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
