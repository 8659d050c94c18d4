/* SPDX-License-Identifier: Apache-2.0 */
/* connection.c - see connection.h. */
#include "job/store/connection.h"

#include "base/alloc.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OUTPUT_SPARE (1u << 20) /* output buffered beyond one table before a slow reader is disconnected */
#define FLUSH_MS 2000

weft_status wfi_store_peer_create(wfi_store_server *server, int fd, uint64_t deadline_ns)
{
    wfi_store_peer *peer = wfi_calloc(1, sizeof(*peer));
    if (!peer)
        return WEFT_ERR_MEMORY;
    *peer = (wfi_store_peer){
        .server = server, .id = ++server->last_id, .fd = fd, .is_unauthenticated = true, .loss = WFI_STORE_CUT};
    peer->deadline_ns = deadline_ns;
    weft_status status = wfi_map_put(&server->by_id, peer->id, peer);
    if (status)
        goto free_peer;
    status = wfi_store_opened(server->store, peer->id);
    if (status)
        goto take_id;
    wfi_list_push_back(&server->peers, &peer->link);
    server->peer_count++;
    server->unauthenticated++;
    return WEFT_OK;

take_id:
    wfi_map_take(&server->by_id, peer->id);
free_peer:
    free(peer);
    return status;
}

void wfi_store_peer_destroy(wfi_store_peer *peer, uint64_t now_ns)
{
    wfi_store_server *server = peer->server;
    wfi_map_take(&server->by_id, peer->id);
    wfi_list_remove(&peer->link);
    server->peer_count--;
    server->unauthenticated -= peer->is_unauthenticated;
    if (peer->state == WFI_STORE_PEER_OPEN && server->store)
        wfi_store_closed(server->store, peer->id, peer->loss, now_ns);
    close(peer->fd);
    free(peer->output);
    free(peer);
}

short wfi_store_peer_events(const wfi_store_peer *peer)
{
    short events = peer->output_at < peer->output_size ? POLLOUT : 0;
    if (peer->state != WFI_STORE_PEER_KEPT)
        events |= POLLIN;
    if (peer->is_unauthenticated)
        events |= POLLRDHUP;
    return events;
}

/* ---- Output ---------------------------------------------------------------------------------------------------- */

/* Writes what the kernel takes and returns its size. Marks the peer as broken if the connection has ended. */
static size_t write_to_peer(wfi_store_peer *peer, const uint8_t *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t wrote = send(peer->fd, data + done, size - done, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (wrote >= 0)
            done += (size_t)wrote;
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            break;
        else if (errno != EINTR) {
            /* Not broken while it is open: its last messages, such as a goodbye, may still be unread. */
            peer->is_broken = peer->state != WFI_STORE_PEER_OPEN;
            return size;
        }
    }
    return done;
}

void wfi_store_peer_flush(wfi_store_peer *peer)
{
    if (peer->output_at < peer->output_size)
        peer->output_at += write_to_peer(peer, peer->output + peer->output_at, peer->output_size - peer->output_at);
    if (peer->output_at < peer->output_size)
        return;
    free(peer->output); /* a backlog is rare, and the table of a large job is large */
    peer->output = NULL;
    peer->output_at = peer->output_size = peer->output_capacity = 0;
    if (peer->state == WFI_STORE_PEER_FLUSHING && !peer->is_shut) {
        peer->is_shut = true;
        (void)shutdown(peer->fd, SHUT_WR);
    }
}

/* Buffers output. A peer that reads too slowly is disconnected: the store sees a broken connection. */
static void append_output(wfi_store_peer *peer, const uint8_t *data, size_t size)
{
    size_t limit = OUTPUT_SPARE + (size_t)peer->server->world_size * WFI_STORE_ENTRY_MAX;
    size_t needed = peer->output_size + size;
    if (needed > limit) {
        peer->is_broken = true;
        return;
    }
    if (needed > peer->output_capacity) {
        size_t capacity = needed < 4096 ? 4096 : needed + needed / 2;
        uint8_t *output = realloc(peer->output, capacity);
        if (!output) {
            peer->is_broken = true;
            return;
        }
        peer->output = output;
        peer->output_capacity = capacity;
    }
    memcpy(peer->output + peer->output_size, data, size);
    peer->output_size = needed;
}

