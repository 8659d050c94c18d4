/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.h - groups inside weft: members, operations in progress, and the messages between members.
 *
 * An OPERATION is a schedule (schedule.h) that run.c executes for this member. Its sends and recvs are messages of
 * type WFI_RPC_GROUP. Up to WFI_GROUP_EAGER bytes are part of the message (DATA), or up to WFI_GROUP_LONG in a long
 * one; then the sender's memory is free at once. Larger data are exposed to the receiver. DATA then holds their
 * address; the receiver pulls them and answers ACK, after which the sender's memory is free. A step waits only for
 * the bytes that it needs.
 *
 * NUMBERS. Collective operations of a group are numbered in the order of the calls; sends and recvs between two
 * members have separate numbers for each pair and direction (wfi_space). A member begins operations in this order,
 * and is never WFI_GROUP_AHEAD operations ahead of a member to which it sends: so the number of early messages is
 * bounded. A sender that has used half of this lead asks (ASK); the receiver answers (BEGUN) when it has caught up.
 *
 * EARLY. Messages for an operation that has not begun here wait in the group (early.c), and count against the agent's
 * memory budget. No message comes to a member that does not have the group (opening.h).
 *
 * SHARED MEMORY. If the fabric of the members passes descriptors (host), the members of each host get memory that
 * they share, when the group is opened (sharing.c). If all members are on one host, an operation whose data fit the
 * slots of that memory is then one step (WFI_STEP_SHARE), for which no message is sent (share.c). If there are several
 * hosts, an operation in two levels (algorithm/levels.c) has one such step, or two without a root. The messages between
 * hosts are the same whether a host has memory or not.
 *
 * THE END OF A GROUP. The first failure is the group's (wfi_group_break). Just before the lock is released, all members
 * are told (OVER), and all operations in progress fail with it (operation.c). So the caller of wfi_group_break
 * continues normally, and checks group->over if it matters. If the reason is that a member or the store is gone,
 * received data are kept, and operations that need nothing else still succeed (wfi_operation.completes_locally). When a
 * time limit passes, the members are first asked how far they are (QUERY, STATE), so that the error names the missing
 * ones: missing.c.
 *
 * THE FILES, lowest first: group, early, send, share, missing, run, operation, sharing, opening, receive, open; and
 * above operation: request, calls, values, shrink; carrier, build, rules and dump beside group.
 *
 * LOCKING. The agent's lock guards everything, except fields marked (constant) once the group is open.
 *
 * LIFETIME. A group is referenced by its user, by its operations, and by its messages until their receivers have
 * them. An operation is freed when nothing uses its memory.
 */
#ifndef WFI_GROUP_H
#define WFI_GROUP_H

#include "coll/shared/slots.h"
#include "rpc/agent/agent.h"
#include "rpc/observe/observe.h"

#include <weft/group.h>

#define WFI_GROUP_NAME_MAX 64
#define WFI_GROUP_EAGER 3584       /* data bytes in a message */
#define WFI_GROUP_LONG (32u << 10) /* in a long message (net/message/long.c), if the receiver accepts those */
/*
 * A long message is sent only if the receiver is known to have begun all operations except this many, because it uses
 * the receiver's memory.
 */
#define WFI_GROUP_LONG_AHEAD 1
/*
 * The most bytes of long messages for an operation that the receiver is not known to have begun: it may have to keep
 * them.
 */
#define WFI_GROUP_LONG_MOST (128u << 10)
#define WFI_GROUP_CHUNK (512u << 10) /* measured: smaller chunks cost messages, larger ones leave the cache */
#define WFI_GROUP_AHEAD 64           /* the lead that a member may have over a member to which it sends */
#define WFI_GROUP_ANSWER_MS 1000     /* how long to wait for the answer to a query */
#define WFI_GROUP_HEAD 96            /* the most bytes of a message before its data or an error */

#define WFI_SHARE_MEMBERS_MAX 32 /* that share memory: each pair of them has a lane */

