/* SPDX-License-Identifier: Apache-2.0 */
/*
 * send.c - the messages between members of a group, of type WFI_RPC_GROUP. Each begins with
 *
 *   type u8, number of the group u64, incarnation of its coordinator u32
 *
 *   DATA    space u8, number u64, kind u8, dtype u8, how u8, algorithm u8, root u32, count u64, slot u32, token u32,
 *           eager u8, size u64; then the bytes, or address u64, key u64, fabric u8
 *   ACK   space u8, number u64, token u32
 *   ASK     space u8, number u64: answer BEGUN once you have begun that operation
 *   BEGUN   space u8, number u64
 *   QUERY   space u8, sends u8, number u64: how far are you in the operation of that number, which is late here?
 *           `sends`: it is one of the receiver's sends to us, else one of its recvs from us
 *   STATE   space u8, has_group u8, number u64 (the query's), called u64 (see wfi_progress_report), then of that
 *           operation, if it is under way: kind u8, dtype u8, how u8, algorithm u8, root u32, count u64; else kind is
 *           WFI_OPERATION_KINDS. A group that is over answers OVER instead
 *   OVER    complete u8 (weft_group.complete, at the sender), an error: the group is over
 *   SHARE   type u8 (wfi_share_message_type): about memory that all members share
 *   READY, GO   see opening.h
 *
 * Before there is a group (opening.h), messages begin with
 *
 *   type u8, attempt u64
 *
 *   JOIN    hash of the name u64, hash of the members u64
 *
 *   LEAVE
 *
 *   FAILED  status i32, number of ranks u32, the first WFI_FAILED_RANKS of them: i32 each
 *
 *   CREATED    number u64, incarnation u32, then of each member: rank u32, incarnation u32
 */
#include "coll/group.h"

#include "base/alloc.h"
#include "base/error.h"
#include "rpc/agent/notify.h"

#include <stdlib.h>
#include <string.h>

typedef struct group_message {
    wfi_message message;
    weft_group *group;
    int to; /* its rank */
    wfi_task release;
    uint8_t head[WFI_GROUP_HEAD];
    uint8_t bytes[];
} group_message;

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static void release_message(wfi_task *task)
{
    group_message *message = wfi_container_of(task, group_message, release);
    wfi_group_unref(message->group);
    free(message);
}

static void sent(wfi_message *sent, weft_status status)
{
    group_message *message = wfi_container_of(sent, group_message, message);
    weft_group *group = message->group;
    wfi_groups *groups = wfi_groups_of(group->agent);
    int me = wfi_agent_rank(group->agent);
    /* otherwise the peer has ended, which is reported elsewhere */
    bool starved = status == WEFT_ERR_MEMORY || status == WEFT_ERR_SYSTEM;
    if (starved)
        wfi_group_break_for(group, status, me, "rank %d: a message to rank %d: %s", me, message->to,
                            weft_status_text(status));
    if (!--groups->messages && groups->drained)
        wfi_complete_future(groups->drained, NULL, NULL);
    message->release.run = release_message;
    wfi_net_defer(group->agent->net, &message->release, WFI_DEFER_RELEASE);
}

static void begin_message(wfi_writer *writer, uint8_t *room, size_t size, const wfi_group_key *key, unsigned type)
{
    wfi_writer_init(writer, room, size);
    wfi_write_u8(writer, (uint8_t)type);
    wfi_write_u64(writer, key->number);
    wfi_write_u32(writer, key->incarnation);
}

