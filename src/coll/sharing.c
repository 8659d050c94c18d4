/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sharing.c - which members of a group share a host, and how those get the memory that they share, when the group is
 * opened. If the group has several hosts, the members of each host do this for themselves. The first member of a host
 * is its leader.
 *
 *   1. When all members have the group (opening.h), the leader makes the memory, and sends HELLO to the members of its
 *      host. Each answers HELLO, so the lane to it is up, and the leader passes the descriptor.
 *   2. A member that has mapped the memory sends READY to the leader. A member that cannot map it sends UNABLE.
 *   3. The leader sends the verdict to all. It is USE if all are READY. It is USE_NOT if a member is UNABLE or does not
 *      answer in time. Then messages do the operations.
 *
 * A descriptor is lost if its connection is replaced, for example because two members have dialled each other at the
 * same time. So the leader passes the descriptor again to each member that has sent HELLO and is not READY. The pauses
 * are 20, 40, 80, 160 and 320 ms. 640 ms after the last time the verdict is USE_NOT. These times decide only whether
 * memory or messages are used. They do not change a result.
 */
#include "coll/group.h"

#include "base/alloc.h"
#include "base/nosignal.h"
#include "mem/shared.h"

#include <unistd.h>

#define FIRST_PAUSE_MS 20
#define LAST_PAUSE_MS 1000 /* a pause that would be longer is the verdict: after 20, 40 ... 640 ms */
#define KEY_BYTES 12

static bool leads(const weft_group *group)
{
    return group->share.slots.me == 0;
}

static wfi_group_member *member_at(const weft_group *group, size_t place)
{
    return &group->members[group->share.by_place[place]];
}

static void decide(weft_group *group, bool uses, const char *why)
{
    wfi_share *share = &group->share;
    share->state = uses ? WFI_SHARE_YES : WFI_SHARE_NO;
    wfi_agent_log(group->agent, WEFT_LOG_DEBUG, 0, "group \"%s\": %s", group->name,
                  uses ? "small operations use shared memory" : why);
    wfi_group_wake(group);
}

/* At the leader: sends the verdict to all, and applies it here. `why` is logged if `uses` is false. */
static void judge(weft_group *group, bool uses, const char *why)
{
    wfi_share *share = &group->share;
    wfi_net_timer_clear(group->agent->net, &share->timer);
    if (share->fd >= 0)
        close(share->fd);
    share->fd = -1;
    for (size_t i = 1; i < share->slots.members; i++)
        wfi_group_send_share(group, share->by_place[i], uses ? WFI_SHARE_USE : WFI_SHARE_USE_NOT);
    decide(group, uses, why);
}

static bool are_ready(const weft_group *group)
{
    for (size_t i = 1; i < group->share.slots.members; i++)
        if (!member_at(group, i)->is_ready)
            return false;
    return true;
}

/* ---- The leader -------------------------------------------------------------------------------------------------- */

static void write_key(const wfi_group_key *key, uint8_t room[KEY_BYTES])
{
    wfi_writer writer;
    wfi_writer_init(&writer, room, KEY_BYTES);
    wfi_write_u64(&writer, key->number);
    wfi_write_u32(&writer, key->incarnation);
}

static void pass_to(const weft_group *group, const wfi_group_member *member)
{
    uint8_t key[KEY_BYTES];
    write_key(&group->key, key);
    weft_status status = member->peer ? wfi_peer_pass(member->peer, group->share.fd, key, sizeof(key)) : WEFT_OK;
    (void)status; /* a failure is ignored: `late` passes the descriptor again */
}

static void await_answers(weft_group *group)
{
    weft_agent *agent = group->agent;
    wfi_share *share = &group->share;
    uint64_t until = wfi_deadline(wfi_net_clock(agent->net), share->pause_ms);
    if (wfi_net_timer_set(agent->net, &share->timer, until))
        judge(group, false, "no shared memory: no memory for a timer");
}

static void late(wfi_timer *timer)
{
    wfi_share *share = wfi_container_of(timer, wfi_share, timer);
    weft_group *group = wfi_container_of(share, weft_group, share);
    share->pause_ms *= 2;
    if (share->pause_ms > LAST_PAUSE_MS) {
        judge(group, false, "no shared memory: a member did not answer in time");
        return;
    }
    for (size_t i = 1; i < share->slots.members; i++)
        if (member_at(group, i)->has_sent_hello && !member_at(group, i)->is_ready)
            pass_to(group, member_at(group, i));
    await_answers(group);
}

static void offer(weft_group *group)
{
    weft_agent *agent = group->agent;
    wfi_share *share = &group->share;
    void *memory;
    int errnum = wfi_shm_make("weft-group", wfi_slots_bytes(share->slots.members), &share->fd, &memory);
    if (errnum) {
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, "group \"%s\": memory to share cannot be made: %s", group->name,
                      wfi_nosignal_strerror(errnum));
        judge(group, false, "no shared memory");
        return;
    }
    share->slots.memory = memory;
    share->state = WFI_SHARE_OFFERED;
    share->timer.fire = late;
    share->pause_ms = FIRST_PAUSE_MS;
    for (size_t i = 1; i < share->slots.members; i++)
        wfi_group_send_share(group, share->by_place[i], WFI_SHARE_HELLO);
    await_answers(group);
}

void wfi_sharing_begin(weft_group *group)
{
    if (group->share.may && leads(group))
        offer(group);
}

/* ---- All members ------------------------------------------------------------------------------------------------- */