/* The number spaces of operations. */
typedef enum wfi_space {
    WFI_SPACE_COLLECTIVE,
    WFI_SPACE_P2P, /* sends and recvs between two members */
    WFI_SPACES
} wfi_space;

/* The coordinator (opening.h) numbers the groups that it creates. */
typedef struct wfi_group_key {
    uint64_t number;
    uint32_t incarnation; /* the coordinator's */
} wfi_group_key;

typedef struct wfi_group_member {
    int rank;             /* (constant) */
    uint32_t incarnation; /* (constant) */
    wfi_peer *peer;       /* NULL: this worker, or a member that has ended */
    struct {
        uint64_t begun;  /* number of operations that it has begun, as far as it has told */
        uint64_t asked;  /* it was asked to report when it has begun this operation */
        uint64_t wanted; /* it asked for a report of this operation; 0: it did not */
        /* the last operation for which long messages were sent before the member is known to have begun it */
        uint64_t ahead_number;
        size_t ahead_bytes; /* size of these messages, for that operation */
    } spaces[WFI_SPACES];
    uint64_t sends, recvs; /* numbers given between that member and this one */
    uint64_t sends_begun, recvs_begun;
    wfi_list early;                 /* wfi_early.link: data for recvs that have not begun */
    uint64_t attempt, members_hash; /* opening.c, at the coordinator: of its call; 0: it has not called */
    bool has_left;                  /* likewise: it has taken its call back */
    bool has_created;               /* likewise: it has sent READY */
    bool is_asked;                  /* missing.c waits for its answer */
    uint32_t queries;               /* sent to it, and not answered yet */
    bool is_told;                   /* it was told that the group is over */
    const char *missing;            /* why it is missing, according to its answer; NULL: it is not missing */
    bool has_sent_hello;            /* sharing.c, at the leader: it has sent HELLO, so the lane to it is up */
    bool is_ready;                  /* likewise: it has mapped the memory */
    bool has_withdrawn;             /* it has withdrawn exposed data: it was asked whether the group is over there */
} wfi_group_member;

typedef enum wfi_share_state {
    WFI_SHARE_NONE,    /* no verdict; at the first member: the memory was not made yet */
    WFI_SHARE_OFFERED, /* at the first member: the members get the memory, and answer */
    WFI_SHARE_YES,     /* (constant from here on) the verdict is to use it */
    WFI_SHARE_NO,      /* the verdict is to use messages */
} wfi_share_state;

/* The condition for which the first operation of the queue waits. */
typedef enum wfi_share_stage {
    WFI_SHARE_ROOM,    /* all members have arrived at the turn before, so this member may write its slot */
    WFI_SHARE_DATA,    /* those whose data it needs have arrived at this turn */
    WFI_SHARE_REDUCED, /* all have summed their part */
} wfi_share_stage;

typedef struct wfi_share { /* memory that the members of this host share */
    bool may;              /* (constant) this host has several members, and they can get it */
    wfi_share_state state;
    bool has_answered;
    int fd;             /* of the memory, at the leader, until the verdict; -1: none */
    wfi_slots slots;    /* (constant) once there is a verdict; before that, all but `memory` */
    size_t *by_place;   /* (constant) the members of this host, by their place in the slots. The first is the leader */
    uint64_t turn;      /* number of turns that were begun: see slots.h */
    uint64_t all_at;    /* the last turn after which this member is known to be free to write its slot: slots.h */
    uint64_t agreed;    /* the last turn in which all members are known to have called the same operation */
    wfi_slot_head head; /* what this member called in its last turn */
    wfi_part part;      /* of the first operation in this turn */
    bool is_second;     /* this is the second turn of a barrier or an allreduce in two levels */
    wfi_collective piece;   /* what it does in this turn. Its members are places: those of this host */
    wfi_list queue;         /* wfi_operation.share.link: the first one has its turn */
    wfi_progress_hook hook; /* checks in each round the flags for which the first one waits */
    wfi_share_stage stage;
    size_t first_missing; /* the first member without the flag that the stage waits for */
    wfi_timer timer;      /* at the leader: the memory is passed again, or the verdict is NO */
    uint32_t pause_ms;    /* of that timer */
    bool runs_queue;      /* share.c: the queue is being worked off */
    /*
     * The operation that the thread that called it runs without the lock (share.c, QUICK). Until it is NULL again, that
     * thread alone uses the fields about the turn: turn to piece, stage and first_missing.
     */
    struct wfi_operation *quick;
    atomic_bool stop;  /* (atomic) that thread must not wait longer: the group is over */
    uint64_t usual_ns; /* duration of the last small quick operation that was timed */
} wfi_share;

