/* SPDX-License-Identifier: Apache-2.0 */
/*
 * share.c - operations in memory that the members of a host share (shared/slots.h).
 *
 * If all members are on one host, such an operation is one step of its schedule (WFI_PART_WHOLE). In a group over
 * several hosts, all members give their data to the leader of the host (reduce, gather), or the leader gives data to
 * them (broadcast, scatter). A barrier or an allreduce has both steps. The leader exchanges messages with other hosts
 * after the first and before the second.
 *
 * The operations of a group take their turns in the order of their numbers, on all members alike. So an operation
 * enters the queue when it begins, and leaves it after its last step in memory. A step of the first operation waits
 * until its slot is free (WFI_SHARE_ROOM), writes its data into it, sets this member's flag, and waits for the flags
 * of the members whose data it needs (WFI_SHARE_DATA). The member checks flags in each round of progress
 * (wfi_progress_hook).
 *
 * A member sets its own flag, then reads the others. If all are set, it is the last member of the turn, and it wakes
 * the others, because they may sleep. The root of a broadcast or a scatter wakes the others too. No other member wakes
 * anyone, because everyone who waits still needs another flag. In a barrier or an allreduce over several hosts, the
 * last member to give its data wakes only the leader, and the leader wakes the others when it gives them the result.
 *
 * A large allreduce takes several turns, one for each piece that fits the slots.
 *
 * QUICK. A thread that calls a barrier or an allreduce and waits for it runs all turns itself, without the lock
 * (wfi_share_run), if no other operation of the group is in progress. It needs no schedule, no future and no timer. It
 * spins, and then sleeps on the futex (shared/slots.h). The threads that watch the network see nothing of this. If the
 * operation takes long, or the group is over, it becomes an ordinary one (wfi_share_resume), with the same number and
 * in the same turn. While group->share.quick is set, that thread alone uses the fields of the turn.
 *
 * The slot and the flags of a member that dies stay in the memory. If it had set its flag, the operation completes at
 * the others. Otherwise the operation fails. Operations by messages follow the same rule.
 *
 * This file runs operations in the memory. sharing.c decides whether there is a memory, and gives it to the members.
 */
#include "coll/group.h"

/*
 * With two members and more data than this, the tensor and the slots do not fit a second-level cache of 1 MiB. Stores
 * that bypass the cache then take 0.25 to 0.7 of the time (perf/results/2026-11-30-quick-groups.md). With more members
 * they take longer.
 */
#define STREAM_BYTES ((size_t)768 << 10)
#define INLINE_BYTES 16384 /* worked on with the lock held: a few microseconds */
#define SPINS 16           /* at the flags, before the clock is read: about half a microsecond */

static void run_queue(weft_group *group);

/* ---- What the members write about the operation ------------------------------------------------------------------ */

static wfi_slot_head head_of(const wfi_operation *operation)
{
    wfi_signature ours = wfi_operation_signature(operation);
    return (wfi_slot_head){.number = operation->number,
                           .signature = (uint64_t)ours.kind | (uint64_t)ours.dtype << 8 | (uint64_t)ours.how << 16 |
                                        (uint64_t)ours.algorithm << 24 | (uint64_t)ours.root << 32,
                           .count = ours.count,
                           .history = operation->history};
}

uint64_t wfi_share_history(const wfi_operation *operation)
{
    wfi_slot_head head = head_of(operation);
    head.number = 0; /* it has none yet */
    head.history = operation->group->history;
    return wfi_slots_check(&head);
}

static wfi_signature signature_of(const wfi_slot_head *head)
{
    return (wfi_signature){.kind = (uint8_t)head->signature,
                           .dtype = (uint8_t)(head->signature >> 8),
                           .how = (uint8_t)(head->signature >> 16),
                           .algorithm = (uint8_t)(head->signature >> 24),
                           .root = (uint32_t)(head->signature >> 32),
                           .count = head->count};
}

void wfi_share_recall(const weft_group *group, uint64_t number, wfi_signature *out)
{
    if (!group->share.quick && group->share.head.number == number)
        *out = signature_of(&group->share.head);
}

static bool is_same(const wfi_slot_head *a, const wfi_slot_head *b)
{
    return a->number == b->number && a->signature == b->signature && a->count == b->count && a->history == b->history;
}

