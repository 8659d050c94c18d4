/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connect.c - handles the frames that connect and end lanes, and gives every other frame to its lane.
 *
 * The dialler chooses the lane's id, and sends HELLO with its own address. The acceptor answers with ANSWER or BYE. The
 * dialler's READY tells the acceptor that the lane is up. If the dialler dies after HELLO, the acceptor's lane never
 * comes up. The owner closes it after the usual timeout of an attempt.
 */
#include "base/alloc.h"
#include "base/clock.h"
#include "ofi_rdm/rdm.h"

#include <stdlib.h>
#include <string.h>

#define MALFORMED "the peer sent frames that make no sense"
#define CLOSED_THERE "its endpoint is closed, or the process has ended"

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static uint8_t reads_flag(const wfi_lane *lane)
{
    return lane->has_no_reads ? WFRDM_NO_READS : 0;
}

static void send_hello(wfi_lane *lane, const void *data, size_t size)
{
    const wfrdm *rdm = lane->rdm;
    wfrdm_hello hello = {.address_size = rdm->address_size, .data_size = size};
    uint8_t content[sizeof(hello)];
    memcpy(&hello.instance, lane->peer->address + 8, sizeof(hello.instance));
    memcpy(hello.address, rdm->address, rdm->address_size);
    if (size)
        memcpy(hello.data, data, size);
    lane->has_greeted = true;
    lane->dialled_ns = wfi_now(&wfi_clock_real);
    if (lane->dialled_ns + WFRDM_DIAL_NS < lane->rdm->dials_due_ns)
        lane->rdm->dials_due_ns = lane->dialled_ns + WFRDM_DIAL_NS;
    wfrdm_lane_send_or_break(lane, WFRDM_HELLO, reads_flag(lane), content,
                             wfrdm_hello_write(&hello, content, sizeof(content)));
}

static void answer(wfi_lane *lane, const void *data, size_t size)
{
    wfi_connect_request *request = lane->request;
    bool is_gone = request->is_gone;
    lane->request = NULL;
    request->is_gone = true; /* nothing has to be refused */
    wfrdm_request_free(request);
    lane->has_greeted = !is_gone;
    if (is_gone)
        wfrdm_lane_break(lane, WEFT_ERR_FABRIC, NULL);
    else
        wfrdm_lane_send_or_break(lane, WFRDM_ANSWER, reads_flag(lane), data, size);
}

weft_status wfrdm_connect(wfi_lane *lane, const void *data, size_t size)
{
    wfrdm *rdm = lane->rdm;
    if (size > WFI_CONNECT_DATA_MAX)
        return WEFT_ERR_INVALID;
    wfi_mutex_lock(&rdm->lock);
    lane->state = WFRDM_CONNECTING;
    const char *reason = lane->peer->is_dead ? CLOSED_THERE : wfrdm_stalled_text(rdm);
    if (reason)
        wfrdm_lane_break(lane, lane->is_dialler ? WEFT_ERR_UNREACHABLE : WEFT_ERR_FABRIC, reason);
    else if (lane->is_dialler)
        send_hello(lane, data, size);
    else
        answer(lane, data, size);
    wfi_mutex_unlock(&rdm->lock);
    return WEFT_OK;
}

