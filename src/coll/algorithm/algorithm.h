/* SPDX-License-Identifier: Apache-2.0 */
/*
 * algorithm.h - the algorithms of group operations, each of which builds one member's schedule
 * (coll/algorithm/schedule.h), and the rules that select one for each operation.
 *
 * All members build their schedules from the same wfi_collective, except `me`. LOCKING: none.
 */
#ifndef WFI_ALGORITHM_H
#define WFI_ALGORITHM_H

#include "coll/algorithm/schedule.h"

#include <stdio.h>

typedef enum wfi_operation_kind {
    WFI_BARRIER,
    WFI_ALLREDUCE,
    WFI_REDUCE,
    WFI_BROADCAST,
    WFI_ALLGATHER,
    WFI_REDUCE_SCATTER,
    WFI_GATHER,
    WFI_SCATTER,
    WFI_ALL_TO_ALL,
    WFI_KINDS_WITH_ALGORITHMS, /* the kinds above have algorithms */
    WFI_SENDRECV = WFI_KINDS_WITH_ALGORITHMS,
    WFI_GATHER_VALUES, /* an allgather of blocks of different sizes: values.c */
    WFI_OPERATION_KINDS,
} wfi_operation_kind;

extern const char *const wfi_operation_names[WFI_OPERATION_KINDS];

/*
 * An operation, as algorithms see it. Its memory:
 *   allreduce, broadcast   output: `count` elements, in place
 *   reduce                 input: `count`; output, only at the root: `count`, perhaps the same memory
 *   allgather              input: `count`; output: members * count, of which its own part may be the input
 *   gather, scatter        the longer one, of members * count, only at the root
 *   reduce_scatter         input: members * count; output: count
 *   all_to_all             both members * count
 */
typedef struct wfi_collective {
    wfi_operation_kind kind;
    size_t members, me, root;
    size_t count;           /* elements of one member's part */
    size_t element;         /* bytes of one element */
    bool divides;           /* divides the sum by `members` at the end */
    bool in_place;          /* the input is the output, or its own part of it */
    size_t chunk;           /* the most bytes of a step; a multiple of every element's size */
    const size_t *hosts;    /* by member: the first one of its host. Borrowed while a schedule is built */
    const size_t *by_place; /* the member at each place, if places are not members. Likewise borrowed */
    bool spans_hosts;       /* there are several hosts */
    bool has_levels;        /* and at least one of them has several members */
    /* The members of each host may come to share memory, and one host has several. The same on all members */
    bool hosts_may_share;
    /* The members of this host use the memory that they share. It may differ between the hosts of a group */
    bool uses_memory;
} wfi_collective;

/* The member at a place. */
static inline size_t wfi_member_at(const wfi_collective *collective, size_t place)
{
    return collective->by_place ? collective->by_place[place] : place;
}

typedef void (*wfi_build_fn)(const wfi_collective *collective, wfi_schedule *schedule);

void wfi_build_dissemination(const wfi_collective *collective, wfi_schedule *schedule); /* barrier */
void wfi_build_doubling(const wfi_collective *collective, wfi_schedule *schedule);      /* allreduce */
void wfi_build_rabenseifner(const wfi_collective *collective, wfi_schedule *schedule);  /* allreduce */
void wfi_build_bruck(const wfi_collective *collective, wfi_schedule *schedule);         /* allgather */
void wfi_build_ring(const wfi_collective *collective,
                    wfi_schedule *schedule); /* allreduce, allgather, reduce_scatter */
void wfi_build_tree(const wfi_collective *collective, wfi_schedule *schedule); /* allreduce, reduce, broadcast */
void wfi_build_two_level(const wfi_collective *collective,
                         wfi_schedule *schedule); /* barrier, allreduce, reduce, broadcast, gather, scatter */
void wfi_build_chain(const wfi_collective *collective, wfi_schedule *schedule);  /* reduce, broadcast */
void wfi_build_shared(const wfi_collective *collective, wfi_schedule *schedule); /* all */
void wfi_build_direct(const wfi_collective *collective,
                      wfi_schedule *schedule); /* allgather, reduce_scatter, gather, scatter, all_to_all */

/* ---- What they share: pieces.c ----------------------------------------------------------------------------------- */

/* `count` elements are divided into `parts`: where part i begins, in bytes. */
static inline size_t wfi_part_begin(const wfi_collective *collective, size_t parts, size_t i)
{
    return collective->count / parts * i * collective->element +
           (collective->count % parts * i / parts) * collective->element;
}