typedef struct wfi_group_metrics wfi_group_metrics; /* observe.c */

struct weft_group {
    wfi_handle handle;  /* ended with the last of `users` */
    atomic_int users;   /* the user, until it closes the group, and data-parallel modules */
    atomic_bool closed; /* by its user */
    atomic_int refs;
    weft_agent *agent; /* (constant) a reference */
    wfi_list link;     /* in wfi_groups.all */
    char name[WFI_GROUP_NAME_MAX + 1];
    uint64_t name_hash;    /* (constant) */
    wfi_group_key key;     /* number 0: the group is not created */
    uint64_t members_hash; /* wfi_opening.members_hash */
    uint64_t origin;       /* a hash of the key of the group from which it was shrunk, again and again; or of its own */
    size_t size;           /* (constant) */
    int index;             /* (constant) */
    wfi_group_member *members; /* (constant) */
    wfi_map places;            /* (constant) member by rank + 1 */
    size_t *hosts;             /* (constant) by member: the first one of its host */
    bool spans_hosts;          /* (constant) there are several hosts */
    bool has_levels;           /* (constant) and one of them has several members */
    bool hosts_may_share;      /* (constant) the members of each host can get memory; the same on all members */
    wfi_share share;
    wfi_rules rules;             /* constant once the group is used; so is the carrier */
    struct wfi_carrier *carrier; /* NULL: weft runs all operations */
    wfi_group_metrics *metrics;  /* of its name; NULL: nothing was counted yet */
    bool used;                   /* an operation was called */
    bool open;                   /* it is not closed, and the agent has not closed */
    bool complete;               /* all members have it (GO): opening.h */
    weft_future *woken;          /* of the thread that opens it and waits; NULL: none */

    wfi_list operations;             /* wfi_operation.link, in the order of the calls */
    uint64_t called, begun;          /* numbers of collective operations */
    uint64_t history;                /* a hash of the signatures of collective operations up to `called` */
    wfi_list early[WFI_GROUP_AHEAD]; /* by number: wfi_early.link */
    weft_error *over;                /* the reason; NULL: the group is not over */
    bool tells;                      /* the members do not know yet */
    bool told;                       /* this member has told them */
    wfi_done ended;                  /* processes the end of the group: operation.c */
    wfi_task let_go;                 /* drops the reference of `ended` */

    struct wfi_operation *late_operation; /* about which the members are being asked; NULL: none */
    const wfi_group_member *left_member;  /* has closed the group, and late_operation waits for it */
    size_t unanswered;
    wfi_timer ask_timer;

    wfi_timer check_timer; /* set while operations are in progress: missing.c */
    uint64_t checked_id;   /* wfi_operation.id of the oldest operation when the timer last fired */
    uint32_t check_pause_ms;
};

/* The properties of an operation that both sides of a message must agree on. */
typedef struct wfi_signature {
    uint8_t kind, dtype, how, algorithm;
    uint32_t root;
    uint64_t count;
} wfi_signature;

/* A DATA message, decoded. */
typedef struct wfi_data {
    wfi_space space;
    uint64_t number;
    wfi_signature signature;
    uint32_t slot, token; /* token: for ACK */
    bool is_eager;        /* the data are part of the message; otherwise `remote` names them */
    uint64_t size;
    wfi_rma_address remote;
    uint32_t bulk_generation; /* wfi_peer_bulk_generation, of the message */
    const uint8_t *bytes;     /* if the data are in the message */
} wfi_data;

