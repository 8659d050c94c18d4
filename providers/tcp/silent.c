/* SPDX-License-Identifier: Apache-2.0 */
/*
 * silent.c - closes connections to the listening port that never send a request.
 *
 * libfabric's tcp keeps an accepted socket until it has read a request from it: a silent peer would use a descriptor
 * forever. So, some time after events were read, the descriptors are searched for sockets of the listening address
 * whose other end belongs neither to a lane nor to a pending request. Those that the previous search also found are
 * shut down; libfabric then reads their end and closes them.
 *
 * Only the thread that reads events runs this, and no other thread closes such sockets. So a descriptor that was
 * found to be a silent connection still is one when it is shut down.
 */
#include "tcp/tcp.h"

#include "base/clock.h"

#include <string.h>

#define LATE_NS UINT64_C(200000000)
#define EXHAUSTED_MS 20 /* between two attempts to accept while descriptors have run out */
#define LATE_MAX 4      /* late searches in a row that begin anew */
#define LOOK_MS 1000    /* between two searches; a peer must send its request within one to two such intervals */

typedef struct look {
    wfofi_fabric *fabric;
    bool all; /* also shuts down connections that the previous search did not find */
    uint64_t seen[WFI_TCP_SILENT_MAX];
    size_t count, ended;
} look;

static bool was_there(const wfofi_fabric *fabric, uint64_t hash)
{
    for (size_t i = 0; i < wfi_tcp_of(fabric)->silent_count; i++) {
        if (wfi_tcp_of(fabric)->silent[i] == hash)
            return true;
    }
    return false;
}

static bool look_at(int fd, const wfofi_sockaddr *peer, void *arg)
{
    look *now = arg;
    if (wfi_tcp_is_known(now->fabric, peer) || wfi_tcp_is_ended(fd))
        return false;
    uint64_t hash = wfofi_address_hash(peer);
    if (now->all || was_there(now->fabric, hash)) {
        shutdown(fd, SHUT_RDWR);
        now->ended++;
    } else {
        now->seen[now->count++] = hash;
    }
    return now->count == WFI_TCP_SILENT_MAX;
}

static size_t look_now(wfofi_fabric *fabric, bool all)
{
    look now = {.fabric = fabric, .all = all};
    wfi_mutex_lock(&fabric->events_lock);
    wfi_tcp_each_caller(&fabric->local, look_at, &now);
    wfi_mutex_unlock(&fabric->events_lock);
    memcpy(wfi_tcp_of(fabric)->silent, now.seen, now.count * sizeof now.seen[0]);
    wfi_tcp_of(fabric)->silent_count = now.count;
    wfi_tcp_of(fabric)->silent_suspected = now.count > 0 || now.ended > 0;
    wfi_tcp_of(fabric)->silent_due_ns = wfi_deadline(&wfi_clock_real, LOOK_MS);
    return now.ended;
}

/*
 * A late search discards what the previous one found: this process had no CPU time, and perhaps the peers had none
 * either. At most LATE_MAX searches in a row do so, because a program without threads may poll rarely.
 */
static void begin_anew_if_late(wfofi_fabric *fabric, uint64_t late_ns)
{
    bool is_late = late_ns > LATE_NS && wfi_tcp_of(fabric)->silent_late < LATE_MAX;
    wfi_tcp_of(fabric)->silent_late = is_late ? wfi_tcp_of(fabric)->silent_late + 1 : 0;
    if (is_late)
        wfi_tcp_of(fabric)->silent_count = 0;
}

static void look_if_due(wfofi_fabric *fabric)
{
    uint64_t now = wfi_now(&wfi_clock_real);
    wfi_tcp *tcp = wfi_tcp_of(fabric);
    if (!tcp->silent_suspected) { /* events were read, perhaps of a new connection */
        tcp->silent_suspected = true;
        tcp->silent_due_ns = now + LOOK_MS * UINT64_C(1000000);
        return;
    }
    if (now < tcp->silent_due_ns)
        return;
    begin_anew_if_late(fabric, now - wfi_tcp_of(fabric)->silent_due_ns);
    wfi_tcp_of(fabric)->silent_ended += look_now(fabric, false);
    if (!wfi_tcp_lost_close(fabric, false))
        wfi_tcp_of(fabric)->silent_suspected = true;
}

size_t wfi_tcp_events_after(wfofi_fabric *fabric, wfi_event *out, size_t room)
{
    wfi_tcp *tcp = wfi_tcp_of(fabric);
    look_if_due(fabric);
    if (!tcp->silent_ended || room == 0)
        return 0;
    *out = (wfi_event){.kind = WFI_EVENT_SILENT, .count = tcp->silent_ended};
    tcp->silent_ended = 0;
    return 1;
}

static void make_earlier(uint64_t *due_ns, uint64_t time_ns)
{
    *due_ns = time_ns < *due_ns ? time_ns : *due_ns;
}

bool wfi_tcp_events_arm(wfofi_fabric *fabric, uint64_t *due_ns)
{
    const wfi_tcp *tcp = wfi_tcp_of(fabric);
    if (tcp->exhausted)
        make_earlier(due_ns, wfi_deadline(&wfi_clock_real, EXHAUSTED_MS));
    if (tcp->silent_suspected)
        make_earlier(due_ns, tcp->silent_due_ns);
    return !tcp->silent_ended;
}

/* While descriptors have run out, a pending connection keeps the queue's descriptor readable: the thread would not
 * sleep. */
bool wfi_tcp_events_watch(const wfofi_fabric *fabric)
{
    return !wfi_tcp_of(fabric)->exhausted;
}

size_t wfi_tcp_silent_hang_up(wfofi_fabric *fabric)
{
    return look_now(fabric, true);
}
