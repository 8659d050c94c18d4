/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - operations in memory that all members share (shared/slots.h).
 *
 * Such an operation is one step of its schedule. Shared operations of a group run one after another. The first
 * operation of the queue writes its data into this member's slot (a turn, see slots.h), and waits for the flags of the
 * other members. The member checks these flags in each round of progress (wfi_look). A member sets its own flag, then
 * reads the others. If all are set, it is the last member, and it wakes the others, because they may sleep. No other
 * member wakes anyone, because a flag is still missing.
 *
 * A large allreduce takes several turns, one for each piece that fits the slots.
 *
 * The slot and the flags of a member that dies stay in the memory. If it had set its flag, the operation completes at
 * the others. Otherwise the operation fails. Operations by messages follow the same rule.
 */
#include "coll/group.h"

#define INLINE_BYTES 16384 /* worked on with the lock held: a few microseconds */

static void run_queue(weft_group *group);

/* ---- Deciding ---------------------------------------------------------------------------------------------------- */

bool wfi_share_decide(wfi_operation *operation)
{
    weft_group *group = operation->group;
    wfi_share *share = &group->share;
    if (!operation->is_undecided)
        return true;
    if (group->over)
        return false;
    if (!operation->share.index)
        operation->share.index = ++share->called;
    bool may = operation->share.index >= WFI_SHARE_FROM;
    if (may && share->state < WFI_SHARE_YES)
        return false;
    operation->is_undecided = false;
    if (may && share->state == WFI_SHARE_YES)
        return true;
    operation->what.may_share = false;
    wfi_schedule_fini(&operation->schedule);
    weft_status st = wfi_operation_build(operation);
    operation->left = operation->schedule.step_count;
    if (st)
        wfi_group_break_for(group, st, wfi_agent_rank(group->agent), "rank %d has no memory for %s",
                            wfi_agent_rank(group->agent), wfi_operation_names[operation->what.kind]);
    return !st;
}

/* ---- What the members say of the operation ----------------------------------------------------------------------- */

static wfi_slot_head head_of(const wfi_operation *operation)
{
    wfi_signature ours = wfi_operation_signature(operation);
    return (wfi_slot_head){.number = operation->number,
                           .what = (uint64_t)ours.kind | (uint64_t)ours.dtype << 8 | (uint64_t)ours.how << 16 |
                                   (uint64_t)ours.algorithm << 24 | (uint64_t)ours.root << 32,
                           .count = ours.count};
}

static wfi_signature signature_of(const wfi_slot_head *head)
{
    return (wfi_signature){.kind = (uint8_t)head->what,
                           .dtype = (uint8_t)(head->what >> 8),
                           .how = (uint8_t)(head->what >> 16),
                           .algorithm = (uint8_t)(head->what >> 24),
                           .root = (uint32_t)(head->what >> 32),
                           .count = head->count};
}

static bool is_same(const wfi_slot_head *a, const wfi_slot_head *b)
{
    return a->number == b->number && a->what == b->what && a->count == b->count;
}

/* Returns the first member that has called a different operation in this turn, or the group's size if there is none. */
static size_t find_other(const wfi_operation *operation, wfi_slot_head *theirs)
{
    const wfi_share *share = &operation->group->share;
    wfi_slot_head ours = head_of(operation);
    size_t i = 0;
    for (; i < operation->group->size; i++) {
        *theirs = wfi_slots_read_head(&share->slots, i, share->turn);
        if (!is_same(&ours, theirs))
            break;
    }
    return i;
}