typedef struct wfi_early {
    wfi_list link;
    weft_agent *agent; /* (constant) the agent whose budget it counts against */
    size_t from;       /* index */
    wfi_data data;     /* the bytes follow */
} wfi_early;

typedef struct wfi_operation {
    wfi_list link; /* in group->operations */
    weft_group *group;
    uint64_t id; /* in wfi_groups.operations */
    wfi_space space;
    bool sends;  /* WFI_SPACE_P2P: it is the sender's operation */
    size_t peer; /* WFI_SPACE_P2P: the other member */
    uint64_t number;
    uint64_t history; /* WFI_SPACE_COLLECTIVE: wfi_share_history */
    wfi_collective collective;
    weft_dtype dtype;
    weft_op how;
    uint8_t algorithm; /* from wfi_rules_choose; WFI_CARRIED; 0 if there is no choice */
    wfi_schedule schedule;
    struct {
        uint8_t *data;
        wfi_storage *storage; /* a reference; NULL: not used */
    } memory[WFI_BUFFERS];
    struct {
        wfi_list link; /* in group->share.queue */
        void (*done)(struct wfi_operation *operation, wfi_step_id step);
        size_t left;      /* steps that are not done; 0: it is not in the queue */
        wfi_step_id step; /* the one that has begun; WFI_NO_STEP: none */
        size_t at;        /* elements that are done: a large allreduce takes a turn for each piece */
        bool has_turn;    /* the step has its turn */
        bool computes;    /* `task` is queued or runs */
        wfi_task task;
        bool waited;           /* of a quick one: it did not find all flags at once */
        int64_t futex_wait_ms; /* of a quick one: it becomes an ordinary one after this time; 0: after the spin */
    } share;
    bool begun, failing;
    /* The group is over, but this operation needs nothing more from the others: it still completes. */
    bool completes_locally;
    wfi_task *carrying; /* queued or run by the carrier; NULL: none */
    wfi_span span;      /* run_ns: when its turn came */
    size_t left;        /* steps that are not done */
    size_t busy;        /* its transfers and tasks in progress */
    wfi_step_id ready;  /* the first step that may begin */
    wfi_step_id last_ready;
    wfi_timer timer;
    int64_t timeout_ms;
    weft_future *future;
    wfi_task end; /* frees it, without the lock; calls `finish` before that */
    /* Adds more steps when all are done, once; NULL: there are none. [agent lock] */
    weft_status (*more)(struct wfi_operation *operation);
    /* Processes the results before the future completes, only on success, without the lock; NULL: nothing to do. */
    weft_status (*finish)(struct wfi_operation *operation);
    weft_tensor *tensors[2]; /* references to the user's: input, output */
    weft_values *values;     /* the result of the future; NULL: none */
    weft_error *failure;     /* why `finish` failed; NULL: its status is enough */
    void *own;               /* data of the operation's creator; `free_own` frees it at the end, without the lock */
    void (*free_own)(void *own);
} wfi_operation;

/* NULL: the operation does not have that memory here. */
static inline uint8_t *wfi_operation_address(const wfi_operation *operation, wfi_operand place)
{
    uint8_t *data = operation->memory[place.buffer].data;
    return data ? data + place.offset : NULL;
}

typedef struct wfi_groups {     /* an agent's data about groups */
    wfi_group_metrics *metrics; /* of each name of a group, newest first */
    size_t metric_count;
    wfi_list all;                       /* weft_group.link */
    wfi_map open;                       /* group by wfi_group_id */
    wfi_list openings;                  /* threads that wait in weft_group_open: opening.c */
    wfi_list calls;                     /* of other members, for groups that this worker has not opened: opening.c */
    uint64_t last_attempt, last_number; /* of its own calls; of the groups that it has created */
    wfi_map operations;                 /* by id */
    uint64_t last_operation;
    size_t under_way;     /* operations, including those that are being freed */
    size_t messages;      /* messages not delivered yet */
    weft_future *drained; /* completes when there are none; NULL: no caller waits */
} wfi_groups;

