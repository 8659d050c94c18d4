/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp_wakeup_test.c - an event whose wake-up is lost is read, not slept over.
 *
 * libfabric 2.1's fi_trywait looks whether the event queue is empty, lets go of its lock, and takes the wake-up
 * back: an event that another thread writes in between shows nowhere. Here a stand-in for fi_trywait writes one
 * there.
 */
#include "ofi/objects.h"
#include "base/clock.h"
#include "ofi/ofi_node.h"

#include <poll.h>
#include <unistd.h>

#define DESCRIPTORS 256

static struct {
    wfofi_fabric *fabric;
    struct fid_ep *ep;
    int (*trywait)(struct fid_fabric *fabric, struct fid **fids, int count);
    bool written, armed;
} race;

static void look_at_all(struct pollfd fds[DESCRIPTORS])
{
    for (int i = 0; i < DESCRIPTORS; i++)
        fds[i] = (struct pollfd){.fd = i, .events = POLLIN};
    assert_true(poll(fds, DESCRIPTORS, 0) >= 0);
}

/* Takes the wake-up back, as libfabric does: from the one descriptor that has become readable and can be read. */
static void lose_wakeup(const struct pollfd before[DESCRIPTORS])
{
    struct pollfd now[DESCRIPTORS];
    uint64_t word;
    int taken = 0;
    look_at_all(now);
    for (int i = 0; i < DESCRIPTORS; i++) {
        if ((now[i].revents & POLLIN) && !(before[i].revents & POLLIN))
            taken += read(i, &word, sizeof(word)) > 0; /* an epoll descriptor cannot be read */
    }
    assert_int_equal(taken, 1);
    look_at_all(now);
    assert_int_equal(now[race.fabric->eq_fd].revents, 0);
}

static int trywait_in_a_race(struct fid_fabric *fabric, struct fid **fids, int count)
{
    struct pollfd before[DESCRIPTORS];
    struct fi_eq_cm_entry entry = {.fid = &race.ep->fid};
    int ret = race.trywait(fabric, fids, count);
    if (race.written || ret != FI_SUCCESS)
        return ret;
    look_at_all(before);
    assert_int_equal(fi_eq_write(race.fabric->eq, FI_SHUTDOWN, &entry, sizeof(entry), 0), sizeof(entry));
    lose_wakeup(before);
    race.written = true;
    return ret;
}

static void an_event_without_its_wakeup_is_read(void **state)
{
    static ofi_node a, b;
    ofi_link link;
    wfi_event event;
    ofi_node_open(&a);
    ofi_node_open(&b);
    ofi_link *other = ofi_join(&a, &b, &link);
    race.fabric = wfofi_of(b.fabric);
    race.ep = other->lane->ep;
    struct fi_ops_fabric ops = *race.fabric->fabric->ops, *real = race.fabric->fabric->ops;
    race.trywait = real->trywait;
    ops.trywait = trywait_in_a_race;
    race.fabric->fabric->ops = &ops;
    uint64_t due_ns = WFI_NEVER;
    do { /* until it would sleep, or tells of the event */
        race.armed = ofi_ops()->events_arm(b.fabric, &due_ns);
    } while (!race.armed && !race.written);
    race.fabric->fabric->ops = real;
    assert_true(race.written);
    assert_false(race.armed);
    assert_int_equal(wfi_fabric_tcp.poll_events(b.fabric, &event, 1), 1);
    assert_int_equal(event.kind, WFI_EVENT_CLOSED);
    assert_ptr_equal(event.lane_user, other);
    ofi_hang_up(&link);
    ofi_node_close(&a);
    ofi_node_close(&b);
}

UNIT_MAIN(an_event_without_its_wakeup_is_read)