static inline size_t wfi_part_bytes(const wfi_collective *collective) /* of one member */
{
    return collective->count * collective->element;
}

/* Each adds steps of at most `chunk` bytes. An empty range has no step. `peer` is a place (wfi_member_at). */
void wfi_pieces_send(const wfi_collective *collective, wfi_schedule *schedule, size_t peer, wfi_operand from,
                     size_t size);
void wfi_pieces_recv(const wfi_collective *collective, wfi_schedule *schedule, size_t peer, wfi_operand to,
                     size_t size);
/* to = received data (how) to. It uses scratch memory, so a schedule that uses this must not use scratch otherwise. */
void wfi_pieces_recv_add(const wfi_collective *collective, wfi_schedule *schedule, size_t peer, wfi_operand to,
                         size_t size);
/* Receives into `room`, then to = room (how) b. */
void wfi_pieces_recv_combine(const wfi_collective *collective, wfi_schedule *schedule, size_t peer, wfi_operand room,
                             wfi_operand to, wfi_operand b, size_t size);
void wfi_pieces_copy(const wfi_collective *collective, wfi_schedule *schedule, wfi_operand to, wfi_operand from,
                     size_t size);
void wfi_pieces_divide(const wfi_collective *collective, wfi_schedule *schedule, wfi_operand at, size_t size);

/*
 * The rounds of an allgather in which each member has a block of its own size. Scratch from begins[i] to begins[i +
 * 1] belongs to the i-th member after this one. The own block is already there. doubling.c
 */
void wfi_bruck_rounds(const wfi_collective *collective, wfi_schedule *schedule, const size_t *begins);

#define WFI_SLOT_BYTES ((size_t)64 << 10) /* data of one member in memory that all share */
/* Whether the operation can be done in such memory: an allreduce in pieces, others if their data fit. shared.c */
bool wfi_slot_suits(const wfi_collective *collective);
size_t wfi_slot_need(const wfi_collective *collective); /* bytes of one member's data of the operation */

/* ---- Two levels: levels.c ---------------------------------------------------------------------------------------- */

/* The members of this host, its leader first, and the leaders of all hosts, the root first. */
typedef struct wfi_levels {
    size_t here_count, my_place;
    size_t host_count, my_host;
    size_t *here, *leaders;
    bool shares; /* the members of this host do their part of the operation in memory */
} wfi_levels;

/* The member that leads the host of `member`: the root, or the first one there. */
static inline size_t wfi_leader_of(const wfi_collective *collective, size_t member)
{
    size_t host = collective->hosts[member];
    return collective->hosts[collective->root] == host ? collective->root : host;
}

/* Reduce and broadcast: tree.c */
void wfi_build_two_trees(const wfi_collective *collective, const wfi_levels *levels, wfi_schedule *schedule);

/* ---- Selection: selection.c -------------------------------------------------------------------------------------- */

typedef struct wfi_rule {
    wfi_operation_kind kind;
    size_t members, bytes; /* the most for which the rule holds */
    const struct wfi_algorithm *algorithm;
} wfi_rule;

#define WFI_CARRIED UINT8_MAX /* the number of no algorithm: the carrier runs the operation (coll/carrier.h) */

typedef struct wfi_rules {
    wfi_rule *items;
    size_t count;
} wfi_rules;

/* Parses rules (weft/group.h). WEFT_ERR_INVALID: `problem` says which word is wrong. WEFT_ERR_MEMORY. */
weft_status wfi_rules_read(const char *text, wfi_rules *out, char *problem, size_t room);
void wfi_rules_fini(wfi_rules *rules);
/*
 * The algorithm for an operation: by the first rule that fits its members and the bytes of a part, otherwise by the
 * measured rules. Sets *which to its number, which is the same on all members.
 */
wfi_build_fn wfi_rules_choose(const wfi_rules *rules, const wfi_collective *collective, uint8_t *which);
const char *wfi_algorithm_name(uint8_t which);                     /* "?" if there is none of that number */
weft_status wfi_rules_copy(const wfi_rules *from, wfi_rules *out); /* WEFT_ERR_MEMORY */
/* Prints the rules, then the measured ones that apply to a group with the properties of that operation. */
void wfi_rules_print(const wfi_rules *rules, const wfi_collective *like, FILE *to);

#endif