static inline wfi_groups *wfi_groups_of(const weft_agent *agent)
{
    return agent->state[WFI_STATE_GROUPS];
}

/* ---- group.c ----------------------------------------------------------------------------------------------------- */

/* Makes a group with one reference and no members. `ended` is called once, when the group is over. NULL: no memory. */
weft_group *wfi_group_make(weft_agent *agent, const char *name, void (*ended)(wfi_done *done));
/* Its members, one after another; `count` at most. [agent lock] */
weft_status wfi_group_reserve(weft_group *group, size_t count);
/* The present or last worker of a rank. WEFT_ERR_NOT_FOUND: this worker has heard of none. WEFT_ERR_EXISTS: it is a
 * member. WEFT_ERR_MEMORY. */
weft_status wfi_group_add(weft_group *group, int rank);
void wfi_group_clear(weft_group *group); /* has no members again */
/* Has interest in the members (wfi_peer_interest), +1 or -1. [agent lock] */
void wfi_group_interest(weft_group *group, int change);
/* The error for a member that is dead or has left. */
weft_error *wfi_group_end_of(const weft_group *group, weft_status why, int rank);
/* The member is dead or has left: ends the group. [agent lock] */
void wfi_group_lacks(weft_group *group, wfi_group_member *member, weft_status why);
void wfi_group_wake(const weft_group *group); /* the thread that opens it. [agent lock] */
weft_group *wfi_group_ref(weft_group *group);
void wfi_group_unref(weft_group *group); /* not [locked] if it may be the last */
/*
 * Like a reference, for an object that calls public functions on the group: the handle stays valid until
 * wfi_group_unuse.
 */
void wfi_group_use(weft_group *group);
void wfi_group_unuse(weft_group *group); /* not [locked] */
uint64_t wfi_group_id(const weft_agent *agent, const wfi_group_key *key);
/* The member that is this peer; NULL: none. */
wfi_group_member *wfi_group_member_of(const weft_group *group, const wfi_peer *peer);
/* +1: it has operations in progress and waits for the members; -1: it has none. [agent lock] */
void wfi_group_depend(weft_group *group, int change);
/* Makes an error about this group; `worker` is at fault (-1: none). */
weft_error *wfi_group_problem(const weft_group *group, weft_status code, int worker, const char *format, ...)
    WEFT_PRINTF(4, 5);
/*
 * Ends the group with `error`, if it is not over. `tells`: the members have to be told. Takes over `error`. [agent
 * lock]
 */
void wfi_group_break(weft_group *group, weft_error *error, bool tells);
/* The same, with an error made by wfi_group_problem; the members are told. */
void wfi_group_break_for(weft_group *group, weft_status code, int worker, const char *format, ...) WEFT_PRINTF(4, 5);

const char *wfi_reduction_name(unsigned how); /* for error texts */

#define WFI_SIGNATURE_TEXT 128
/* For error texts: all of it if `whole`, otherwise only the kind. Returns `text`. */
const char *wfi_operation_signature_text(const wfi_signature *signature, bool whole, char text[WFI_SIGNATURE_TEXT]);
wfi_signature wfi_operation_signature(const wfi_operation *operation);
bool wfi_operation_signature_equals(const wfi_signature *a, const wfi_signature *b); /* whether they are equal */
/*
 * Whether the group is over because a member or the store is gone. Then received data are still delivered. [agent
 * lock]
 */
bool wfi_group_delivers(const weft_group *group);
/* Whether that member called the same operation; if not, ends the group. */
bool wfi_operation_check(const wfi_operation *operation, size_t member, const wfi_signature *theirs);

/* ---- early.c. All [agent lock] ----------------------------------------------------------------------------------- */

/* A copy, with its data; in no list, and not counted. NULL: no memory. */
wfi_early *wfi_early_make(size_t from, const wfi_data *data);
void wfi_early_keep(weft_group *group, size_t from, const wfi_data *data);
/*
 * The next message that is kept for this operation and has its recv in the schedule; the caller frees it. NULL: none.
 */
