/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule.h - what one member does in an operation: steps, each of which may begin when the steps that it waits for
 * are done. Algorithms (algorithm/) build it, run.c runs it.
 *
 * An algorithm adds steps in an order in which a single thread could do them. The memory that steps use determines
 * which wait for which: a step waits for earlier steps that write what it reads or writes, or read what it writes.
 * All others may run concurrently; so a tree of chunks becomes a pipeline without further code.
 *
 * Two members that exchange data build schedules that fit: the n-th send to a member is received by that member's
 * n-th recv from this one, in the order in which both were added. Source of the form: T. Hoefler, A. Lumsdaine, W.
 * Rehm, "Implementation and Performance Analysis of Non-Blocking Collective Operations for MPI", SC 2007.
 *
 * LOCKING. None: one thread builds a schedule, before other threads see it.
 */
#ifndef WFI_SCHEDULE_H
#define WFI_SCHEDULE_H

#include "mem/mem.h"

#include <weft/reduce.h>
#include <weft/tensor.h>

typedef enum wfi_step_kind {
    WFI_STEP_SEND,    /* `a` to `peer` */
    WFI_STEP_RECV,    /* from `peer` to `to` */
    WFI_STEP_COMBINE, /* to = a (how) b */
    WFI_STEP_COPY,    /* to = a */
    WFI_STEP_DIVIDE,  /* to /= the group's size */
    WFI_STEP_CARRY,   /* the group's carrier runs the whole operation */
    WFI_STEP_SHARE,   /* `part` of the operation is done in memory that the members of a host share (coll/share.c) */
} wfi_step_kind;

/*
 * The part of an operation that a WFI_STEP_SHARE does. The root leads its host, and the first member leads each other
 * one.
 */
typedef enum wfi_part {
    WFI_PART_WHOLE,   /* all of it; all members are on one host */
    WFI_PART_GIVE,    /* this member gives `a` to its leader */
    WFI_PART_COLLECT, /* the leader: to = the sum of what all members of the host give, or in a gather all of that */
    WFI_PART_SPREAD,  /* the leader gives `a` to the others; in a scatter a part of it to each, its own part in `to` */
    WFI_PART_TAKE,    /* this member gets that: in `to` */
} wfi_part;

/* The memory of an operation that steps use. */
typedef enum wfi_buffer { WFI_INPUT, WFI_OUTPUT, WFI_SCRATCH, WFI_BUFFERS } wfi_buffer;

typedef struct wfi_operand { /* in one of the buffers; `offset` in bytes */
    wfi_buffer buffer;
    size_t offset;
} wfi_operand;

typedef uint32_t wfi_step_id;
#define WFI_NO_STEP UINT32_MAX

typedef struct wfi_step {
    wfi_step_kind kind;
    wfi_part part; /* of a WFI_STEP_SHARE */
    bool begun, done;
    int peer;             /* a member's index */
    uint32_t slot;        /* of a send or recv: its number among those with that peer */
    uint32_t waits;       /* number of steps that it still waits for */
    uint32_t edges;       /* the first of the steps that wait for it; WFI_NO_STEP */
    wfi_step_id next;     /* the next recv from this peer */
    wfi_step_id ready;    /* the next step in the list of those that may begin */
    wfi_operand to, a, b; /* see the kind */
    size_t size;          /* bytes */
    void *arrival;        /* of a recv: data that came before it began (group.h) */
    void *bulk;           /* set while it moves data that do not fit a message (group.h) */
} wfi_step;

typedef struct wfi_edge {
    wfi_step_id step; /* the step that waits */
    uint32_t next;
} wfi_edge;

/* A use of memory that later steps may have to wait for. */
typedef struct wfi_use {
    wfi_step_id step;
    bool writes;
    size_t begin, end;
} wfi_use;

typedef struct wfi_uses { /* of one buffer */
    wfi_use *items;
    size_t count, capacity;
} wfi_uses;

typedef struct wfi_schedule {
    wfi_step *steps;
    wfi_edge *edges;
    size_t step_count, step_capacity, edge_count, edge_capacity;
    uint32_t *sends, *recvs;             /* by member: how many there are */
    wfi_step_id *first_recv, *last_recv; /* by member */
    wfi_uses uses[WFI_BUFFERS];          /* while it is built */
    size_t scratch;                      /* bytes of it that the steps use */
    size_t rooms;                        /* rooms of scratch given to pieces so far: pieces.c */
    size_t shares; /* number of steps WFI_STEP_SHARE. Those of one schedule use the same memory, so they are in order */
    bool failed;   /* no memory */
} wfi_schedule;

void wfi_schedule_init(wfi_schedule *schedule, size_t members);
void wfi_schedule_built(wfi_schedule *schedule); /* frees memory that is needed only for building */
void wfi_schedule_fini(wfi_schedule *schedule);
/* Each adds a step. `to` may be `a` or `b`; otherwise they do not overlap. */
void wfi_schedule_send(wfi_schedule *schedule, size_t peer, wfi_operand from, size_t size);
void wfi_schedule_recv(wfi_schedule *schedule, size_t peer, wfi_operand to, size_t size);
void wfi_schedule_combine(wfi_schedule *schedule, wfi_operand to, wfi_operand a, wfi_operand b, size_t size);
void wfi_schedule_copy(wfi_schedule *schedule, wfi_operand to, wfi_operand from, size_t size);
void wfi_schedule_divide(wfi_schedule *schedule, wfi_operand at, size_t size);
void wfi_schedule_carry(wfi_schedule *schedule);
/* `reads`: bytes of `a`; `writes`: bytes of `to`. Either may be 0. */
void wfi_schedule_share(wfi_schedule *schedule, wfi_part part, wfi_operand a, size_t reads, wfi_operand to,
                        size_t writes);

static inline wfi_operand wfi_at(wfi_buffer buffer, size_t offset)
{
    return (wfi_operand){buffer, offset};
}

static inline wfi_operand wfi_beyond(wfi_operand place, size_t bytes)
{
    return (wfi_operand){place.buffer, place.offset + bytes};
}

#endif
