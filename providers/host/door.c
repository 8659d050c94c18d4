/* SPDX-License-Identifier: Apache-2.0 */
/*
 * door.c - how a worker is told that one of its lanes has something to do.
 *
 * NO WAKE IS LOST. A peer sets the lane's bit, then reads `armed`. The owner sets `armed`, then reads the bits, then
 * sleeps. Both are sequentially consistent, so at least one of the two sees the other's value.
 *
 * A peer writes the eventfd first, and disarms the door afterwards. So a peer that is killed or stopped in between
 * leaves an armed door, and the others write the eventfd too. `armed` has a generation, so that a peer that disarms
 * late does not disarm a later sleep. The owner never disarms: another of its threads may sleep on the eventfd, from
 * which the progress token was taken (progress/token.c).
 */
#include "host/host.h"
#include "mem/shared.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

int wfi_host_door_open(wfi_host *host)
{
    void *page;
    int failed = wfi_shared_make("weft-door", sizeof(wfi_host_door_page), &host->door_page_fd, &page);
    if (failed)
        return failed;
    host->door.page = page;
    host->door.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return host->door.fd < 0 ? errno : 0;
}

/* A write to anything else, or to an eventfd that blocks, could hold this thread up. */
static bool is_eventfd(int fd)
{
    char path[32], name[32];
    int flags = fcntl(fd, F_GETFL);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(path, name, sizeof name - 1);
    if (size < 0 || flags < 0 || !(flags & O_NONBLOCK))
        return false;
    name[size] = '\0';
    return strcmp(name, "anon_inode:[eventfd]") == 0;
}

int wfi_host_door_take(int page_fd, int event_fd, wfi_host_door *out)
{
    void *page;
    if (!is_eventfd(event_fd))
        return EPROTO;
    int failed = wfi_shared_map(page_fd, sizeof(wfi_host_door_page), &page);
    if (failed)
        return failed;
    *out = (wfi_host_door){.page = page, .fd = event_fd};
    return 0;
}

void wfi_host_door_close(wfi_host_door *door)
{
    if (!door->page)
        return;
    munmap(door->page, sizeof *door->page);
    if (door->fd >= 0)
        close(door->fd);
    *door = (wfi_host_door){.fd = -1};
}

void wfi_host_door_wake(const wfi_host_door *door)
{
    uint32_t armed = atomic_load(&door->page->armed);
    if (!(armed & 1))
        return;
    (void)eventfd_write(door->fd, 1); /* a full one also wakes */
    (void)atomic_compare_exchange_strong(&door->page->armed, &armed, armed & ~1u);
}

void wfi_host_door_signal(const wfi_host_door *door, uint32_t slot)
{
    atomic_fetch_or(&door->page->ready[slot / 64], UINT64_C(1) << (slot % 64));
    wfi_host_door_wake(door);
}