/*
 * Compares what those members have called for which this one waits. Returns the place of the first that has called a
 * different operation in this turn, or the number of places if there is none.
 */
static size_t find_disagreement(const wfi_operation *operation)
{
    const wfi_share *share = &operation->group->share;
    wfi_slot_head head = head_of(operation);
    uint64_t ours = wfi_slots_check(&head);
    wfi_slots_waited waits = wfi_slots_waits(&share->piece);
    size_t places = share->slots.members, i = waits == WFI_SLOTS_FOR_ROOT ? share->piece.root : 0;
    size_t end = waits == WFI_SLOTS_FOR_ALL ? places : waits == WFI_SLOTS_FOR_ROOT ? i + 1 : 0;
    for (; i < end; i++)
        if (wfi_slots_read_check(&share->slots, i, share->turn) != ours)
            return i;
    return places;
}

static wfi_group_member *member_at(const weft_group *group, size_t place)
{
    return &group->members[group->share.by_place[place]];
}

/* The member at that place has called another operation, as its head says: ends the group. */
static void disagree(const wfi_operation *operation, size_t place, const wfi_slot_head *head)
{
    weft_group *group = operation->group;
    wfi_signature theirs = signature_of(head);
    int rank = member_at(group, place)->rank;
    bool is_known = head->number == operation->number && theirs.kind < WFI_OPERATION_KINDS;
    if (!is_known || wfi_operation_check(operation, group->share.by_place[place], &theirs))
        wfi_group_break_for(group, WEFT_ERR_STATE, rank, "operation %llu, %s: rank %d has called another operation%s",
                            (unsigned long long)operation->number, wfi_operation_names[operation->collective.kind],
                            rank, is_known ? " before it" : "");
}

/* Ends the group and returns false if a member called another operation. */
static bool all_agree(const wfi_operation *operation)
{
    weft_group *group = operation->group;
    size_t other = find_disagreement(operation);
    if (other == group->share.slots.members)
        return true;
    wfi_slot_head head = wfi_slots_read_head(&group->share.slots, other, group->share.turn);
    disagree(operation, other, &head);
    return false;
}

/*
 * All members have arrived at the turn before. Ends the group and returns false if one of them called another
 * operation in that turn. This member has compared only the heads of the members for which it waited then. The heads do
 * not change before this member arrives at its next turn.
 */