static void server_output_send(void *arg, uint64_t id, const uint8_t *data, size_t size)
{
    wfi_store_server *server = arg;
    wfi_store_peer *peer = wfi_map_get(&server->by_id, id);
    if (!peer || peer->is_broken || size == 0)
        return;
    size_t done = peer->output_size == 0 ? write_to_peer(peer, data, size) : 0;
    if (done < size && !peer->is_broken)
        append_output(peer, data + done, size - done);
}

static void server_output_close(void *arg, uint64_t id, int64_t keep_ms)
{
    wfi_store_server *server = arg;
    wfi_store_peer *peer = wfi_map_get(&server->by_id, id);
    if (!peer)
        return;
    /*
     * A refused peer still counts as unauthenticated, so that the number of such connections stays bounded: it may
     * never read or close.
     */
    peer->state = keep_ms > 0 ? WFI_STORE_PEER_KEPT : WFI_STORE_PEER_FLUSHING;
    peer->deadline_ns = wfi_deadline(&wfi_clock_real, keep_ms > 0 ? keep_ms : FLUSH_MS);
    if (peer->output_size == 0)
        wfi_store_peer_flush(peer);
}

static void server_output_random(void *arg, void *out, size_t size)
{
    (void)arg;
    randombytes_buf(out, size);
}

wfi_store_outputs wfi_store_peer_outputs(wfi_store_server *server)
{
    return (wfi_store_outputs){
        .send = server_output_send, .close = server_output_close, .random = server_output_random, .arg = server};
}

/* ---- Input ----------------------------------------------------------------------------------------------------- */

/* Passes whole frames to the store, which may close the connection in between. */
static void handle_frames(wfi_store_peer *peer, uint64_t now_ns)
{
    size_t at = 0, size = 0;
    while (peer->state == WFI_STORE_PEER_OPEN && !peer->is_broken && at < peer->input_size) {
        size_t have = peer->input_size - at;
        if (wfi_store_frame_size(peer->input + at, have, sizeof(peer->input), &size)) {
            if (peer->is_unauthenticated)
                wfi_store_count_refusal(peer->server->store, "it sent malformed data");
            peer->is_broken = true; /* the member, if it was one, can resume on another connection */
            return;
        }
        if (size == 0 || size > have)
            break;
        if (peer->has_gone && wfi_store_frame_type(peer->input + at) != WFI_STORE_REFUSE)
            break; /* nobody waits for an answer; a REFUSE needs none, and says why the peer has gone */
        if (peer->is_unauthenticated) /* not before: hundreds of silent connections must cost little memory */
            wfi_tune_socket(peer->fd);
        wfi_store_received(peer->server->store, peer->id, now_ns, peer->input + at, size);
        at += size;
    }
    memmove(peer->input, peer->input + at, peer->input_size - at);
    peer->input_size -= at;
}

/* One read per turn of the loop: a peer that sends without pause does not delay the others. */
static void read_some(wfi_store_peer *peer, uint64_t now_ns)
{
    size_t room = sizeof(peer->input) - peer->input_size;
    ssize_t got = recv(peer->fd, peer->input + peer->input_size, room, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return;
    if (got <= 0) {
        bool reset = got < 0 && (errno == ECONNRESET || errno == EPIPE);
        peer->loss = got == 0 ? WFI_STORE_ENDED : reset ? WFI_STORE_RESET : WFI_STORE_CUT;
        peer->is_broken = true;
        return;
    }
    if (peer->state != WFI_STORE_PEER_OPEN)
        return;
    peer->input_size += (size_t)got;
    handle_frames(peer, now_ns);
    if (peer->is_unauthenticated && wfi_store_has_joined(peer->server->store, peer->id)) {
        peer->is_unauthenticated = false;
        peer->server->unauthenticated--;
        peer->deadline_ns = WFI_NEVER;
    }
}

void wfi_store_peer_serve(wfi_store_peer *peer, short ready, uint64_t now_ns)
{
    if (peer->is_broken || !ready)
        return;
    if (ready & POLLOUT)
        wfi_store_peer_flush(peer);
    if (ready & POLLRDHUP) /* it stopped waiting for an answer, and opens another connection */
        peer->has_gone = true;
    if (peer->state != WFI_STORE_PEER_KEPT && (ready & (POLLIN | POLLHUP | POLLERR)))
        read_some(peer, now_ns);
    else if (ready & (POLLHUP | POLLERR))
        peer->is_broken = true;
}
