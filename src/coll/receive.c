/* SPDX-License-Identifier: Apache-2.0 */
/* receive.c - processes the messages of group members (send.c). No field of them is trusted. */
#include "coll/opening.h"

#include "base/error.h"

#define BEGUN_MOST (UINT64_MAX / 2) /* no member ever begins that many operations */

static wfi_space read_space(wfi_reader *reader)
{
    unsigned space = wfi_read_u8(reader);
    reader->failed |= space >= WFI_SPACES;
    return (wfi_space)space;
}

static void read_signature(wfi_reader *reader, wfi_signature *out)
{
    out->kind = wfi_read_u8(reader);
    out->dtype = wfi_read_u8(reader);
    out->how = wfi_read_u8(reader);
    out->algorithm = wfi_read_u8(reader);
    out->root = wfi_read_u32(reader);
    out->count = wfi_read_u64(reader);
}

static bool read_data(wfi_reader *reader, wfi_data *out)
{
    out->space = read_space(reader);
    out->number = wfi_read_u64(reader);
    read_signature(reader, &out->signature);
    out->slot = wfi_read_u32(reader);
    out->token = wfi_read_u32(reader);
    out->is_eager = wfi_read_u8(reader);
    out->size = wfi_read_u64(reader);
    if (out->is_eager) {
        out->bytes = wfi_read_bytes(reader, out->size);
    } else {
        out->remote = wfi_rma_decode(reader);
    }
    return !reader->failed && !wfi_reader_left(reader) && out->signature.kind < WFI_OPERATION_KINDS;
}

static uint64_t begun_here(const weft_group *group, const wfi_group_member *member, wfi_space space, bool sends)
{
    if (space == WFI_SPACE_COLLECTIVE)
        return group->begun;
    return sends ? member->sends_begun : member->recvs_begun;
}

/* Records that the member has begun that operation, as its message shows. */
static void has_begun(wfi_group_member *member, wfi_space space, uint64_t number)
{
    if (number > member->spaces[space].begun)
        member->spaces[space].begun = number;
}

/* Number of operations called here, including those that wait for their turn. */
static uint64_t called_here(const weft_group *group, const wfi_group_member *member, wfi_space space, bool sends)
{
    if (space == WFI_SPACE_COLLECTIVE)
        return group->called;
    return sends ? member->sends : member->recvs;
}

/*
 * Gives the data to their operation, or keeps them if it has not begun here. Returns false if the message is malformed,
 * or so early that no correct member sends it.
 */
static bool on_data(weft_group *group, wfi_group_member *from, wfi_reader *reader)
{
    wfi_data data = {0};
    size_t index = (size_t)(from - group->members);
    if (!read_data(reader, &data))
        return false;
    data.bulk_generation = wfi_peer_bulk_generation(from->peer);
    uint64_t begun = begun_here(group, from, data.space, false);
    if (group->over || data.number > begun + WFI_GROUP_AHEAD)
        return group->over != NULL;
    if (data.space == WFI_SPACE_COLLECTIVE)
        has_begun(from, data.space, data.number);
    if (data.number > begun) {
        wfi_early_keep(group, index, &data);
        return true;
    }
    wfi_operation *operation = wfi_operation_find(group, data.space, false, index, data.number);
    const wfi_operation *quick = group->share.quick; /* runs in shared memory, and is not in the group's list */
    bool is_quick = quick && data.space == WFI_SPACE_COLLECTIVE && data.number == quick->number;
    char theirs[WFI_SIGNATURE_TEXT];
    if (operation)
        wfi_run_on_data(operation, index, &data);
    else if (!is_quick || wfi_operation_check(quick, index, &data.signature))
        /* It has ended here with all data that it needed, or needs none: the sender has called another operation. */
        wfi_group_break_for(group, WEFT_ERR_STATE, from->rank,
                            "operation %llu: rank %d called %s, and rank %d something else",
                            (unsigned long long)data.number, from->rank,
                            wfi_operation_signature_text(&data.signature, true, theirs), wfi_agent_rank(group->agent));
    return true;
}

static bool on_ack(weft_group *group, wfi_group_member *from, wfi_reader *reader)
{
    wfi_space space = read_space(reader);
    uint64_t number = wfi_read_u64(reader);
    uint32_t token = wfi_read_u32(reader);
    if (reader->failed)
        return false;
    wfi_operation *operation = wfi_operation_find(group, space, true, (size_t)(from - group->members), number);
    if (operation) {
        has_begun(from, space, number);
        wfi_run_on_ack(operation, (size_t)(from - group->members), token);
    }
    return true;
}