static bool all_agreed_before(weft_group *group)
{
    wfi_share *share = &group->share;
    uint64_t before = share->turn - 1;
    for (size_t i = 0; share->agreed < before && i < share->slots.members; i++) {
        wfi_slot_head head = wfi_slots_read_head(&share->slots, i, before);
        wfi_signature ours = signature_of(&share->head), theirs = signature_of(&head);
        char text[WFI_SIGNATURE_TEXT], other[WFI_SIGNATURE_TEXT];
        bool is_known = head.number == share->head.number && theirs.kind < WFI_OPERATION_KINDS &&
                        !wfi_operation_signature_equals(&ours, &theirs); /* otherwise they differed before */
        int rank = member_at(group, i)->rank;
        if (is_same(&share->head, &head))
            continue;
        wfi_group_break_for(group, WEFT_ERR_STATE, rank, "operation %llu: rank %d called %s, and rank %d %s",
                            (unsigned long long)share->head.number, wfi_agent_rank(group->agent),
                            wfi_operation_signature_text(&ours, true, text), rank,
                            is_known ? wfi_operation_signature_text(&theirs, true, other) : "another operation");
        return false;
    }
    share->agreed = before;
    return true;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static void wake(weft_group *group, size_t place)
{
    wfi_peer *peer = member_at(group, place)->peer;
    if (wfi_slots_needs_wakeup(&group->share.slots, place) && peer && !wfi_peer_wake(peer))
        wfi_group_send_share(group, group->share.by_place[place], WFI_SHARE_WAKE);
}

static void wake_others(weft_group *group)
{
    wfi_slots_futex_wake(&group->share.slots);
    for (size_t i = 0; i < group->share.slots.members; i++)
        wake(group, i);
}

/* Whether it is a barrier or an allreduce in two levels. */
static bool has_two_turns(const wfi_operation *operation)
{
    wfi_operation_kind kind = operation->collective.kind;
    return operation->group->share.part != WFI_PART_WHOLE && (kind == WFI_BARRIER || kind == WFI_ALLREDUCE);
}

static wfi_operation *first_of(const weft_group *group)
{
    return wfi_list_empty(&group->share.queue) ? NULL
                                               : wfi_container_of(group->share.queue.next, wfi_operation, share.link);
}

void wfi_share_compare(const wfi_operation *operation)
{
    const wfi_share *share = &operation->group->share;
    bool is_first = operation == first_of(operation->group);
    if (share->state != WFI_SHARE_YES || share->quick)
        return;
    wfi_slot_head ours = head_of(operation);
    /* It has a turn, in which it waits for members that have not arrived; or it will have the next one, or none. */
    uint64_t turn = share->turn + !(is_first && operation->share.has_turn);
    for (size_t i = 0; i < share->slots.members && !operation->group->over; i++) {
        if (i == share->slots.me || !wfi_slots_has(&share->slots, i, WFI_SLOTS_ARRIVED, turn))
            continue;
        wfi_slot_head head = wfi_slots_read_head(&share->slots, i, turn);
        if (!is_same(&ours, &head) && (is_first || head.number == ours.number))
            disagree(operation, i, &head);
    }
}

/* Whether all members have set that flag to that turn. */
static bool have_all(wfi_share *share, wfi_slots_flag flag, uint64_t turn)
{
    return wfi_slots_have(&share->slots, flag, turn, &share->first_missing);
}

/* In a second turn, a member waits for the leader before it sets its own flag: slots.h, TWO LEVELS. */
static bool is_reached(wfi_share *share)
{
    if (share->stage == WFI_SHARE_ROOM && !share->is_second)
        return share->all_at + 1 >= share->turn || have_all(share, WFI_SLOTS_ARRIVED, share->turn - 1);
    if (share->stage == WFI_SHARE_REDUCED)
        return have_all(share, WFI_SLOTS_REDUCED, share->turn);
    wfi_slots_waited waits = wfi_slots_waits(&share->piece);
    if (waits == WFI_SLOTS_FOR_ALL)
        return have_all(share, WFI_SLOTS_ARRIVED, share->turn);
    return waits == WFI_SLOTS_FOR_NONE ||
           wfi_slots_has(&share->slots, share->piece.root, WFI_SLOTS_ARRIVED, share->turn);
}

/* wfi_progress_hook.is_due. Called with hooks_lock held. */
static bool is_due(wfi_progress_hook *hook)
{
    return is_reached(wfi_container_of(hook, wfi_share, hook));
}

static void continue_turn(wfi_operation *operation);

static void stage_reached(wfi_progress_hook *hook)
{
    wfi_share *share = wfi_container_of(hook, wfi_share, hook);
    continue_turn(first_of(wfi_container_of(share, weft_group, share)));
}

/* Enters a stage. Returns whether it is reached already; otherwise stage_reached is called when it is. */
static bool await_stage(wfi_operation *operation, wfi_share_stage stage)
{
    weft_group *group = operation->group;
    wfi_share *share = &group->share;
    share->stage = stage;
    share->first_missing = 0;
    bool reached = is_reached(share);
    wfi_slots_set_need_wakeup(&share->slots, !reached);
    if (reached)
        return true;
    share->hook.is_due = is_due;
    share->hook.run = stage_reached;
    wfi_progress_hook_add(&group->agent->net->progress, &share->hook);
    return false;
}

/* Sets this member's flag, and wakes the others if they may wait only for it. */
static void set_flag(const wfi_operation *operation, wfi_slots_flag flag)
{
    weft_group *group = operation->group;
    wfi_share *share = &group->share;
    size_t first = 0;
    wfi_slots_set(&share->slots, flag, share->turn);
    bool is_last = wfi_slots_have(&share->slots, flag, share->turn, &first);
    if (is_last && flag == WFI_SLOTS_ARRIVED)
        share->all_at = share->turn;
    bool gives = (share->piece.kind == WFI_BROADCAST || share->piece.kind == WFI_SCATTER) &&
                 share->piece.me == share->piece.root;
    if (is_last && share->part == WFI_PART_GIVE && has_two_turns(operation))
        wake(group, share->piece.root);
    else if (gives || (is_last && !has_two_turns(operation)))
        wake_others(group);
}

/* ---- Working ----------------------------------------------------------------------------------------------------- */

static const wfi_step *step_of(const wfi_operation *operation)
{
    return &operation->schedule.steps[operation->share.step];
}

static wfi_slots_work work_of(const wfi_operation *operation)
{
    const wfi_share *share = &operation->group->share;
    bool is_whole = share->part == WFI_PART_WHOLE; /* a quick operation has no steps */
    uint8_t *input = wfi_operation_address(operation, is_whole ? wfi_at(WFI_INPUT, 0) : step_of(operation)->a);
    uint8_t *output = wfi_operation_address(operation, is_whole ? wfi_at(WFI_OUTPUT, 0) : step_of(operation)->to);
    return (wfi_slots_work){.slots = &share->slots,
                            .collective = &share->piece,
                            .turn = share->turn,
                            .dtype = operation->dtype,
                            .how = operation->how,
                            .streams =
                                share->slots.members == 2 && wfi_part_bytes(&operation->collective) > STREAM_BYTES,
                            .input = input,
                            .output = output ? output + operation->share.at * operation->collective.element : NULL};
}

/* The place on this host of the root, or of the leader of the host if the root is on another one. */
static size_t place_of_root(const wfi_operation *operation)
{
    const wfi_share *share = &operation->group->share;
    size_t place = 0, leader = wfi_leader_of(&operation->collective, share->by_place[0]);
    while (share->by_place[place] != leader)
        place++;
    return place;
}

/* The elements of the operation's next piece. Only an allreduce has several. */
static size_t piece_of(const wfi_operation *operation)
{
    size_t left = operation->collective.count - operation->share.at,
           most = WFI_SLOT_BYTES / operation->collective.element;
    return operation->collective.kind == WFI_ALLREDUCE && left > most ? most : left;
}

static bool is_last_piece(const wfi_operation *operation)
{
    return operation->share.at + piece_of(operation) == operation->collective.count;
}

static void begin_turn(wfi_operation *operation, wfi_part part)
{
    wfi_share *share = &operation->group->share;
    operation->share.has_turn = true;
    share->stage = WFI_SHARE_ROOM;
    share->turn++;
    share->part = part;
    share->piece = operation->collective;
    share->piece.count = piece_of(operation);
    share->is_second = has_two_turns(operation) && (part == WFI_PART_SPREAD || part == WFI_PART_TAKE);
    if (share->part == WFI_PART_WHOLE)
        return;
    if (has_two_turns(operation))
        share->piece.kind = share->is_second ? WFI_BROADCAST : WFI_REDUCE;
    share->piece.members = share->slots.members;
    share->piece.me = share->slots.me;
    share->piece.root = place_of_root(operation);
    share->piece.divides = false; /* the leaders divide */
    share->piece.in_place = operation->collective.in_place && step_of(operation)->to.buffer == WFI_OUTPUT;
}

/* This member's slot is free: copies the next piece of the data, and the operation's signature, into it. */
static void fill_slot(const wfi_operation *operation)
{
    wfi_share *share = &operation->group->share;
    wfi_slots_work work = work_of(operation);
    share->all_at = share->turn - 1;
    share->head = head_of(operation);
    wfi_slots_write_head(&share->slots, share->turn, &share->head);
    wfi_slots_put(&work);
}

static void compute(const wfi_operation *operation)
{
    wfi_slots_work work = work_of(operation);
    if (operation->group->share.stage == WFI_SHARE_DATA)
        wfi_slots_first(&work);
    else
        wfi_slots_second(&work);
}

static void leave_queue(wfi_operation *operation)
{
    wfi_list_remove(&operation->share.link);
    operation->share.has_turn = false;
    operation->share.step = WFI_NO_STEP;
    operation->share.left = 0;
}

/* Called when this turn's results are written, or the operation has failed. Begins the next piece, or ends the step. */
static void complete(wfi_operation *operation)
{
    weft_group *group = operation->group;
    wfi_step_id step = operation->share.step;
    operation->share.has_turn = false;
    if (!operation->failing && !is_last_piece(operation)) {
        operation->share.at += piece_of(operation);
        run_queue(group);
        return;
    }
    operation->share.step = WFI_NO_STEP;
    if (operation->failing || !--operation->share.left)
        leave_queue(operation);
    operation->share.done(operation, step); /* frees the operation, and perhaps the group, when the lock is released */
    run_queue(group);
}

static void computed(wfi_operation *operation)
{
    bool was_first = operation->group->share.stage == WFI_SHARE_DATA;
    if (operation->failing || !was_first || !wfi_slots_has_second(&operation->group->share.piece)) {
        complete(operation);
        return;
    }
    set_flag(operation, WFI_SLOTS_REDUCED);
    if (await_stage(operation, WFI_SHARE_REDUCED))
        continue_turn(operation);
}

/* Called without the lock. */
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

/* The data are there: checks that their members called the same operation, then computes. */
static void proceed(wfi_operation *operation)
{
    wfi_share *share = &operation->group->share;
    if (share->stage == WFI_SHARE_DATA && !all_agree(operation))
        return; /* all_agree has ended the group, which fails this operation */
    bool all_came = wfi_slots_waits(&share->piece) == WFI_SLOTS_FOR_ALL || share->is_second;
    if (share->stage == WFI_SHARE_DATA && all_came)
        share->all_at = share->agreed = share->turn;
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

/* The first operation of the queue has reached its stage. */
static void continue_turn(wfi_operation *operation)
{
    if (operation->group->share.stage == WFI_SHARE_ROOM) {
        if (!operation->group->share.is_second && !all_agreed_before(operation->group))
            return; /* the group is over, which fails this operation */
        fill_slot(operation);
        set_flag(operation, WFI_SLOTS_ARRIVED);
        if (!await_stage(operation, WFI_SHARE_DATA))
            return;
    }
    proceed(operation);
}

/* Runs the operations of the queue one after another, until one has to wait for its step or the other members. */
static void run_queue(weft_group *group)
{
    wfi_share *share = &group->share;
    wfi_operation *first;
    if (share->runs_queue || share->quick)
        return;
    share->runs_queue = true;
    while (!group->over && (first = first_of(group)) && !first->share.has_turn && first->share.step != WFI_NO_STEP) {
        begin_turn(first, step_of(first)->part);
        if (await_stage(first, WFI_SHARE_ROOM))
            continue_turn(first);
    }
    share->runs_queue = false;
}

void wfi_share_enter(wfi_operation *operation, void (*done)(wfi_operation *operation, wfi_step_id step))
{
    if (!operation->schedule.shares)
        return;
    operation->share.done = done;
    operation->share.left = operation->schedule.shares;
    operation->share.step = WFI_NO_STEP;
    wfi_list_push_back(&operation->group->share.queue, &operation->share.link);
}

void wfi_share_begin(wfi_operation *operation, wfi_step_id step)
{
    operation->share.step = step;
    if (operation->completes_locally) {
        begin_turn(operation, step_of(operation)->part);
        wfi_share_finish(operation);
    } else {
        run_queue(operation->group);
    }
}

/* ---- Quick operations -------------------------------------------------------------------------------------------- */

bool wfi_share_is_free(const weft_group *group)
{
    const wfi_share *share = &group->share;
    return !share->quick && wfi_list_empty(&share->queue) && share->all_at == share->turn &&
           share->agreed == share->turn;
}

/* Like set_flag, without the lock: takes it to wake members that sleep on their fabrics' descriptors. */
static void set_flag_alone(weft_group *group, wfi_slots_flag flag)
{
    const wfi_share *share = &group->share;
    size_t first = 0;
    bool any_needs_wakeup = false;
    wfi_slots_set(&share->slots, flag, share->turn);
    if (!wfi_slots_have(&share->slots, flag, share->turn, &first))
        return;
    wfi_slots_futex_wake(&share->slots);
    for (size_t i = 0; i < share->slots.members; i++)
        any_needs_wakeup = any_needs_wakeup || wfi_slots_needs_wakeup(&share->slots, i);
    if (!any_needs_wakeup)
        return;
    wfi_net_lock(group->agent->net);
    wake_others(group);
    wfi_net_unlock(group->agent->net);
}

/* is_reached, for a quick operation: it waits for all members. */
static bool quick_is_reached(wfi_share *share)
{
    bool reduces = share->stage == WFI_SHARE_REDUCED;
    return have_all(share, reduces ? WFI_SLOTS_REDUCED : WFI_SLOTS_ARRIVED, share->turn);
}

/* Sleeps on the futex until the stage is reached, the group is over, or until_ns. */
static void futex_wait(weft_group *group, uint64_t until_ns)
{
    wfi_share *share = &group->share;
    wfi_progress *progress = &group->agent->net->progress;
    wfi_aside_begin(progress);
    for (uint64_t now = 0; now < until_ns;) {
        uint32_t value = wfi_slots_futex_prepare(&share->slots);
        bool is_over = quick_is_reached(share) || atomic_load(&share->stop);
        now = wfi_now(progress->clock);
        if (!is_over && now < until_ns)
            wfi_slots_futex_wait(&share->slots, value, until_ns - now);
        wfi_slots_futex_finish(&share->slots);
        if (is_over)
            break;
    }
    wfi_aside_end(progress);
}

static bool spin_some(wfi_share *share, int spins)
{
    for (int i = 0; i < spins; i++) {
        wfi_relax();
        if (quick_is_reached(share))
            return true;
    }
    return false;
}

/*
 * Waits for a stage without the lock: spins, then sleeps on the futex. False: it takes long, or the group is over. With
 * more members than cores it does not spin, because that would take the core from another member.
 */
static bool wait_unlocked(wfi_operation *operation, wfi_share_stage stage)
{
    weft_group *group = operation->group;
    wfi_share *share = &group->share;
    wfi_progress *progress = &group->agent->net->progress;
    bool is_crowded = share->slots.members > (size_t)progress->token.cores;
    int spins = is_crowded ? 1 : SPINS;
    share->stage = stage;
    share->first_missing = 0;
    if (quick_is_reached(share))
        return true;
    if (progress->fibers) /* the simulation: the others run only if this fiber yields */
        return false;
    if (spin_some(share, spins))
        return true;
    wfi_spinning spinning;
    uint64_t now = wfi_now(progress->clock);
    if (!operation->span.begun_ns)
        operation->span.begun_ns = now; /* half a microsecond late: see is_timed in operation.c */
    operation->share.waited = true;
    wfi_spin_begin(&spinning);
    if (is_crowded)
        spinning.yields = WFI_YIELDS - 1;
    while (!atomic_load_explicit(&share->stop, memory_order_relaxed) &&
           wfi_spin_goes_on(progress, WFI_OTHER, &spinning, now)) {
        if (spin_some(share, spins)) {
            wfi_spin_restart(progress, WFI_OTHER, &spinning, now);
            return true;
        }
        now = wfi_now(progress->clock);
    }
    uint64_t until = wfi_deadline_after(operation->span.begun_ns, operation->share.futex_wait_ms);
    if (now < until)
        futex_wait(group, until);
    return quick_is_reached(share);
}

bool wfi_share_run(wfi_operation *operation)
{
    weft_group *group = operation->group;
    wfi_share *share = &group->share;
    wfi_slots_set_need_wakeup(&share->slots, false);
    for (;;) {
        begin_turn(operation, WFI_PART_WHOLE);
        fill_slot(operation);
        set_flag_alone(group, WFI_SLOTS_ARRIVED);
        if (!wait_unlocked(operation, WFI_SHARE_DATA) || find_disagreement(operation) < share->slots.members)
            return false;
        share->all_at = share->agreed = share->turn;
        compute(operation);
        if (wfi_slots_has_second(&share->piece)) {
            set_flag_alone(group, WFI_SLOTS_REDUCED);
            if (!wait_unlocked(operation, WFI_SHARE_REDUCED))
                return false;
            compute(operation);
        }
        if (is_last_piece(operation))
            return true;
        operation->share.at += piece_of(operation);
    }
}

void wfi_share_ended(weft_group *group)
{
    group->share.quick = NULL;
    run_queue(group);
}

void wfi_share_resume(wfi_operation *operation, void (*done)(wfi_operation *operation, wfi_step_id step))
{
    wfi_share *share = &operation->group->share;
    operation->share.done = done;
    operation->share.left = 1;
    operation->share.step = 0;
    operation->share.at = share->quick->share.at;
    operation->share.has_turn = true;
    wfi_list_push_front(&share->queue, &operation->share.link);
    share->quick = NULL;
    if (!operation->group->over && await_stage(operation, share->stage))
        continue_turn(operation);
}

/* ---- When the group is over -------------------------------------------------------------------------------------- */

/* Whether the data of the root are in its slot. Then a member that only receives needs nothing else. */
static bool has_of_root(const wfi_operation *operation)
{
    const wfi_share *share = &operation->group->share;
    return wfi_slots_has(&share->slots, share->piece.root, WFI_SLOTS_ARRIVED, share->turn) &&
           find_disagreement(operation) == share->slots.members;
}

bool wfi_share_has_all(const wfi_operation *operation, wfi_step_id step)
{
    const wfi_share *share = &operation->group->share;
    size_t first = 0;
    if (!operation->share.has_turn || operation->share.step != step || !is_last_piece(operation))
        return false; /* without the turn, a quick operation may be writing `piece` */
    wfi_slots_flag last = wfi_slots_has_second(&share->piece) ? WFI_SLOTS_REDUCED : WFI_SLOTS_ARRIVED;
    if (operation->share.computes && last == WFI_SLOTS_ARRIVED)
        return true;
    if (wfi_slots_waits(&share->piece) == WFI_SLOTS_FOR_ROOT)
        return has_of_root(operation);
    return share->stage == (last == WFI_SLOTS_REDUCED ? WFI_SHARE_REDUCED : WFI_SHARE_DATA) &&
           wfi_slots_have(&share->slots, last, share->turn, &first) &&
           find_disagreement(operation) == share->slots.members;
}

bool wfi_share_has_early(const wfi_operation *operation, uint64_t number)
{
    const wfi_share *share = &operation->group->share;
    bool is_next = operation->schedule.shares && !share->quick && wfi_list_empty(&share->queue);
    if (!is_next || wfi_slots_waits(&operation->collective) != WFI_SLOTS_FOR_ROOT)
        return false;
    size_t root = place_of_root(operation);
    if (!wfi_slots_has(&share->slots, root, WFI_SLOTS_ARRIVED, share->turn + 1))
        return false;
    wfi_slot_head ours = head_of(operation), head = wfi_slots_read_head(&share->slots, root, share->turn + 1);
    ours.number = number;
    return is_same(&ours, &head);
}

void wfi_share_finish(wfi_operation *operation)
{
    wfi_share *share = &operation->group->share;
    if (!operation->share.has_turn || operation->share.computes)
        return;
    wfi_progress_hook_remove(&operation->group->agent->net->progress, &share->hook);
    if (share->stage == WFI_SHARE_ROOM)
        share->stage = WFI_SHARE_DATA; /* no other member needs this one's flag now */
    proceed(operation);
}

void wfi_share_drop(wfi_operation *operation)
{
    if (operation->share.computes || !operation->share.left)
        return; /* run_computation ends a computing operation; another one is not in the queue */
    if (operation->share.has_turn)
        wfi_progress_hook_remove(&operation->group->agent->net->progress, &operation->group->share.hook);
    leave_queue(operation);
}

bool wfi_share_waits(const wfi_operation *operation, size_t member)
{
    const wfi_share *share = &operation->group->share;
    size_t place = 0;
    if (!operation->share.has_turn || operation->share.computes)
        return false;
    while (place < share->slots.members && share->by_place[place] != member)
        place++;
    if (place == share->slots.members)
        return false;
    bool needs_root = wfi_slots_waits(&share->piece) == WFI_SLOTS_FOR_ROOT;
    if (share->stage == WFI_SHARE_ROOM && !share->is_second)
        return !wfi_slots_has(&share->slots, place, WFI_SLOTS_ARRIVED, share->turn - 1);
    wfi_slots_flag flag = share->stage == WFI_SHARE_REDUCED ? WFI_SLOTS_REDUCED : WFI_SLOTS_ARRIVED;
    return (!needs_root || place == share->piece.root) && !wfi_slots_has(&share->slots, place, flag, share->turn);
}

void wfi_share_end(weft_group *group)
{
    wfi_net_timer_clear(group->agent->net, &group->share.timer);
}
