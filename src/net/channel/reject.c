/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reject.c - counts and logs refused connections and messages. Connections that closed before they sent a request are
 * logged at level info.
 */
#include "net/channel/channel.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>

#define ALOUD 5 /* warnings a second */
#define SECOND_NS UINT64_C(1000000000)

void wfi_transport_refused(wfi_transport *transport, const char *format, ...)
{
    wfi_assert_held(&transport->progress->lock);
    uint64_t now = wfi_now(transport->progress->clock);
    transport->stats.unauthenticated_refused++;
    if (now - transport->refused_ns >= SECOND_NS || transport->stats.unauthenticated_refused == 1) {
        transport->refused_ns = now;
        transport->refused_aloud = 0;
    }
    transport->refused_aloud++;
    char text[160];
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(text, sizeof(text), format, args);
    va_end(args);
    wfi_log_net(transport, transport->refused_aloud <= ALOUD ? WEFT_LOG_WARN : WEFT_LOG_DEBUG, "%s%s", text,
                transport->refused_aloud == ALOUD ? " (others in this second are logged as debug messages)" : "");
}

void wfi_silent_came(wfi_transport *transport, size_t count)
{
    transport->silent += count;
    if (!transport->silent_timer.heap_index && !transport->closing)
        (void)wfi_timer_set(transport->progress, &transport->silent_timer,
                            wfi_now(transport->progress->clock) + WFI_SILENT_NS); /* reserved */
}

void wfi_silent_excuse(wfi_transport *transport, uint64_t attempts)
{
    transport->silent -= attempts < transport->silent ? attempts : transport->silent;
}

void wfi_silent_due(wfi_timer *timer)
{
    wfi_transport *transport = wfi_container_of(timer, wfi_transport, silent_timer);
    uint64_t count = transport->silent;
    transport->silent = 0;
    if (!count)
        return;
    transport->stats.unauthenticated_refused += count;
    wfi_log_net(transport, WEFT_LOG_INFO,
                "%llu connections to the fabric's port were closed before they sent a request: of slow, ended or other "
                "users' workers, or of processes that are not of the job",
                (unsigned long long)count);
}
