/* SPDX-License-Identifier: Apache-2.0 */
/* pass.c - what workers of one machine can do besides messages: pass descriptors, and wake each other. */
#include "net/channel/channel.h"

/* The connection over which the peer can be woken; NULL: none. */
static wfi_conn *waking(const wfi_peer *peer)
{
    wfi_assert_held(&peer->transport->progress->lock);
    wfi_conn *conn = wfi_channel_up(peer->channels[WFI_CONTROL]);
    return conn && conn->lane && conn->fabric->ops->wake ? conn : NULL;
}

bool wfi_peer_can_wake(const wfi_peer *peer)
{
    return waking(peer) != NULL;
}

bool wfi_peer_wake(wfi_peer *peer)
{
    wfi_conn *conn = waking(peer);
    if (conn)
        conn->fabric->ops->wake(conn->lane);
    return conn != NULL;
}

weft_status wfi_peer_pass(wfi_peer *peer, int fd, const void *data, size_t size)
{
    wfi_conn *conn = waking(peer);
    return conn ? conn->fabric->ops->pass(conn->lane, fd, data, size) : WEFT_ERR_UNREACHABLE;
}

void wfi_peer_passed(wfi_peer *peer, int fd, const uint8_t *data, size_t size)
{
    WFI_FOR_CLIENTS (client, peer->transport, passed)
        client->upcalls->passed(client->arg, peer, fd, data, size);
}