/* `head` has at most WFI_GROUP_HEAD bytes. */
static void send_message(weft_group *group, size_t to, const wfi_writer *head, const void *bytes, size_t size)
{
    wfi_peer *peer = group->members[to].peer;
    int me = wfi_agent_rank(group->agent);
    if (!peer)
        return;
    group_message *message = malloc(sizeof(*message) + size);
    weft_status status = message ? WEFT_OK : WEFT_ERR_MEMORY;
    if (message) {
        memcpy(message->head, head->data, head->size);
        if (size)
            memcpy(message->bytes, bytes, size);
        message->message = (wfi_message){.type = WFI_RPC_GROUP,
                                         .exempt = true,
                                         .head = message->head,
                                         .head_size = head->size,
                                         .parts = {{message->bytes, size}},
                                         .part_count = size > 0,
                                         .keeps = sizeof(*message),
                                         .done = sent};
        message->group = group;
        message->to = group->members[to].rank;
        status = wfi_peer_send(peer, &message->message);
    }
    if (status) {
        free(message);
        if (!wfi_peer_status(peer)) /* otherwise the peer's end will be reported */
            wfi_group_break_for(group, status, me, "rank %d: a message to rank %d: %s", me, group->members[to].rank,
                                weft_status_text(status));
        return;
    }
    wfi_group_ref(group);
    wfi_groups_of(group->agent)->messages++;
}

static void write_signature(wfi_writer *writer, const wfi_signature *signature)
{
    wfi_write_u8(writer, signature->kind);
    wfi_write_u8(writer, signature->dtype);
    wfi_write_u8(writer, signature->how);
    wfi_write_u8(writer, signature->algorithm);
    wfi_write_u32(writer, signature->root);
    wfi_write_u64(writer, signature->count);
}

void wfi_group_send_data(weft_group *group, size_t to, const wfi_data *data)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_message(&writer, room, sizeof(room), &group->key, WFI_DATA);
    wfi_write_u8(&writer, (uint8_t)data->space);
    wfi_write_u64(&writer, data->number);
    write_signature(&writer, &data->signature);
    wfi_write_u32(&writer, data->slot);
    wfi_write_u32(&writer, data->token);
    wfi_write_u8(&writer, data->is_eager);
    wfi_write_u64(&writer, data->size);
    if (!data->is_eager) {
        wfi_rma_encode(&writer, &data->remote);
    }
    send_message(group, to, &writer, data->bytes, data->is_eager ? data->size : 0);
}

void wfi_group_send_number(weft_group *group, size_t to, enum wfi_group_message_type type, wfi_space space,
                           uint64_t number)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_message(&writer, room, sizeof(room), &group->key, type);
    wfi_write_u8(&writer, (uint8_t)space);
    wfi_write_u64(&writer, number);
    send_message(group, to, &writer, NULL, 0);
}

void wfi_group_send_query(weft_group *group, size_t to, wfi_space space, bool sends, uint64_t number)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_message(&writer, room, sizeof(room), &group->key, WFI_QUERY);
    wfi_write_u8(&writer, (uint8_t)space);
    wfi_write_u8(&writer, sends);
    wfi_write_u64(&writer, number);
    group->members[to].queries++;
    send_message(group, to, &writer, NULL, 0);
}

void wfi_group_send_ack(weft_group *group, size_t to, const wfi_data *data)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_message(&writer, room, sizeof(room), &group->key, WFI_ACK);
    wfi_write_u8(&writer, (uint8_t)data->space);
    wfi_write_u64(&writer, data->number);
    wfi_write_u32(&writer, data->token);
    send_message(group, to, &writer, NULL, 0);
}

void wfi_group_send_over(weft_group *group, size_t to)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer head, error;
    if (group->members[to].is_told)
        return;
    group->members[to].is_told = true;
    begin_message(&head, room, sizeof(room), &group->key, WFI_OVER);
    wfi_write_u8(&head, group->complete);
    wfi_writer_init_growing(&error);
    wfi_error_write(&error, group->over);
    if (!error.failed)
        send_message(group, to, &head, error.data, error.size);
    wfi_writer_fini(&error);
}

void wfi_group_send_share(weft_group *group, size_t to, wfi_share_message_type type)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_message(&writer, room, sizeof(room), &group->key, WFI_SHARE);
    wfi_write_u8(&writer, (uint8_t)type);
    send_message(group, to, &writer, NULL, 0);
}