static bool on_ask(weft_group *group, wfi_group_member *from, wfi_reader *reader)
{
    wfi_space space = read_space(reader);
    uint64_t number = wfi_read_u64(reader);
    if (reader->failed)
        return false;
    uint64_t begun = begun_here(group, from, space, false);
    if (begun >= number)
        wfi_group_send_number(group, (size_t)(from - group->members), WFI_BEGUN, space, begun);
    else if (!from->spaces[space].wanted || number < from->spaces[space].wanted)
        from->spaces[space].wanted = number;
    return true;
}

static bool on_begun(weft_group *group, wfi_group_member *from, wfi_reader *reader)
{
    wfi_space space = read_space(reader);
    uint64_t number = wfi_read_u64(reader);
    if (reader->failed || number > BEGUN_MOST)
        return false;
    has_begun(from, space, number);
    /*
     * The member keeps the lowest number it was asked for, and this was the answer: anything that waits for a higher
     * one asks again.
     */
    from->spaces[space].asked = 0;
    wfi_operations_begin(group);
    return true;
}

/* Answers with STATE: how far this member is. If the group is over here, OVER comes before. `group` may be NULL. */
static bool on_query(weft_agent *agent, wfi_peer *peer, const wfi_group_key *key, weft_group *group, wfi_reader *reader)
{
    wfi_progress_report report = {.space = read_space(reader), .signature.kind = WFI_OPERATION_KINDS};
    bool sends = wfi_read_u8(reader);
    report.number = wfi_read_u64(reader);
    if (reader->failed)
        return false;
    const wfi_group_member *member = group ? wfi_group_member_of(group, peer) : NULL;
    size_t index = member ? (size_t)(member - group->members) : 0;
    if (member && group->over) { /* OVER, perhaps once more: nobody may have told that member the reason */
        group->members[index].is_told = false;
        wfi_group_send_over(group, index);
        wfi_group_answer_state(agent, peer, key, &report);
        return true;
    }
    report.has_group = member != NULL;
    const wfi_operation *operation =
        member ? wfi_operation_find(group, report.space, sends, index, report.number) : NULL;
    if (operation)
        report.signature = wfi_operation_signature(operation);
    else if (member && report.space == WFI_SPACE_COLLECTIVE)
        wfi_share_recall(group, report.number, &report.signature);
    if (member)
        report.called = called_here(group, member, report.space, sends);
    wfi_group_answer_state(agent, peer, key, &report);
    return true;
}

/*
 * Checks a member's report on an operation in progress. Ends the group and returns false if the operations differ. If
 * that member has closed the group while this one waits for it, asks the others before it ends the group.
 */
static bool agrees(weft_group *group, const wfi_group_member *from, const wfi_progress_report *report)
{
    size_t index = (size_t)(from - group->members);
    wfi_operation *operation = wfi_operation_find(group, report->space, false, index, report->number);
    if (!operation || report->space != WFI_SPACE_COLLECTIVE)
        return true;
    if (report->signature.kind < WFI_OPERATION_KINDS && !wfi_operation_check(operation, index, &report->signature))
        return false;
    if (report->has_group || group->late_operation || !wfi_missing_waits(operation, index))
        return true;
    wfi_missing_left(operation, from);
    return !group->over;
}

/* Returns false if the report is malformed. */
static bool read_report(wfi_reader *reader, wfi_progress_report *out)
{
    out->space = read_space(reader);
    out->has_group = wfi_read_u8(reader);
    out->number = wfi_read_u64(reader);
    out->called = wfi_read_u64(reader);
    read_signature(reader, &out->signature);
    return !reader->failed;
}

static bool on_state(weft_group *group, wfi_group_member *from, wfi_reader *reader)
{
    wfi_progress_report report;
    if (!read_report(reader, &report))
        return false;
    if (from->queries)
        from->queries--;
    /* The member has answered the query for the reason: its group is not over. So its transfer was malformed. */
    if (from->has_withdrawn && !from->queries && report.has_group)
        wfi_group_break_for(group, WEFT_ERR_PROTOCOL, from->rank, "rank %d: a transfer from rank %d: %s",
                            wfi_agent_rank(group->agent), from->rank, weft_status_text(WEFT_ERR_PROTOCOL));
    else if (agrees(group, from, &report))
        wfi_missing_on_answer(group, from, &report);
    return true;
}

