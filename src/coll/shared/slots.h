/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slots.h - the memory that the members of a group on one host share, and the operations in it. In this folder, these
 * are the members, and they are numbered by their places on the host.
 *
 * Each member has two slots of data, and flags. Members work in numbered TURNS, the first is 1. An operation takes one
 * turn, except a large allreduce, which takes one turn for each piece of 64 KiB. The two slots are used in alternation:
 * one in odd turns, the other in even turns. In a turn each member copies its data into the slot of that turn, and then
 * sets its flag ARRIVED to the number of the turn. When all flags have that turn, each member computes its result from
 * all slots. Sums are made in the same pairs everywhere, so all members get the same bits. For a large sum each member
 * computes one part in its output, copies it into its slot, and sets its flag REDUCED. When all have done that, each
 * member copies the parts of the others.
 *
 * ONE LINE. The flag ARRIVED of a turn, a check of the operation and up to 48 bytes of data are one line of the cache.
 * So a small operation moves one line from each member to each other one. There are two such lines for each member, for
 * odd and for even turns, like the slots.
 *
 * A member begins a turn only after it has ended the turn before. So when all members have arrived at turn N, all
 * members have finished reading the slots of turn N - 1, and turn N + 1 may write them. A member waits for that before
 * it writes. In an operation with a root not all members wait for each other (wfi_slots_waits): a broadcast ends at the
 * root when its data are in its slot. So the root may be one turn ahead of the slowest member.
 *
 * TWO LEVELS. If the group has several hosts, an operation with a root takes one turn, as above: a reduce or a gather
 * to the leader of the host, a broadcast or a scatter from it. The root leads its host, and member 0 each other one. So
 * the leader may change from one operation to the next.
 *
 * A barrier or an allreduce takes two turns. In the first one all members give their data to member 0. In the second
 * one member 0 gives the result to the others. They wait for its flag before they set their own, so each sleeps once.
 * Its flag of turn N says that all have arrived at turn N - 1. If turn N is such a second turn, no member waits before
 * it writes its slot of turn N + 1. Only member 0 has read slots in turn N - 1, and it has arrived at turn N. The heads
 * of both turns need not be compared again. Member 0 has compared those of all in the first turn, and each member that
 * of member 0 in the second.
 *
 * TRUST. Other members can write anything into this memory at any time. Wrong data give a wrong result, a wrong head
 * ends the group, and a missing flag makes the operation wait until its time limit. No access is out of bounds, because
 * sizes and positions come from this member's own wfi_collective.
 *
 * WAITING. A member that waits reads the flags. It sleeps in one of two ways: in poll(2) on the descriptors of its
 * fabrics, for which it sets need_wakeup, or on the futex in this memory. First it writes here that it sleeps, then it
 * reads the flags once more. A member that has set a flag checks afterwards whether others sleep. All of this is
 * sequentially consistent, so no wake-up is lost. If a member is killed while it sleeps on the futex, each turn of the
 * others takes a system call more.
 *
 * LOCKING: none. The flags are atomic. One thread at a time works for one member.
 */
#ifndef WFI_SLOTS_H
#define WFI_SLOTS_H

#include "coll/algorithm/algorithm.h"

typedef struct wfi_slots {
    uint8_t *memory; /* NULL: none */
    size_t members, me;
} wfi_slots;

#define WFI_SLOTS_LINE_BYTES 48 /* the most data of a member that are in the line of its flag */

typedef enum wfi_slots_flag { WFI_SLOTS_ARRIVED, WFI_SLOTS_REDUCED } wfi_slots_flag;

/* Says which operation a member runs in a turn, so that the others can detect a different one. */
typedef struct wfi_slot_head {
    uint64_t number;    /* the operation's number in its group */
    uint64_t signature; /* packed */
    uint64_t count;
    uint64_t history; /* a hash of the signatures of this and all earlier operations of the group */
} wfi_slot_head;

/* ---- slots.c ----------------------------------------------------------------------------------------------------- */

size_t wfi_slots_bytes(size_t members); /* size of the memory of `members` members */
/* Where a member's data of a turn are, of which it has `bytes`. */
uint8_t *wfi_slots_data(const wfi_slots *slots, size_t member, uint64_t turn, size_t bytes);
void wfi_slots_write_head(const wfi_slots *slots, uint64_t turn, const wfi_slot_head *head);
wfi_slot_head wfi_slots_read_head(const wfi_slots *slots, size_t member, uint64_t turn);
/* A check of the head. That of each member is in the line of its flag, so that only different heads have to be read. */
uint64_t wfi_slots_check(const wfi_slot_head *head);
uint64_t wfi_slots_read_check(const wfi_slots *slots, size_t member, uint64_t turn);
void wfi_slots_set(const wfi_slots *slots, wfi_slots_flag flag, uint64_t turn); /* this member's flag */
bool wfi_slots_has(const wfi_slots *slots, size_t member, wfi_slots_flag flag, uint64_t turn);
/* Whether all members from *first on have set `flag` to `turn`. Sets *first to the first member that has not. */
bool wfi_slots_have(const wfi_slots *slots, wfi_slots_flag flag, uint64_t turn, size_t *first);
/* Whether this member may sleep in poll(2), so that others have to wake it. It then reads the flags again. */
void wfi_slots_set_need_wakeup(const wfi_slots *slots, bool need_wakeup);
bool wfi_slots_needs_wakeup(const wfi_slots *slots, size_t member);
/*
 * A sleep on the futex. The member calls futex_prepare and reads the flags again. Then it calls futex_wait with the
 * value from futex_prepare, which returns when another member calls futex_wake or `ns` are over. At the end it calls
 * futex_finish. futex_wake wakes all members that sleep so.
 */
uint32_t wfi_slots_futex_prepare(const wfi_slots *slots);
void wfi_slots_futex_wait(const wfi_slots *slots, uint32_t value, uint64_t ns);
void wfi_slots_futex_finish(const wfi_slots *slots);
void wfi_slots_futex_wake(const wfi_slots *slots);

/* ---- work.c ------------------------------------------------------------------------------------------------------ */

/* The members whose flag ARRIVED a member needs before it computes its result. */
typedef enum wfi_slots_waited {
    WFI_SLOTS_FOR_ALL,
    WFI_SLOTS_FOR_ROOT, /* broadcast and scatter, except at the root */
    WFI_SLOTS_FOR_NONE, /* the root of broadcast and scatter; reduce and gather, except at the root */
} wfi_slots_waited;

wfi_slots_waited wfi_slots_waits(const wfi_collective *collective);

/* One turn, as this member runs it. */
typedef struct wfi_slots_work {
    const wfi_slots *slots;
    const wfi_collective *collective;
    uint64_t turn;
    weft_dtype dtype;
    weft_op how;
    bool streams;      /* stores into the slot bypass the cache */
    const void *input; /* ignored for an allreduce and a broadcast, which read `output` */
    void *output;
} wfi_slots_work;

void wfi_slots_put(const wfi_slots_work *work); /* writes this member's data into its slot */
/* Whether the operation has a second step, for which all members must have the flag REDUCED. */
bool wfi_slots_has_second(const wfi_collective *collective);
size_t wfi_slots_work_bytes(
    const wfi_collective *collective);             /* estimate of the bytes that one step reads and writes */
void wfi_slots_first(const wfi_slots_work *work);  /* call it when those that are waited for have ARRIVED */
void wfi_slots_second(const wfi_slots_work *work); /* call it when all members have REDUCED */

#endif