void wfi_sharing_hurry(weft_group *group)
{
    if (group->share.state == WFI_SHARE_OFFERED)
        judge(group, false, "no shared memory: the time limit of weft_group_open has passed");
}

bool wfi_sharing_is_over(const weft_group *group)
{
    return !group->share.may || group->share.state >= WFI_SHARE_YES;
}

/* Finds which members share a host. All members get the same result, because it follows from what members publish. */
static void find_hosts(weft_group *group)
{
    const wfi_net *net = group->agent->net;
    size_t hosts = 0;
    for (size_t i = 0; i < group->size; i++) {
        size_t first = 0;
        while (first < i && (group->hosts[first] != first ||
                             !wfi_net_same_host(net, group->members[first].rank, group->members[i].rank)))
            first++;
        group->hosts[i] = first;
        hosts += first == i;
    }
    group->spans_hosts = hosts > 1;
    group->has_levels = hosts > 1 && hosts < group->size;
}

static bool may_share(const weft_group *group)
{
    bool has_neighbours = false;
    for (size_t i = 0; i < group->size; i++) {
        size_t count = 0;
        for (size_t k = 0; k < group->size; k++)
            count += group->hosts[k] == group->hosts[i];
        if (count > WFI_SHARE_MEMBERS_MAX ||
            (count > 1 && !wfi_net_can_pass(group->agent->net, group->members[i].rank)))
            return false;
        has_neighbours = has_neighbours || count > 1;
    }
    return has_neighbours;
}

weft_status wfi_sharing_init(weft_group *group)
{
    wfi_share *share = &group->share;
    group->hosts = wfi_calloc(group->size, sizeof(*group->hosts));
    share->by_place = wfi_calloc(group->size, sizeof(*share->by_place));
    if (!group->hosts || !share->by_place)
        return WEFT_ERR_MEMORY;
    find_hosts(group);
    size_t here = group->hosts[group->index];
    for (size_t i = 0; i < group->size; i++) {
        if ((int)i == group->index)
            share->slots.me = share->slots.members;
        if (group->hosts[i] == here)
            share->by_place[share->slots.members++] = i;
    }
    group->hosts_may_share = may_share(group);
    share->may = group->hosts_may_share && share->slots.members > 1;
    return WEFT_OK;
}

/* Handles HELLO, READY or UNABLE. */
static void on_answer(weft_group *group, wfi_group_member *from, unsigned type)
{
    bool offers = group->share.state == WFI_SHARE_OFFERED;
    if (type == WFI_SHARE_HELLO && !leads(group)) {
        wfi_group_send_share(group, group->share.by_place[0], WFI_SHARE_HELLO);
    } else if (type == WFI_SHARE_HELLO && offers) {
        from->has_sent_hello = true;
        pass_to(group, from);
    } else if (type == WFI_SHARE_UNABLE && offers) {
        judge(group, false, "no shared memory: a member is unable to use it");
    } else if (type == WFI_SHARE_READY && offers) {
        from->is_ready = true;
        if (are_ready(group))
            judge(group, true, "");
    }
}

/* Sends READY or UNABLE to the leader. A member answers once. */
static void answer(weft_group *group, bool able)
{
    group->share.has_answered = true;
    wfi_group_send_share(group, group->share.by_place[0], able ? WFI_SHARE_READY : WFI_SHARE_UNABLE);
}

bool wfi_sharing_on_message(weft_group *group, wfi_group_member *from, wfi_reader *reader)
{
    wfi_share *share = &group->share;
    unsigned type = wfi_read_u8(reader);
    bool is_verdict = type == WFI_SHARE_USE || type == WFI_SHARE_USE_NOT;
    bool is_here = group->hosts[from - group->members] == group->hosts[group->index];
    if (reader->failed || !type || type >= WFI_SHARE_MESSAGE_TYPES || !share->may || !is_here)
        return false;
    /* WAKE only wakes this worker: the round that reads it checks the flags (share.c) */
    if (group->over || type == WFI_SHARE_WAKE)
        return true;
    if (!is_verdict) {
        on_answer(group, from, type);
        return true;
    }
    bool makes_sense = from == member_at(group, 0) && share->state == WFI_SHARE_NONE &&
                       (type == WFI_SHARE_USE_NOT || (share->has_answered && share->slots.memory));
    if (makes_sense)
        decide(group, type == WFI_SHARE_USE, "no shared memory, by the leader of the host");
    return makes_sense;
}

void wfi_sharing_passed(weft_agent *agent, wfi_peer *from, int fd, const uint8_t *data, size_t size)
{
    wfi_reader reader;
    wfi_reader_init(&reader, data, size);
    wfi_group_key key = {.number = wfi_read_u64(&reader)};
    key.incarnation = wfi_read_u32(&reader);
    weft_group *group = reader.failed ? NULL : wfi_map_get(&wfi_groups_of(agent)->open, wfi_group_id(agent, &key));
    const wfi_group_member *member = group ? wfi_group_member_of(group, from) : NULL;
    if (!member || member != member_at(group, 0) || !group->share.may || group->share.has_answered ||
        group->share.state != WFI_SHARE_NONE || group->over)
        return;
    void *memory;
    int errnum = wfi_shm_map(fd, wfi_slots_bytes(group->share.slots.members), &memory);
    if (errnum) {
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, "group \"%s\": memory that rank %d shares cannot be used: %s",
                      group->name, member->rank, strerrordesc_np(errnum));
        answer(group, false);
        return;
    }
    group->share.slots.memory = memory;
    answer(group, true);
}