void wfi_group_send_bare(weft_group *group, size_t to, enum wfi_group_message_type type)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_message(&writer, room, sizeof(room), &group->key, type);
    send_message(group, to, &writer, NULL, 0);
}

static void begin_opening_message(wfi_writer *writer, uint8_t *room, size_t size, enum wfi_group_message_type type,
                                  uint64_t attempt)
{
    wfi_writer_init(writer, room, size);
    wfi_write_u8(writer, (uint8_t)type);
    wfi_write_u64(writer, attempt);
}

void wfi_group_send_join(weft_group *group, size_t to, uint64_t attempt, uint64_t members_hash)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_opening_message(&writer, room, sizeof(room), WFI_JOIN, attempt);
    wfi_write_u64(&writer, group->name_hash);
    wfi_write_u64(&writer, members_hash);
    send_message(group, to, &writer, NULL, 0);
}

void wfi_group_send_leave(weft_group *group, size_t to, uint64_t attempt)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_opening_message(&writer, room, sizeof(room), WFI_LEAVE, attempt);
    send_message(group, to, &writer, NULL, 0);
}

void wfi_group_send_created(weft_group *group, size_t to)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer head, list;
    begin_opening_message(&head, room, sizeof(room), WFI_CREATED, group->members[to].attempt);
    wfi_write_u64(&head, group->key.number);
    wfi_write_u32(&head, group->key.incarnation);
    wfi_writer_init_growing(&list);
    for (size_t i = 0; i < group->size; i++) {
        wfi_write_u32(&list, (uint32_t)group->members[i].rank);
        wfi_write_u32(&list, group->members[i].incarnation);
    }
    if (list.failed)
        wfi_group_break_for(group, WEFT_ERR_MEMORY, wfi_agent_rank(group->agent), "rank %d has no memory to open it",
                            wfi_agent_rank(group->agent));
    else
        send_message(group, to, &head, list.data, list.size);
    wfi_writer_fini(&list);
}

/* ---- Answers ----------------------------------------------------------------------------------------------------- */

void wfi_group_answer_state(weft_agent *agent, wfi_peer *to, const wfi_group_key *key,
                            const wfi_progress_report *report)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_message(&writer, room, sizeof(room), key, WFI_STATE);
    wfi_write_u8(&writer, (uint8_t)report->space);
    wfi_write_u8(&writer, report->has_group);
    wfi_write_u64(&writer, report->number);
    wfi_write_u64(&writer, report->called);
    write_signature(&writer, &report->signature);
    if (!report->has_group) /* after all earlier messages of this member */
        wfi_post_answer_in_turn(agent, to, WFI_RPC_GROUP, &writer);
    else
        wfi_post_answer(agent, to, WFI_RPC_GROUP, &writer, NULL);
}

void wfi_group_answer_over(weft_agent *agent, wfi_peer *to, const wfi_group_key *key, weft_status why)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_message(&writer, room, sizeof(room), key, WFI_OVER);
    wfi_write_u8(&writer, why == WEFT_ERR_CANCELLED);
    wfi_error_write_bare(&writer, why, WEFT_OK, wfi_agent_rank(agent));
    /* In order, because it says less than wfi_group_send_over, which may be in flight. */
    wfi_post_answer_in_turn(agent, to, WFI_RPC_GROUP, &writer);
}

void wfi_group_answer_failed(weft_agent *agent, wfi_peer *to, uint64_t attempt, weft_status why, const int *ranks,
                             size_t count)
{
    uint8_t room[WFI_GROUP_HEAD];
    wfi_writer writer;
    begin_opening_message(&writer, room, sizeof(room), WFI_FAILED, attempt);
    wfi_write_u32(&writer, (uint32_t)why);
    wfi_write_u32(&writer, (uint32_t)count);
    for (size_t i = 0; i < count && i < WFI_FAILED_RANKS; i++)
        wfi_write_u32(&writer, (uint32_t)ranks[i]);
    wfi_post_answer(agent, to, WFI_RPC_GROUP, &writer, NULL);
}
