/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doorbell.c - how a worker is told that one of its lanes has something to do.
 *
 * NO WAKE IS LOST. A peer sets the lane's bit, then reads `armed`. The owner sets `armed`, then reads the bits, then
 * sleeps. Both are sequentially consistent, so at least one of the two sees the other's value.
 *
 * A peer rings the bell first, and disarms the doorbell afterwards. So a peer that is killed or stopped in between
 * leaves an armed doorbell, and the others ring too. `armed` has a generation, so that a peer that disarms late does
 * not disarm a later sleep. The owner never disarms: another of its threads may sleep on the bell, from which the
 * progress token was taken (progress/token.c).
 *
 * NO RING BLOCKS. The bell is a datagram socket that only its owner has, and each peer rings it through a socket of its
 * own. Each send and receive says that it must not block. A descriptor that both had would not do: O_NONBLOCK belongs
 * to the open file, so a peer could clear it at any time. A send that fails with EAGAIN has found datagrams in the
 * bell, so the owner wakes as well.
 */
#include "host/host.h"
#include "mem/shared.h"

#include <errno.h>
#include <sodium.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define DRAIN_MAX 64 /* rings taken from the bell at once, at most; if there are more, the owner does not sleep */

#ifndef SO_PASSRIGHTS
#define SO_PASSRIGHTS 83 /* since Linux 6.16 */
#endif

/* Makes a datagram socket. *name is the address of the bell. Returns -1 if that fails. */
static int make_socket(const uint8_t bell[WFI_HOST_NAME_BYTES], struct sockaddr_un *name, socklen_t *size)
{
    *size = wfi_host_socket_name(bell, name);
    return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

/* Returns 0 or an errno value. Anybody may send to a bell. The kernel refuses descriptors that are sent to it, if it
 * can: closing them could take time. */
static int open_bell(wfi_host *host)
{
    struct sockaddr_un name;
    socklen_t size;
    const int no = 0;
    randombytes_buf(host->bell, sizeof(host->bell));
    host->bell_fd = make_socket(host->bell, &name, &size);
    if (host->bell_fd < 0 || bind(host->bell_fd, (struct sockaddr *)&name, size) != 0)
        return errno;
    (void)setsockopt(host->bell_fd, SOL_SOCKET, SO_PASSRIGHTS, &no, sizeof(no));
    host->doorbell.fd = make_socket(host->bell, &name, &size);
    return host->doorbell.fd < 0 || connect(host->doorbell.fd, (struct sockaddr *)&name, size) != 0 ? errno : 0;
}

int wfi_host_doorbell_open(wfi_host *host)
{
    void *page;
    int errnum = wfi_shm_make("weft-doorbell", sizeof(wfi_host_doorbell_page), &host->doorbell_page_fd, &page);
    if (errnum)
        return errnum;
    host->doorbell.page = page;
    return open_bell(host);
}

int wfi_host_doorbell_take(int page_fd, const uint8_t bell[WFI_HOST_NAME_BYTES], wfi_host_doorbell *out)
{
    struct sockaddr_un name;
    socklen_t size;
    void *page;
    int errnum = wfi_shm_map(page_fd, sizeof(wfi_host_doorbell_page), &page);
    if (errnum)
        return errnum;
    wfi_host_doorbell doorbell = {.page = page, .fd = make_socket(bell, &name, &size)};
    if (doorbell.fd < 0 || connect(doorbell.fd, (struct sockaddr *)&name, size) != 0) {
        errnum = errno;
        wfi_host_doorbell_close(&doorbell);
        return errnum;
    }
    *out = doorbell;
    return 0;
}

void wfi_host_doorbell_close(wfi_host_doorbell *doorbell)
{
    if (!doorbell->page)
        return;
    munmap(doorbell->page, sizeof(*doorbell->page));
    if (doorbell->fd >= 0)
        close(doorbell->fd);
    *doorbell = (wfi_host_doorbell){.fd = -1};
}

void wfi_host_doorbell_wake(const wfi_host_doorbell *doorbell)
{
    uint32_t armed = atomic_load(&doorbell->page->armed);
    if (!(armed & 1))
        return;
    /* If kernel memory is out, the doorbell stays armed, and the next signal rings again. */
    if (send(doorbell->fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN)
        return;
    (void)atomic_compare_exchange_strong(&doorbell->page->armed, &armed, armed & ~1u);
}

void wfi_host_doorbell_signal(const wfi_host_doorbell *doorbell, uint32_t slot)
{
    atomic_fetch_or(&doorbell->page->ready[slot / 64], UINT64_C(1) << (slot % 64));
    wfi_host_doorbell_wake(doorbell);
}

void wfi_host_doorbell_drain(wfi_host *host)
{
    char byte;
    for (int i = 0; i < DRAIN_MAX && recv(host->bell_fd, &byte, 1, MSG_DONTWAIT) >= 0; i++) {}
}