void wfrdm_dials_check(wfrdm *rdm, uint64_t now)
{
    wfi_assert_held(&rdm->lock);
    if (now < rdm->dials_due_ns)
        return;
    rdm->dials_due_ns = UINT64_MAX;
    WFI_FOR_LIST (wfi_lane, lane, &rdm->lanes, link) {
        uint64_t due = lane->dialled_ns + WFRDM_DIAL_NS;
        if (!lane->is_dialler || lane->state != WFRDM_CONNECTING)
            continue;
        if (due <= now)
            wfrdm_lane_break(lane, WEFT_ERR_UNREACHABLE, "no answer");
        else if (due < rdm->dials_due_ns)
            rdm->dials_due_ns = due;
    }
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

void wfrdm_reject(wfi_fabric *base, wfi_connect_request *request)
{
    wfrdm *rdm = wfrdm_of(base);
    wfi_mutex_lock(&rdm->lock);
    wfrdm_request_free(request);
    wfi_mutex_unlock(&rdm->lock);
}

static wfi_connect_request *find_request(wfrdm *rdm, uint64_t id)
{
    WFI_FOR_LIST (wfi_connect_request, request, &rdm->requests, link) {
        if (request->id == id)
            return request;
    }
    return NULL;
}

/* Makes a request. False: it is refused. */
static bool admit(wfrdm *rdm, const wfrdm_head *head, const wfrdm_hello *hello, wfrdm_peer *peer)
{
    uint64_t id = head->to & ~UINT64_C(1);
    bool is_for_this = memcmp(&hello->instance, &rdm->instance, sizeof(rdm->instance)) == 0;
    if (!is_for_this || rdm->is_closing || rdm->request_count >= WFRDM_REQUESTS_MAX)
        return false;
    wfi_connect_request *request = wfi_calloc(1, sizeof(*request));
    if (!request)
        return false;
    *request = (wfi_connect_request){.rdm = rdm,
                                     .peer = peer,
                                     .id = id,
                                     .has_no_reads = head->flags & WFRDM_NO_READS,
                                     .data_size = hello->data_size};
    memcpy(request->data, hello->data, hello->data_size);
    wfi_list_init(&request->asks.link);
    peer->users++;
    rdm->request_count++;
    wfi_list_push_back(&rdm->requests, &request->link);
    wfrdm_notify(rdm, &request->asks, WFI_EVENT_REQUEST);
    return true;
}

static void on_hello(wfrdm *rdm, const wfrdm_head *head, const uint8_t *content)
{
    wfrdm_hello hello;
    wfrdm_peer *peer;
    uint64_t id = head->to & ~UINT64_C(1);
    bool is_new = (head->to & 1) && !wfi_map_get(&rdm->by_id, id | 1) && !find_request(rdm, id);
    if (!is_new || head->sequence != 0 || !wfrdm_hello_read(content, head->size, &hello) ||
        wfrdm_peer_use(rdm, hello.address, hello.address_size, &peer) != WEFT_OK)
        return;
    if (!admit(rdm, head, &hello, peer))
        wfrdm_send_bye(rdm, peer, id);
    wfrdm_peer_leave(rdm, peer);
}

/* ---- Frames that came -------------------------------------------------------------------------------------------- */

static void on_bye(wfrdm *rdm, const wfrdm_head *head, wfi_lane *lane)
{
    if (lane && lane->state >= WFRDM_CONNECTING) {
        bool was_refused = lane->is_dialler && lane->state == WFRDM_CONNECTING;
        lane->has_greeted = false;
        wfrdm_lane_break(lane, was_refused ? WEFT_ERR_UNREACHABLE : WEFT_ERR_FABRIC, NULL);
        return;
    }
    wfi_connect_request *request = head->to & 1 ? find_request(rdm, head->to & ~UINT64_C(1)) : NULL;
    if (!request)
        return;
    request->is_gone = true;
    if (!wfi_list_empty(&request->asks.link)) /* its owner has not seen it */
        wfrdm_request_free(request);
}

static void is_up(wfi_lane *lane, const wfrdm_head *head, const uint8_t *content)
{
    lane->state = WFRDM_CONNECTED;
    lane->has_no_reads |= (head->flags & WFRDM_NO_READS) != 0;
    lane->data_size = head->size;
    memcpy(lane->data, content, head->size);
    wfrdm_notify(lane->rdm, &lane->up, WFI_EVENT_CONNECTED);
}

/* A frame of a lane that is connecting. False: it is malformed. */
static bool take_greeting(wfi_lane *lane, const wfrdm_head *head, const uint8_t *content)
{
    if (lane->is_dialler && head->kind == WFRDM_ANSWER && head->size <= WFI_CONNECT_DATA_MAX) {
        is_up(lane, head, content);
        wfrdm_lane_send_or_break(lane, WFRDM_READY, 0, NULL, 0);
        return true;
    }
    if (lane->is_dialler || head->kind != WFRDM_READY || head->size)
        return false;
    is_up(lane, head, content);
    return true;
}

/* The peer has consumed DATA frames. False: more than were sent. */
static bool take_credit(wfi_lane *lane, uint32_t consumed)
{
    if (consumed - lane->data_consumed_by_peer > lane->data_out - lane->data_consumed_by_peer)
        return false;
    lane->data_consumed_by_peer = consumed;
    return true;
}

/* Handles the next frame of a lane. False: it is malformed. */
static bool dispatch(wfi_lane *lane, const wfrdm_head *head, const uint8_t *content)
{
    if (!take_credit(lane, head->consumed))
        return false;
    if (lane->state == WFRDM_CONNECTING)
        return take_greeting(lane, head, content);
    switch (head->kind) {
    case WFRDM_DATA:
        wfrdm_on_data(lane, head, content);
        return true;
    case WFRDM_READ:
        wfrdm_on_read(lane, content, head->size);
        return true;
    case WFRDM_BYTES:
        wfrdm_on_bytes(lane, head, content);
        return true;
    default:
        return head->kind == WFRDM_CREDIT && head->size == 0;
    }
}

/* A frame for a lane that is connecting or connected. Breaks it if the frame is malformed, or not the next one. */
static void on_lane_frame(wfi_lane *lane, const wfrdm_head *head, const uint8_t *content)
{
    if (head->sequence != lane->frames_in) {
        wfrdm_lane_break(lane, WEFT_ERR_FABRIC, "frames were lost, repeated or reordered");
        return;
    }
    lane->frames_in++;
    if (!dispatch(lane, head, content)) {
        wfrdm_log(lane->rdm, WEFT_LOG_WARN, "%s: %s: its lane is closed", lane->rdm->base.ops->name, MALFORMED);
        wfrdm_lane_break(lane, WEFT_ERR_FABRIC, MALFORMED);
        return;
    }
    if (lane->state == WFRDM_CONNECTED && wfi_list_empty(&lane->work) && wfrdm_lane_has_work(lane))
        wfi_list_push_back(&lane->rdm->work, &lane->work);
}

void wfrdm_on_frame(wfrdm *rdm, const uint8_t *bytes, size_t size)
{
    wfrdm_head head;
    wfi_assert_held(&rdm->lock);
    if (!wfrdm_head_read(bytes, size, &head))
        return;
    const uint8_t *content = bytes + WFRDM_HEAD_BYTES;
    if (head.kind == WFRDM_HELLO) {
        on_hello(rdm, &head, content);
        return;
    }
    wfi_lane *lane = wfi_map_get(&rdm->by_id, head.to);
    if (head.kind == WFRDM_BYE && !wfrdm_stalled_answered(rdm, &head))
        on_bye(rdm, &head, lane);
    else if (head.kind != WFRDM_BYE && lane && (lane->state == WFRDM_CONNECTING || lane->state == WFRDM_CONNECTED))
        on_lane_frame(lane, &head, content);
}