/*
 * Returns a member's error as this member keeps it: with that member as a hop. An UNREACHABLE error about this worker
 * is reversed: it names the member that reported it. Takes over `error`.
 */
static weft_error *received_error(weft_error *error, int from, int me)
{
    weft_error *received = NULL;
    if (weft_error_code(error) == WEFT_ERR_UNREACHABLE && weft_error_worker(error) == me) {
        wfi_error_detail detail = {.code = WEFT_ERR_UNREACHABLE,
                                   .function = weft_error_function(error),
                                   .worker = weft_error_hops(error) ? weft_error_hop(error, 0) : from};
        received = wfi_error_create(&detail, "%s", weft_error_message(error));
    } else {
        received = wfi_error_with_hop(error, from);
    }
    weft_error_unref(error);
    return received;
}

static bool on_over(weft_group *group, wfi_group_member *from, wfi_reader *reader)
{
    bool was_complete = wfi_read_u8(reader);
    weft_error *error = wfi_error_read(reader);
    if (!error)
        return false;
    weft_status code = weft_error_code(error);
    /* an answer for this member only, from a member that does not have the group */
    bool is_bare = !weft_error_message(error)[0];
    if (is_bare) {
        weft_error_unref(error);
        error = wfi_group_problem(group, code, from->rank, "rank %d %s", from->rank,
                                  code == WEFT_ERR_TIMEOUT ? "has given up opening it" : "has closed it");
    } else {
        error = received_error(error, from->rank, wfi_agent_rank(group->agent));
    }
    /* otherwise some may not have had the group yet, and so have not heard of its end */
    group->complete = group->complete || was_complete;
    wfi_group_break(group, error, is_bare || !group->complete);
    return true;
}

/* A message for a group that is not open here: it was closed, or never opened. */
static bool on_late_message(weft_agent *agent, wfi_peer *from, const wfi_group_key *key, unsigned type,
                            wfi_reader *reader)
{
    if (type == WFI_QUERY)
        return on_query(agent, from, key, NULL, reader);
    if (type == WFI_DATA || type == WFI_ASK)
        wfi_group_answer_over(agent, from, key, WEFT_ERR_CANCELLED);
    return true;
}

/* False: malformed. */
static bool dispatch(weft_group *group, wfi_group_member *from, wfi_peer *peer, unsigned type, wfi_reader *reader)
{
    switch (type) {
    case WFI_DATA:
        return on_data(group, from, reader);
    case WFI_ACK:
        return on_ack(group, from, reader);
    case WFI_ASK:
        return on_ask(group, from, reader);
    case WFI_BEGUN:
        return on_begun(group, from, reader);
    case WFI_QUERY:
        return on_query(group->agent, peer, &group->key, group, reader);
    case WFI_STATE:
        return on_state(group, from, reader);
    case WFI_OVER:
        return on_over(group, from, reader);
    case WFI_SHARE:
        return wfi_sharing_on_message(group, from, reader);
    case WFI_READY:
        wfi_opening_on_ready(group, from);
        return true;
    case WFI_GO:
        wfi_opening_on_go(group, from);
        return true;
    default:
        return false;
    }
}

void wfi_group_on_message(weft_agent *agent, wfi_peer *from, uint8_t rpc_type, wfi_reader *reader)
{
    size_t size = reader->size;
    wfi_group_member *member = NULL;
    weft_group *group = NULL;
    bool is_well_formed;
    (void)rpc_type; /* WFI_RPC_GROUP */
    unsigned type = wfi_read_u8(reader);
    if (type >= WFI_JOIN) {
        is_well_formed = wfi_opening_on_message(agent, from, type, reader);
    } else {
        wfi_group_key key = {.number = wfi_read_u64(reader)};
        key.incarnation = wfi_read_u32(reader);
        is_well_formed = !reader->failed;
        group = is_well_formed ? wfi_map_get(&wfi_groups_of(agent)->open, wfi_group_id(agent, &key)) : NULL;
        member = group ? wfi_group_member_of(group, from) : NULL;
        if (member)
            is_well_formed = dispatch(group, member, from, type, reader);
        else if (is_well_formed)
            is_well_formed = on_late_message(agent, from, &key, type, reader);
    }
    if (!is_well_formed)
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, "rank %d sent a malformed message of a group (type %u, %zu bytes)",
                      wfi_peer_rank(from), type, size);
    if (!is_well_formed && member) /* its content would be missing here */
        wfi_group_break_for(group, WEFT_ERR_PROTOCOL, member->rank, "rank %d sent a malformed message", member->rank);
}