wfi_early *wfi_early_take(const wfi_operation *operation);
/* Whether the operation, if its number is `number`, only receives, and all its data are here. */
bool wfi_early_has_all(const wfi_operation *operation, uint64_t number);
void wfi_early_free(wfi_early *early);
void wfi_early_forget(weft_group *group); /* all */

/* ---- send.c: messages to members. All [agent lock] --------------------------------------------------------------- */

enum wfi_group_message_type { /* the head of send.c describes each */
                              WFI_DATA = 1,
                              WFI_ACK,
                              WFI_ASK,
                              WFI_BEGUN,
                              WFI_QUERY,
                              WFI_STATE,
                              WFI_OVER,
                              WFI_SHARE,
                              WFI_READY,
                              WFI_GO,
                              WFI_JOIN, /* from here on: of a group that is not open yet */
                              WFI_LEAVE,
                              WFI_FAILED,
                              WFI_CREATED
};
/* Of WFI_SHARE: see sharing.c; WAKE: share.c */
typedef enum wfi_share_message_type {
    WFI_SHARE_HELLO = 1,
    WFI_SHARE_READY,
    WFI_SHARE_UNABLE,
    WFI_SHARE_USE,
    WFI_SHARE_USE_NOT,
    WFI_SHARE_WAKE,
    WFI_SHARE_MESSAGE_TYPES
} wfi_share_message_type;

/* Each function sends a message; if it cannot, the group ends. */
void wfi_group_send_data(weft_group *group, size_t to, const wfi_data *data);
void wfi_group_send_ack(weft_group *group, size_t to, const wfi_data *data);
/* ASK or BEGUN */
void wfi_group_send_number(weft_group *group, size_t to, enum wfi_group_message_type type, wfi_space space,
                           uint64_t number);
/* WFI_SPACE_P2P: `sends` asks about the receiver's sends to this member, otherwise about its recvs. */
void wfi_group_send_query(weft_group *group, size_t to, wfi_space space, bool sends, uint64_t number);
void wfi_group_send_over(weft_group *group, size_t to);
void wfi_group_send_share(weft_group *group, size_t to, wfi_share_message_type type);
/* opening.h */
void wfi_group_send_join(weft_group *group, size_t to, uint64_t attempt, uint64_t members_hash);
void wfi_group_send_leave(weft_group *group, size_t to, uint64_t attempt);
void wfi_group_send_created(weft_group *group, size_t to);
void wfi_group_send_bare(weft_group *group, size_t to, enum wfi_group_message_type type); /* READY or GO */
/* A member's answer to a QUERY for an operation. */
typedef struct wfi_progress_report {
    bool has_group; /* it has not closed the group */
    wfi_space space;
    uint64_t number;
    uint64_t called; /* number of operations called there */
    /*
     * of that operation, if it is in progress there, or was the last one in shared memory; otherwise its kind is
     * WFI_OPERATION_KINDS
     */
    wfi_signature signature;
} wfi_progress_report;
/* Answers a query about a group, which need not be open here. */
void wfi_group_answer_state(weft_agent *agent, wfi_peer *to, const wfi_group_key *key,
                            const wfi_progress_report *report);
void wfi_group_answer_over(weft_agent *agent, wfi_peer *to, const wfi_group_key *key, weft_status why);
#define WFI_FAILED_RANKS 8
/* FAILED. `count` ranks are at fault, and the first WFI_FAILED_RANKS are named. */
void wfi_group_answer_failed(weft_agent *agent, wfi_peer *to, uint64_t attempt, weft_status why, const int *ranks,
                             size_t count);

/* ---- build.c ----------------------------------------------------------------------------------------------------- */

weft_status wfi_operation_build(wfi_operation *operation);        /* its schedule. WEFT_ERR_MEMORY */
weft_status wfi_operation_make_scratch(wfi_operation *operation); /* as much as its schedule uses */
/* The most bytes of one step of a part of `bytes`. */
size_t wfi_chunk_for(const wfi_collective *collective, size_t bytes);

/* ---- share.c: operations in shared memory. All [agent lock] ------------------------------------------------------ */