/* Ends the group and returns false if a member called another operation. */
static bool all_agree(const wfi_operation *operation)
{
    weft_group *group = operation->group;
    wfi_slot_head head;
    size_t other = find_other(operation, &head);
    if (other == group->size)
        return true;
    wfi_signature theirs = signature_of(&head);
    if (head.number == operation->number && theirs.kind < WFI_OPERATION_KINDS)
        (void)wfi_operation_check(operation, other, &theirs);
    else
        wfi_group_break_for(group, WEFT_ERR_STATE, group->members[other].rank,
                            "operation %llu, %s: rank %d has called another operation",
                            (unsigned long long)operation->number, wfi_operation_names[operation->what.kind],
                            group->members[other].rank);
    return false;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static void wake_others(weft_group *group)
{
    for (size_t i = 0; i < group->size; i++) {
        wfi_peer *peer = group->members[i].peer;
        if (peer && !wfi_peer_wake(peer))
            wfi_say_share(group, i, WFI_SHARE_LOOK);
    }
}

static wfi_operation *first_of(const weft_group *group)
{
    return wfi_list_empty(&group->share.queue) ? NULL
                                               : wfi_container_of(group->share.queue.next, wfi_operation, share.link);
}

/* wfi_look.is_due: whether all members have the awaited flag. Called with looks_lock held. */
static bool is_due(wfi_look *look)
{
    wfi_share *share = wfi_container_of(look, wfi_share, look);
    return wfi_slots_have(&share->slots, share->awaited, share->turn, &share->first_missing);
}

static void proceed(wfi_operation *operation);

static void look_done(wfi_look *look)
{
    wfi_share *share = wfi_container_of(look, wfi_share, look);
    proceed(first_of(wfi_container_of(share, weft_group, share)));
}

/* Sets this member's flag, and waits for those of the others. Returns whether they are set already. */
static bool flag_and_wait(wfi_operation *operation, wfi_slots_flag flag)
{
    weft_group *group = operation->group;
    wfi_share *share = &group->share;
    share->awaited = flag;
    share->first_missing = 0;
    wfi_slots_set(&share->slots, flag, share->turn);
    if (wfi_slots_have(&share->slots, flag, share->turn, &share->first_missing)) {
        wake_others(group);
        return true;
    }
    share->look.is_due = is_due;
    share->look.run = look_done;
    wfi_progress_look(&group->agent->net->progress, &share->look);
    return false;
}

/* ---- Working ----------------------------------------------------------------------------------------------------- */

static wfi_slots_work work_of(const wfi_operation *operation)
{
    const wfi_share *share = &operation->group->share;
    uint8_t *output = operation->memory[WFI_OUTPUT].data;
    return (wfi_slots_work){.slots = &share->slots,
                            .what = &share->piece,
                            .turn = share->turn,
                            .dtype = operation->dtype,
                            .how = operation->how,
                            .input = operation->memory[WFI_INPUT].data,
                            .output = output ? output + operation->share.at * operation->what.element : NULL};
}

/* The elements of the operation's next piece. Only an allreduce has several. */
static size_t piece_of(const wfi_operation *operation)
{
    size_t left = operation->what.count - operation->share.at, most = WFI_SLOT_BYTES / operation->what.element;
    return operation->what.kind == WFI_ALLREDUCE && left > most ? most : left;
}

static bool is_last_piece(const wfi_operation *operation)
{
    return operation->share.at + piece_of(operation) == operation->what.count;
}

/* Begins the next turn: copies the next piece of the data, and the operation's signature, into this member's slot. */
static void take_turn(wfi_operation *operation)
{
    wfi_share *share = &operation->group->share;
    wfi_slot_head head = head_of(operation);
    operation->share.has_turn = true;
    share->turn++;
    share->piece = operation->what;
    share->piece.count = piece_of(operation);
    wfi_slots_work work = work_of(operation);
    wfi_slots_put(&work);
    wfi_slots_write_head(&share->slots, share->turn, &head);
}

static void compute(const wfi_operation *operation)
{
    wfi_slots_work work = work_of(operation);
    if (operation->group->share.awaited == WFI_SLOTS_ARRIVED)
        wfi_slots_first(&work);
    else
        wfi_slots_second(&work);
}

static void leave_queue(wfi_operation *operation)
{
    wfi_list_remove(&operation->share.link);
    operation->share.has_turn = false;
}

/* Called when this turn's results are written, or the operation has failed. Begins the next piece, or ends the
 * operation. */
static void complete(wfi_operation *operation)
{
    weft_group *group = operation->group;
    if (!operation->failing && !is_last_piece(operation)) {
        operation->share.at += piece_of(operation);
        operation->share.has_turn = false;
        run_queue(group);
        return;
    }
    leave_queue(operation);
    operation->share.done(operation); /* frees the operation, and perhaps the group, when the lock is released */
    run_queue(group);
}

static void computed(wfi_operation *operation)
{
    bool was_first = operation->group->share.awaited == WFI_SLOTS_ARRIVED;
    if (operation->failing || !was_first || !wfi_slots_has_second(&operation->group->share.piece))
        complete(operation);
    else if (flag_and_wait(operation, WFI_SLOTS_REDUCED))
        proceed(operation);
}

/* Without the lock. */
static void run_computation(wfi_task *task)
{
    wfi_operation *operation = wfi_container_of(task, wfi_operation, share.task);
    weft_agent *agent = operation->group->agent;
    compute(operation);
    wfi_net_lock(agent->net); /* the operation is busy, so it exists and its agent is open */
    operation->busy--;
    operation->share.computes = false;
    computed(operation);
    wfi_net_unlock(agent->net);
}

/* Called when all members have the awaited flag: checks that they called the same operation, then computes. */
static void proceed(wfi_operation *operation)
{
    const wfi_share *share = &operation->group->share;
    if (share->awaited == WFI_SLOTS_ARRIVED && !all_agree(operation))
        return; /* all_agree has ended the group, which fails this operation */
    if (wfi_slots_work_bytes(&share->piece) <= INLINE_BYTES) {
        compute(operation);
        computed(operation);
        return;
    }
    operation->share.computes = true;
    operation->share.task.run = run_computation;
    operation->busy++;
    wfi_net_defer(operation->group->agent->net, &operation->share.task, WFI_DEFER_RELEASE);
}

/* Runs the operations of the queue one after another, until one has to wait for the other members. */
static void run_queue(weft_group *group)
{
    wfi_share *share = &group->share;
    wfi_operation *first;
    if (share->runs_queue)
        return;
    share->runs_queue = true;
    while (!group->over && (first = first_of(group)) && !first->share.has_turn) {
        take_turn(first);
        if (flag_and_wait(first, WFI_SLOTS_ARRIVED))
            proceed(first);
    }
    share->runs_queue = false;
}

void wfi_share_begin(wfi_operation *operation, void (*done)(wfi_operation *operation))
{
    operation->share.done = done;
    wfi_list_push_back(&operation->group->share.queue, &operation->share.link);
    run_queue(operation->group);
}

/* ---- When the group is over -------------------------------------------------------------------------------------- */

bool wfi_share_has_all(const wfi_operation *operation)
{
    const wfi_share *share = &operation->group->share;
    wfi_slots_flag last = wfi_slots_has_second(&share->piece) ? WFI_SLOTS_REDUCED : WFI_SLOTS_ARRIVED;
    wfi_slot_head theirs;
    size_t first = 0;
    return operation->share.has_turn && is_last_piece(operation) &&
           (last == share->awaited || operation->share.computes) &&
           wfi_slots_have(&share->slots, last, share->turn, &first) &&
           find_other(operation, &theirs) == operation->group->size;
}

void wfi_share_finish(wfi_operation *operation)
{
    wfi_share *share = &operation->group->share;
    if (!operation->share.has_turn || operation->share.computes)
        return;
    wfi_progress_unlook(&operation->group->agent->net->progress, &share->look);
    proceed(operation);
}

void wfi_share_drop(wfi_operation *operation)
{
    if (operation->share.computes || !operation->share.done)
        return; /* run_computation ends a computing operation; an operation without `done` has not begun */
    if (operation->share.has_turn)
        wfi_progress_unlook(&operation->group->agent->net->progress, &operation->group->share.look);
    leave_queue(operation);
}

bool wfi_share_waits(const wfi_operation *operation, size_t member)
{
    const wfi_share *share = &operation->group->share;
    return operation->share.has_turn && !operation->share.computes &&
           !wfi_slots_has(&share->slots, member, share->awaited, share->turn);
}

void wfi_share_end(weft_group *group)
{
    wfi_net_timer_clear(group->agent->net, &group->share.timer);
}
