/* SPDX-License-Identifier: Apache-2.0 */
/*
 * greeting.c - the messages of the handshake, with their descriptors, on a unix socket.
 *
 *   dialler: HELLO (segment, its doorbell)   acceptor: ANSWER (its doorbell)   dialler: READY
 *
 * Each is one packet (SOCK_SEQPACKET). ANSWER and READY say whether their sender can read the other's memory. An
 * acceptor that closes the socket instead refuses. Afterwards either side may send PASS, with one descriptor (pass.c).
 */
#include "host/host.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAGIC 0x77686f32u /* "who2"; the last character is the version */

typedef union control {
    struct cmsghdr head; /* for the alignment */
    uint8_t bytes[CMSG_SPACE(sizeof(int) * WFI_HOST_FDS_MAX)];
} control;

int wfi_host_greeting_send(int fd, const wfi_host_greeting *greeting, const int *fds, size_t fd_count)
{
    wfi_host_greeting copy = *greeting;
    copy.magic = MAGIC;
    struct iovec iov = {.iov_base = &copy, .iov_len = sizeof(copy)};
    control space = {.bytes = {0}};
    struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd_count) {
        message.msg_control = &space;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
        struct cmsghdr *head = CMSG_FIRSTHDR(&message);
        head->cmsg_level = SOL_SOCKET;
        head->cmsg_type = SCM_RIGHTS;
        head->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
        memcpy(CMSG_DATA(head), fds, sizeof(int) * fd_count);
    }
    ssize_t sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    return sent == (ssize_t)sizeof(copy) ? 0 : sent < 0 ? errno : EPROTO;
}

static size_t take_descriptors(struct msghdr *message, int fds[WFI_HOST_FDS_MAX])
{
    size_t count = 0;
    for (struct cmsghdr *head = CMSG_FIRSTHDR(message); head; head = CMSG_NXTHDR(message, head)) {
        if (head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS)
            continue;
        size_t here = (head->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < here; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(head) + i * sizeof(int), sizeof(fd));
            if (count < WFI_HOST_FDS_MAX)
                fds[count++] = fd;
            else
                close(fd);
        }
    }
    return count;
}

int wfi_host_greeting_receive(int fd, wfi_host_greeting *out, int fds[WFI_HOST_FDS_MAX], size_t *fd_count)
{
    struct iovec iov = {.iov_base = out, .iov_len = sizeof(*out)};
    control space = {.bytes = {0}};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = &space, .msg_controllen = sizeof(space.bytes)};
    *fd_count = 0;
    ssize_t got = recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? EAGAIN : EPIPE;
    *fd_count = take_descriptors(&message, fds);
    if (got == 0 && *fd_count == 0)
        return EPIPE;
    bool is_one = got == (ssize_t)sizeof(*out) && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
                  out->magic == MAGIC && out->data_size <= sizeof(out->data) && out->slot < WFI_HOST_LANES_MAX;
    return is_one ? 0 : EPROTO;
}

bool wfi_host_is_ours(int fd, struct ucred *out)
{
    socklen_t size = sizeof(*out);
    return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, out, &size) == 0 && out->uid == geteuid();
}

void wfi_host_meet(wfi_host_peer *peer, const wfi_host_greeting *greeting)
{
    peer->slot = greeting->slot;
    peer->table = greeting->table;
    peer->token = greeting->token;
}