/*
 * It begins: puts it into the queue if it has steps in shared memory. `done` is called for each of them when its
 * results are there, perhaps at once; or when the operation has failed, and its memory is no longer used.
 */
void wfi_share_enter(wfi_operation *operation, void (*done)(wfi_operation *operation, wfi_step_id step));
void wfi_share_begin(wfi_operation *operation, wfi_step_id step);
bool wfi_share_is_free(const weft_group *group); /* whether a quick operation may begin now */
/*
 * Runs a quick operation, group->share.quick. False: it is not complete, because it takes long, the group is over, or
 * another member has called a different one. Then wfi_share_resume continues it. Not locked.
 */
bool wfi_share_run(wfi_operation *operation);
void wfi_share_ended(weft_group *group); /* the quick operation has ended */
/* Continues the quick operation as `operation`, which has the same number and one step. Not after the group is over. */
void wfi_share_resume(wfi_operation *operation, void (*done)(wfi_operation *operation, wfi_step_id step));
/* Whether all data of that step are here, so that it ends without the others. */
bool wfi_share_has_all(const wfi_operation *operation, wfi_step_id step);
/* The group is over, and a new operation is the next one: whether the root has left its data in its slot. */
bool wfi_share_has_early(const wfi_operation *operation, uint64_t number);
/* The group is over, and its step in progress has all: computes the results. */
void wfi_share_finish(wfi_operation *operation);
void wfi_share_drop(wfi_operation *operation); /* it fails */
void wfi_share_end(weft_group *group);         /* the group is over or closed */
/* A hash of the signatures of the group's collective operations and of this one, which is the next. An operation by
 * messages may end before its members notice that they differ: the next one in memory shows it. [agent lock] */
uint64_t wfi_share_history(const wfi_operation *operation);
/* Sets *out if that operation is the last one that this member did in memory. It may have ended. */
void wfi_share_recall(const weft_group *group, uint64_t number, wfi_signature *out);
/*
 * Compares an operation that waits, for messages or in memory, with what other members of this host do in memory. Ends
 * the group if they have called another one.
 */
void wfi_share_compare(const wfi_operation *operation);
/* Whether it waits for that member. */
bool wfi_share_waits(const wfi_operation *operation, size_t member);

/* The advice for a group that some members have given up. */
#define WFI_GROUP_AGAIN ": close the group and open it again, on all members"

/* ---- missing.c. All [agent lock] --------------------------------------------------------------------------------- */

void wfi_missing_watch(weft_group *group);   /* an operation has begun: checks its progress from time to time */
void wfi_missing_unwatch(weft_group *group); /* the group is over or closed */
/* Whether an operation that has begun still has to receive from that member. */
bool wfi_missing_waits(const wfi_operation *operation, size_t member);
/* The operation waits for a member that has closed the group, so it cannot end: asks the others whether they have
 * called the same operation. Then the group is over. */
void wfi_missing_left(wfi_operation *operation, const wfi_group_member *member);
void wfi_missing_ask(wfi_operation *operation); /* its time limit has passed: asks which members are missing */
void wfi_missing_on_answer(weft_group *group, wfi_group_member *member, const wfi_progress_report *report);
void wfi_missing_forget(wfi_operation *operation); /* it has ended: answers are not needed */

/* ---- run.c: the steps of an operation that has begun. All [agent lock] except free ------------------------------ */

void wfi_run_begin(wfi_operation *operation);
void wfi_run_on_data(wfi_operation *operation, size_t from,
                     const wfi_data *data); /* processes DATA for the operation */
void wfi_run_on_ack(wfi_operation *operation, size_t from, uint32_t token);
/* The operation, whose one step is in shared memory, was a quick one until now. */
void wfi_run_resume(wfi_operation *operation);
/* The group is over: the operation fails, unless all its data have arrived and the group still delivers. */
void wfi_run_fail(wfi_operation *operation);
void wfi_operation_free(wfi_operation *operation); /* one that was never started */

/* ---- operation.c ------------------------------------------------------------------------------------------------- */

