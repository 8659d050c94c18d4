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
#include "objects.h"

#include "base/clock.h"

#include <string.h>

#define LATE_NS UINT64_C(200000000)
#define LATE_MAX 4   /* late searches in a row that are discarded */
#define LOOK_MS 1000 /* between two searches: a peer has one to two of these to send its request */

typedef struct look {
    wfofi_fabric *fabric;
    bool all; /* also shuts down connections that the previous search did not find */
    uint64_t seen[WFOFI_SILENT_MAX];
    size_t count, ended;
} look;

static bool was_there(const wfofi_fabric *fabric, uint64_t hash)
{
    for (size_t i = 0; i < fabric->silent_count; i++) {
        if (fabric->silent[i] == hash)
            return true;
    }
    return false;
}

static bool look_at(int fd, const wfofi_sockaddr *peer, void *arg)
{
    look *now = arg;
    if (wfofi_is_known(now->fabric, peer) || wfofi_is_ended(fd))
        return false;
    uint64_t hash = wfofi_address_hash(peer);
    if (now->all || was_there(now->fabric, hash)) {
        shutdown(fd, SHUT_RDWR);
        now->ended++;
    } else {
        now->seen[now->count++] = hash;
    }
    return now->count == WFOFI_SILENT_MAX;
}

static size_t look_now(wfofi_fabric *fabric, bool all)
{
    look now = {.fabric = fabric, .all = all};
    wfi_mutex_lock(&fabric->events_lock);
    wfofi_each_caller(&fabric->local, look_at, &now);
    wfi_mutex_unlock(&fabric->events_lock);
    memcpy(fabric->silent, now.seen, now.count * sizeof now.seen[0]);
    fabric->silent_count = now.count;
    fabric->silent_suspected = now.count > 0 || now.ended > 0;
    fabric->silent_due_ns = wfi_deadline(&wfi_clock_real, LOOK_MS);
    return now.ended;
}

/*
 * A late search starts anew: this process had no CPU time, and neither may the peers. Not more than LATE_MAX times in
 * a row, because a program may poll seldom.
 */
static void begin_anew_if_late(wfofi_fabric *fabric, uint64_t late_ns)
{
    bool is_late = late_ns > LATE_NS && fabric->silent_late < LATE_MAX;
    fabric->silent_late = is_late ? fabric->silent_late + 1 : 0;
    if (is_late)
        fabric->silent_count = 0;
}

void wfofi_silent_look(wfofi_fabric *fabric)
{
    uint64_t now = wfi_now(&wfi_clock_real);
    if (!fabric->silent_suspected) { /* events were read, perhaps of a new connection */
        fabric->silent_suspected = true;
        fabric->silent_due_ns = now + LOOK_MS * UINT64_C(1000000);
        return;
    }
    if (now < fabric->silent_due_ns)
        return;
    begin_anew_if_late(fabric, now - fabric->silent_due_ns);
    fabric->silent_ended += look_now(fabric, false);
    if (!wfofi_lost_close(fabric, false))
        fabric->silent_suspected = true;
}

size_t wfofi_silent_hang_up(wfofi_fabric *fabric)
{
    return look_now(fabric, true);
}
