/* SPDX-License-Identifier: Apache-2.0 */
/* reply.c - the second half of the caller's side: receives a reply and its results, and completes the future. */
#include "rpc/client/client.h"
#include "rpc/agent/notify.h"

#include "base/error.h"
#include "rpc/client/stream.h"

/* `promised` is NULL if the call has ended: a callee may send any number of such replies. */
static void send_done(weft_agent *agent, wfi_peer *to, uint64_t id, unsigned *promised)
{
    uint8_t room[8];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof(room));
    wfi_write_u64(&writer, id);
    if (promised)
        wfi_post(agent, to, WFI_RPC_DONE, &writer, promised);
    else
        wfi_post_answer(agent, to, WFI_RPC_DONE, &writer, NULL);
}

/* The place of result tensor `index` is the caller's tensor with that number. */
static weft_tensor *landing_place(void *arg, size_t index, weft_dtype dtype, weft_shape shape)
{
    wfi_request *call = arg;
    (void)dtype;
    (void)shape; /* the decoder checks them */
    return index < call->land_count ? weft_tensor_ref(call->land[index]) : NULL;
}

static void results_ready(wfi_inbound *inbound, weft_status status)
{
    wfi_request *call = wfi_container_of(inbound, wfi_request, results);
    weft_agent *agent = call->agent;
    if (call->needs_done && wfi_peer_status(call->peer) == WEFT_OK)
        send_done(agent, call->peer, call->id, &call->notifications);
    if (call->failure) { /* aborted while the results were being received */
        wfi_call_complete(call, NULL, call->failure, false);
        return;
    }
    if (!status && call->recording) {
        status = wfi_recording_ops_get()->add_recvs(call->recording, call->peer, 0, inbound->values,
                                                    inbound->decoded.linked, inbound->decoded.linked_count);
        if (status)
            snprintf(inbound->problem, sizeof(inbound->problem), "they could not be recorded: %s",
                     weft_status_text(status));
    }
    if (!status) {
        agent->stats.bytes_received += inbound->landed_bytes;
        wfi_call_complete(call, inbound->values, NULL, true);
        return;
    }
    wfi_error_detail detail = {.code = status,
                               .remote_code = WEFT_ERR_UNKNOWN, /* it may have run */
                               .function = call->function,
                               .worker = wfi_peer_rank(call->peer)};
    weft_error *error = wfi_error_create(&detail, "the results: %s", inbound->problem);
    wfi_call_complete(call, NULL, error, !call->land_exposed);
    weft_error_unref(error);
}

/* After a failed push, or if the peer violates the protocol, writes may still be in flight. So if landing places are
 * exposed, the bulk connection is closed, although the reply says that the peer has finished. */
static void fail_by_reply(wfi_request *call, wfi_reader *reader)
{
    weft_error *read = wfi_error_read(reader), *error = read ? wfi_error_naming(read, call->function) : NULL;
    weft_error_unref(read);
    if (!error) {
        wfi_error_detail detail = {.code = WEFT_ERR_PROTOCOL,
                                   .remote_code = WEFT_ERR_UNKNOWN,
                                   .function = call->function,
                                   .worker = wfi_peer_rank(call->peer)};
        error = wfi_error_create(&detail, "malformed error in a reply");
    }
    wfi_call_complete(call, NULL, error, !call->land_exposed);
    weft_error_unref(error);
}

/* Reads the callee's part of the recording. */
static bool read_recording(wfi_request *call, wfi_reader *reader)
{
    size_t size;
    wfi_reader blob;
    const uint8_t *bytes = wfi_read_blob(reader, WFI_MESSAGE_MAX, &size);
    wfi_reader_init(&blob, bytes, size);
    return !reader->failed && call->recording && wfi_recording_ops_get()->read_reply(call->recording, &blob);
}

void wfi_call_on_reply(weft_agent *agent, wfi_peer *from, wfi_reader *reader)
{
    uint64_t id = wfi_read_u64(reader);
    uint8_t flags = wfi_read_u8(reader);
    uint32_t items = wfi_read_u32(reader);
    if (reader->failed)
        return;
    wfi_request *call = wfi_map_get(&agent->calls, id);
    if (!call || call->peer != from || call->results.state != WFI_INBOUND_NEW || call->failure) {
        /* The call has ended: tells the callee to release what it keeps for the call. */
        if (flags & WFI_REPLY_NEEDS_DONE && !(call && wfi_inbound_busy(&call->results)))
            send_done(agent, from, id, NULL);
        return;
    }
    if (call->items && !wfi_items_in_expect(call->items, items))
        return; /* a second reply */
    wfi_observe_replied(agent, &call->span);
    if (flags & WFI_REPLY_LINKED && !read_recording(call, reader)) {
        wfi_call_fail(call, WEFT_ERR_PROTOCOL, "its reply has a malformed distributed context");
        return;
    }
    if (flags & WFI_REPLY_ERROR) {
        fail_by_reply(call, reader);
        return;
    }
    call->needs_done = flags & WFI_REPLY_NEEDS_DONE;
    call->results.options = (wfi_decode_options){.place = call->land_count ? landing_place : NULL,
                                                 .place_arg = call,
                                                 .landed_count = call->land_exposed ? call->land_count : 0,
                                                 .is_answer = true};
    call->results.options.takes_linked = call->recording && flags & WFI_REPLY_LINKED;
    call->results.free_places = true; /* call->land does not change until the call has completed */
    call->results.ready = results_ready;
    call->results.call_id = call->id;
    wfi_inbound_start(&call->results, reader);
}