/*
 * Numbers the operation, and begins it as soon as it may. Takes it over. Returns WEFT_OK, or why the group takes no
 * operation; then the operation has been freed. Not locked.
 */
weft_status wfi_operation_start(wfi_operation *operation);
void wfi_operations_begin(weft_group *group); /* begins the operations that may begin. [agent lock] */
/*
 * Begins a quick operation (share.c), which wfi_share_run then runs, and wfi_operation_end_quick ends. False: an
 * ordinary one must be made, because another operation is in progress, or the group takes none. Not locked.
 */
bool wfi_operation_begin_quick(wfi_operation *operation);
void wfi_operation_end_quick(wfi_operation *operation); /* it has succeeded. Not locked */
/*
 * Continues the group's quick operation as `operation`, made from the same call, and takes it over. NULL: there is no
 * memory for it; the quick operation ends. Not locked.
 */
void wfi_operation_resume(weft_group *group, wfi_operation *operation);
/* Whether operations of the group are in progress. [agent lock] */
static inline bool wfi_group_is_busy(const weft_group *group)
{
    return group->share.quick || !wfi_list_empty(&group->operations);
}
/* Finds the operation for a message of that member; NULL: it is not in progress. [agent lock] */
wfi_operation *wfi_operation_find(weft_group *group, wfi_space space, bool sends, size_t peer, uint64_t number);

/* ---- sharing.c: how a group gets its memory. All [agent lock] ---------------------------------------------------- */

/* Its members are known: which share a host, and whether they may have memory. WEFT_ERR_MEMORY */
weft_status wfi_sharing_init(weft_group *group);
void wfi_sharing_begin(weft_group *group); /* all members have the group: the leader makes and offers the memory */
void wfi_sharing_hurry(weft_group *group); /* the time has passed: the leader gives the verdict */
bool wfi_sharing_is_over(const weft_group *group); /* it is known whether this host has memory */
bool wfi_sharing_on_message(weft_group *group, wfi_group_member *from, wfi_reader *reader); /* false: malformed */
void wfi_sharing_passed(weft_agent *agent, wfi_peer *from, int fd, const uint8_t *data, size_t size);

/* ---- operation.c, receive.c. All [agent lock] -------------------------------------------------------------------- */

/* Tells the members why the group is over, unless this member has already done so. */
void wfi_group_tell(weft_group *group);
void wfi_group_ended(wfi_done *done); /* of a group */
void wfi_group_on_message(weft_agent *agent, wfi_peer *from, uint8_t type,
                          wfi_reader *reader); /* a message of `from` */

/* ---- observe.c: metrics and traces ------------------------------------------------------------------------------- */

void wfi_operation_observe_begin(wfi_operation *operation);            /* not locked */
void wfi_operation_count(const wfi_operation *operation, bool failed); /* it is over. [agent lock] */
/*
 * A quick operation has succeeded. A small one that was not timed counts as long as the last one that was.
 * [agent lock]
 */
void wfi_operation_count_quick(const wfi_operation *operation);
void wfi_operation_observe_end(wfi_operation *operation, weft_status status); /* not locked */
weft_status wfi_groups_write_metrics(weft_agent *agent, FILE *to, const char *who);
void wfi_group_metrics_free(wfi_groups *groups);

/* ---- open.c ------------------------------------------------------------------------------------------------------ */

/* Opens a group of the living members of `group`: for shrink.c. */
weft_status wfi_group_of_living(weft_group *group, int64_t timeout_ms, weft_group **out, weft_error **error);

/* ---- rules.c ----------------------------------------------------------------------------------------------------- */

weft_status wfi_group_environment_rules(const weft_agent *agent, wfi_rules *out, weft_error **error);
weft_status wfi_group_take_rules(weft_group *group, const weft_group *from); /* a copy. WEFT_ERR_MEMORY */

struct wfi_json;
void wfi_groups_dump(weft_agent *agent, struct wfi_json *j); /* dump.c; [agent lock] */

extern const wfi_component wfi_group_component;

#endif
