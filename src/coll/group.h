/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group.h - groups inside weft: members, the operations under way, and what members say to each other.
 *
 * An OPERATION is a schedule (schedule.h) that this member works off: run.c. Its sends and recvs are messages of type
 * WFI_RPC_GROUP. Up to WFI_GROUP_EAGER bytes ride in the message (DATA), or up to WFI_GROUP_LONG; then the sender's memory is
 * free at once. More are exposed to the receiver, which is told where (DATA, too), pulls them, and says TAKEN: then it is free.
 * Nobody waits for anything but the bytes that it needs.
 *
 * NUMBERS. Collective operations of a group are numbered in the order of the calls; sends and recvs between two members
 * have numbers of their own, for each pair and direction (wfi_space). A member begins operations in this order, and no
 * operation to whose receivers it is WFI_GROUP_AHEAD operations ahead: so what comes early is bounded. A sender that is half
 * as far ahead as it may be asks (ASK); the answer (BEGUN) comes when the other has caught up.
 *
 * EARLY. What comes for an operation that has not begun here waits in the group; what comes for a group that is not open
 * here, in a record (early.c). Both count against the agent's memory budget.
 *
 * THE END OF A GROUP. The first failure is the group's (wfi_group_break). Just before the lock is released it is told to all
 * members (OVER), and all that is under way fails with it (operation.c). So whoever breaks the group goes on as if nothing had
 * happened, and looks at group->over where it matters. If the reason is that a member or the store is gone, what has
 * arrived here is kept, and operations that need nothing else still succeed (wfi_operation.apart). When a time limit
 * passes, the members are asked first how far they are (QUERY, STATE), so that the error names those who did not come:
 * missing.c.
 *
 * THE FILES, lowest first: group, early, say, missing, making, run, operation, hear, open; and on operation: request,
 * calls, values, shrink; carrier, rules and dump beside group.
 *
 * LOCKING. All of it is guarded by the agent's lock, but for what is marked (constant) once the group is open.
 *
 * LIFETIME. A group is referenced by its user, its operations, and its messages until their receivers have them. An
 * operation is freed once nobody touches its memory any more.
 */
#ifndef WFI_GROUP_H
#define WFI_GROUP_H

#include "coll/algorithm/algorithm.h"
#include "rpc/agent/agent.h"
#include "rpc/observe/observe.h"

#include <weft/group.h>

#define WFI_GROUP_NAME_MAX 64
#define WFI_GROUP_EAGER 3584       /* bytes that ride in a message */
#define WFI_GROUP_LONG (32u << 10) /* in a long one (net/message/long.c), once the receiver takes such */
/* A long message is sent only to a member that is known to have begun all operations except this many: its memory is
 * not ours to fill. */
#define WFI_GROUP_LONG_AHEAD 1
/* The most bytes of long messages for an operation that the receiver is not known to have begun: it may have to keep
 * them. */
#define WFI_GROUP_LONG_MOST (128u << 10)
#define WFI_GROUP_AHEAD 64       /* operations that a member may be ahead of one to whom it sends */
#define WFI_GROUP_ANSWER_MS 1000 /* how long the answer to a query is waited for */
#define WFI_GROUP_HEAD 96        /* the most bytes of a message before those that ride in it, and before an error */

typedef enum wfi_space { WFI_TOGETHER, WFI_BETWEEN, WFI_SPACES } wfi_space; /* collective; of two members */

typedef struct wfi_group_key {
    uint64_t name_hash, members_hash; /* members: ranks and incarnations, in order */
    uint32_t generation;              /* of that name and these members: rises by one or more, see making.c */
} wfi_group_key;

/* Whether both are of groups of one name and the same members. */
static inline bool wfi_group_is_same_list(const wfi_group_key *one, const wfi_group_key *other)
{
    return one->name_hash == other->name_hash && one->members_hash == other->members_hash;
}

typedef struct wfi_group_member {
    int rank;             /* (constant) */
    uint32_t incarnation; /* (constant) */
    wfi_peer *peer;       /* NULL: ourselves, or one that is gone */
    struct {
        uint64_t begun;        /* operations that it has begun, as far as it has told us */
        uint64_t asked;        /* we asked to hear when it has begun this one */
        uint64_t wanted;       /* it asked us; 0: it did not */
        uint64_t ahead_number; /* the last operation to which long messages went before it is known to have begun it */
        size_t ahead_bytes;    /* of these messages, for that operation */
    } spaces[WFI_SPACES];
    uint64_t sends, recvs; /* between it and us: numbers given */
    uint64_t sends_begun, recvs_begun;
    wfi_list early;      /* wfi_early.link: for recvs that have not begun */
    bool is_asked;       /* its answer is awaited, in missing.c or in making.c */
    uint32_t queries;    /* sent to it, and not answered yet */
    bool was_sent;       /* this worker sent it DATA */
    bool is_heard;       /* some message came from it, so it has made the group */
    bool is_told;        /* it was told that the group is over */
    const char *missing; /* why it is missing, as its answer says; NULL: it is not */
    bool has_withdrawn;  /* what it had exposed to us: it was asked whether the group is over there */
} wfi_group_member;

struct weft_group {
    wfi_handle handle;  /* ended with the last of `users` */
    atomic_int users;   /* the user, until it closes the group, and data-parallel modules */
    atomic_bool closed; /* by its user */
    atomic_int refs;
    weft_agent *agent; /* (constant) a reference */
    wfi_list link;     /* in wfi_groups.all */
    char name[WFI_GROUP_NAME_MAX + 1];
    wfi_group_key key;
    size_t size;                 /* (constant) */
    int index;                   /* (constant) */
    wfi_group_member *members;   /* (constant) */
    wfi_map places;              /* (constant) member by rank + 1 */
    size_t *hosts;               /* (constant) by member: the first one of its host */
    bool has_levels;             /* (constant) there are several hosts, and one with several members */
    wfi_rules rules;             /* constant once it is used, as the carrier is */
    struct wfi_carrier *carrier; /* NULL: weft carries all */
    bool used;                   /* an operation was called */
    bool open;                   /* its user has it, and the agent has not closed */
    bool opening;                /* what came before it was made is being heard */

    wfi_list operations;             /* wfi_operation.link, in the order of the calls */
    uint64_t given, begun;           /* collective ones */
    wfi_list early[WFI_GROUP_AHEAD]; /* by number: wfi_early.link */
    weft_error *over;                /* why; NULL: it is not */
    bool tells;                      /* the members do not know */
    bool told;                       /* by this member */
    wfi_done ended;                  /* what is to follow from `over`: operation.c */
    wfi_task let_go;                 /* the reference of `ended` */

    struct wfi_operation *asking; /* whose time limit has passed: the members are being asked */
    size_t unanswered;
    wfi_timer ask_timer;

    wfi_timer look_timer; /* set while operations are under way: missing.c */
    uint64_t looked_at;   /* wfi_operation.id of the oldest operation when the timer fired last */
    uint32_t look_pause_ms;
};

/* The properties of an operation that both sides of a message must agree on. */
typedef struct wfi_signature {
    uint8_t kind, dtype, how, algorithm;
    uint32_t root;
    uint64_t count;
} wfi_signature;

/* DATA, as read. */
typedef struct wfi_data {
    wfi_space space;
    uint64_t number;
    wfi_signature signature;
    uint32_t slot, token; /* token: for TAKEN */
    bool rides;
    uint64_t size, address, key;
    const uint8_t *bytes; /* if it rides */
} wfi_data;

typedef struct wfi_early {
    wfi_list link;
    weft_agent *agent; /* (constant) whose budget it counts against */
    size_t from;       /* index */
    wfi_data data;     /* whose bytes follow */
} wfi_early;

typedef struct wfi_operation {
    wfi_list link; /* in group->operations */
    weft_group *group;
    uint64_t id; /* in wfi_groups.operations */
    wfi_space space;
    bool sends;  /* WFI_BETWEEN: it is the sender's */
    size_t peer; /* likewise: with whom */
    uint64_t number;
    wfi_collective what;
    weft_dtype dtype;
    weft_op how;
    uint8_t algorithm; /* of wfi_rules_choose; WFI_CARRIED; 0 where there is no choice */
    wfi_schedule schedule;
    struct {
        uint8_t *data;
        wfi_storage *storage; /* a reference; NULL: none of that */
    } memory[WFI_BUFFERS];
    bool begun, failing;
    bool apart; /* the group is over, and this operation needs nothing more from the others: it ends all the same */
    wfi_task *carrying; /* queued or run by the carrier; NULL: none */
    wfi_span span;      /* run_ns: when its turn came, after those before it */
    size_t left;        /* steps that are not done */
    size_t busy;        /* transfers and tasks of it */
    wfi_step_id ready;  /* the first step that may begin */
    wfi_step_id last_ready;
    wfi_timer timer;
    int64_t timeout_ms;
    weft_future *future;
    wfi_task end; /* frees it, without the lock; before that calls `finish` */
    /* When all steps are done: adds more, once; NULL: there are none. [agent lock] */
    weft_status (*more)(struct wfi_operation *operation);
    /* What is to be done with the results before the future completes, without the lock; NULL: nothing. On success alone. */
    weft_status (*finish)(struct wfi_operation *operation);
    weft_tensor *tensors[2]; /* references to the user's: input, output */
    weft_values *values;     /* the result of the future; NULL: none */
    weft_error *failure;     /* why `finish` failed; NULL: its status says all */
    void *own;               /* of whoever made it; `free_own` at the end, without the lock */
    void (*free_own)(void *own);
} wfi_operation;

typedef struct wfi_group_metrics wfi_group_metrics; /* observe.c */

typedef struct wfi_groups {     /* what an agent has of groups */
    wfi_group_metrics *metrics; /* of each name of a group, newest first */
    size_t metric_count;
    wfi_list all;           /* weft_group.link */
    wfi_map open;           /* group by wfi_group_id */
    wfi_map records;        /* wfi_record by the same: what came for groups that are not open yet */
    size_t refused_records; /* of them: early.c */
    wfi_list waiters;       /* threads that wait in weft_group_open: making.c */
    wfi_list overs;         /* kept messages OVER, oldest first: early.c */
    size_t over_count;
    wfi_map pasts;       /* wfi_past by name and members */
    wfi_list pasts_over; /* those that can only be asked for, oldest first: group.c */
    size_t pasts_over_count;
    wfi_map operations; /* by id */
    uint64_t last_operation;
    size_t under_way;     /* operations, those included that are being freed */
    size_t messages;      /* on their way */
    weft_future *settled; /* completes when there are none; NULL: nobody waits */
} wfi_groups;

static inline wfi_groups *wfi_groups_of(const weft_agent *agent)
{
    return agent->state[WFI_STATE_GROUPS];
}

/* ---- group.c ----------------------------------------------------------------------------------------------------- */

/* With one reference and no members. `ended` is called once, when it is over. NULL: no memory. */
weft_group *wfi_group_make(weft_agent *agent, const char *name, void (*ended)(wfi_done *done));
weft_group *wfi_group_ref(weft_group *group);
void wfi_group_unref(weft_group *group); /* not [locked] if it may be the last */
/* The same, for an object that calls public functions on the group: the handle does not end before wfi_group_unuse. */
void wfi_group_use(weft_group *group);
void wfi_group_unuse(weft_group *group); /* not [locked] */
uint64_t wfi_group_id(const weft_agent *agent, const wfi_group_key *key);
/* The first generation of that name and these members that was not made here. [agent lock] */
uint64_t wfi_group_past(const weft_agent *agent, const wfi_group_key *key);
weft_status wfi_group_remember(const weft_group *group); /* counts it as made. [agent lock] */
/* Whether the last group of that name and these members failed here: the other members may have made others since, or
 * less. [agent lock] */
bool wfi_group_failed_before(const weft_group *group);
void wfi_group_set_failed(const weft_group *group); /* of a group that is open. [agent lock] */
/* A worker took the rank of a former one: no group with that one will be made any more. [agent lock] */
void wfi_pasts_joined(weft_agent *agent, const wfi_peer *peer);
void wfi_pasts_free(weft_agent *agent);
/* The member that this peer is; NULL: it is none. */
wfi_group_member *wfi_group_member_of(const weft_group *group, const wfi_peer *peer);
/* +1: it has operations under way, and waits for the members; -1: it has none any more. [agent lock] */
void wfi_group_depend(weft_group *group, int change);
/* An error of this group's; `worker` is at fault (-1: nobody is). */
weft_error *wfi_group_problem(const weft_group *group, weft_status code, int worker, const char *format, ...)
    WEFT_PRINTF(4, 5);
/* The group is over, if it was not: for that reason, of which `tells` says whether the members have to be told. Takes over
 * `error`. [agent lock] */
void wfi_group_break(weft_group *group, weft_error *error, bool tells);
/* The same, with an error of wfi_group_problem, and the members are told. */
void wfi_group_break_for(weft_group *group, weft_status code, int worker, const char *format, ...) WEFT_PRINTF(4, 5);

const char *wfi_reduction_name(unsigned how); /* as people say it */

#define WFI_SIGNATURE_TEXT 128
/* As people say it: `whole`, or the kind alone. Returns `text`. */
const char *wfi_signature_text(const wfi_signature *signature, bool whole, char text[WFI_SIGNATURE_TEXT]);
wfi_signature wfi_operation_signature(const wfi_operation *operation);
bool wfi_signature_is(const wfi_signature *a, const wfi_signature *b); /* the same */
/* Whether the group is over because a member is gone, or the store. Then what has arrived here is delivered. [agent
 * lock] */
bool wfi_group_delivers(const weft_group *group);
/* Whether that member called the same; if not, the group is over. */
bool wfi_operation_check(const wfi_operation *operation, size_t member, const wfi_signature *theirs);

/* ---- early.c. All [agent lock] ----------------------------------------------------------------------------------- */

/* A copy, with the bytes that ride; in no list, and not counted. NULL: no memory. */
wfi_early *wfi_early_make(size_t from, const wfi_data *data);
void wfi_early_keep(weft_group *group, size_t from, const wfi_data *data);
/* The next message that is kept for this operation, and has its recv in its schedule; the caller frees it. NULL: none. */
wfi_early *wfi_early_take(const wfi_operation *operation);
/* Whether the operation, if its number is `number`, only receives, and all that it receives is here. */
bool wfi_early_has_all(const wfi_operation *operation, uint64_t number);
void wfi_early_free(wfi_early *early);
void wfi_early_forget(weft_group *group); /* all */
/* Keeps a message for a group that is not open. `is_over`: it is OVER, which takes the place of what its sender said
 * before. WEFT_ERR_BUSY: the budget is used up; WEFT_ERR_MEMORY. */
weft_status wfi_record_keep(weft_agent *agent, wfi_peer *from, const wfi_group_key *key, const uint8_t *bytes,
                            size_t size, bool is_over);
/* A message that was kept for that group, and who sent it (a reference); the caller frees it. NULL: there is none. */
uint8_t *wfi_record_take(weft_agent *agent, const wfi_group_key *key, wfi_peer **from, size_t *size);
/* Why something that came for that group was not kept, asked once; WEFT_OK: all was. */
weft_status wfi_record_refused(weft_agent *agent, const wfi_group_key *key);
/* How many messages are kept for groups that are not open, and what they count for against the memory budget. */
size_t wfi_records_count(const weft_agent *agent, size_t *bytes);
void wfi_records_forget(weft_agent *agent, const wfi_peer *from); /* of that peer; NULL: all */
/* Those for groups of that name and list that were made before this one. */
void wfi_records_forget_former(weft_agent *agent, const wfi_group_key *key);

/* ---- say.c: what is said to members. All [agent lock] ------------------------------------------------------------- */

enum wfi_group_word { WFI_DATA = 1, WFI_TAKEN, WFI_ASK, WFI_BEGUN, WFI_QUERY, WFI_STATE, WFI_OVER };

/* Of a member, as it answers a QUERY. */
typedef enum wfi_group_state {
    WFI_STATE_HERE,    /* it has the group */
    WFI_STATE_UNKNOWN, /* it has not made it */
    WFI_STATE_DESTROYED,
    WFI_STATE_OTHER_LIST, /* it has one of that name with other members */
    WFI_STATE_FORMER,     /* it has a former one of that name and these members, and has not destroyed it */
} wfi_group_state;

/* Each sends a message; if it cannot, the group is over. */
void wfi_say_data(weft_group *group, size_t to, const wfi_data *data);
void wfi_say_taken(weft_group *group, size_t to, const wfi_data *data);
/* ASK or BEGUN */
void wfi_say_number(weft_group *group, size_t to, enum wfi_group_word word, wfi_space space, uint64_t number);
/* WFI_BETWEEN: `sends` asks for its sends to us, else for its recvs. */
void wfi_say_query(weft_group *group, size_t to, wfi_space space, bool sends, uint64_t number);
void wfi_say_over(weft_group *group, size_t to);
/* A member's answer to a QUERY for an operation. */
typedef struct wfi_progress_report {
    wfi_group_state state;
    wfi_space space;
    uint64_t number;
    uint64_t called;         /* how many operations, there; of WFI_STATE_DESTROYED: the first generation that is not */
    wfi_signature signature; /* of that operation, if it is under way there; else its kind is WFI_OPERATION_KINDS */
} wfi_progress_report;
/* Answers to somebody who speaks of a group, which need not be open here. */
void wfi_answer_state(weft_agent *agent, wfi_peer *to, const wfi_group_key *key, const wfi_progress_report *report);
void wfi_answer_over(weft_agent *agent, wfi_peer *to, const wfi_group_key *key, weft_status why);

/* ---- missing.c. All [agent lock] --------------------------------------------------------------------------------- */

void wfi_missing_watch(weft_group *group);   /* an operation has begun: looks from time to time whether it goes on */
void wfi_missing_unwatch(weft_group *group); /* the group is over or closed */
/* Whether an operation that has begun still has to hear from that member. */
bool wfi_missing_waits(const wfi_operation *operation, size_t member);
void wfi_missing_ask(wfi_operation *operation); /* its time limit has passed: who is missing? */
void wfi_missing_answered(weft_group *group, wfi_group_member *member, const wfi_progress_report *report);
void wfi_missing_forget(wfi_operation *operation); /* it has ended: nobody needs the answers */

/* ---- run.c: the steps of an operation that has begun. All [agent lock] but free ------------------------------------ */

void wfi_run_begin(wfi_operation *operation);
void wfi_run_take(wfi_operation *operation, size_t from, const wfi_data *data); /* DATA has come for it */
void wfi_run_taken(wfi_operation *operation, size_t from, uint32_t token);
/* The group is over: the operation fails, unless all that it needs has arrived and the group delivers that. */
void wfi_run_fail(wfi_operation *operation);
void wfi_operation_free(wfi_operation *operation); /* one that was never started */

/* ---- operation.c ------------------------------------------------------------------------------------------------- */

/* Numbers the operation, and begins it as soon as it may. Takes it over. WEFT_OK, or why the group takes none; then it has been
 * freed. Not locked. */
weft_status wfi_operation_start(wfi_operation *operation);
void wfi_operations_begin(weft_group *group); /* those that may begin now. [agent lock] */
/* The one that a message of that member belongs to; NULL: none is under way. [agent lock] */
wfi_operation *wfi_operation_find(weft_group *group, wfi_space space, bool sends, size_t peer, uint64_t number);

/* ---- operation.c, hear.c. All [agent lock] ---------------------------------------------------------------------------- */

/* Tells the members why the group is over, unless this member has done so. */
void wfi_group_tell(weft_group *group);
void wfi_group_ended(wfi_done *done);                                                     /* of a group */
void wfi_group_hear(weft_agent *agent, wfi_peer *from, uint8_t type, wfi_reader *reader); /* a message of `from` */

/* ---- observe.c: metrics and traces ------------------------------------------------------------------------------- */

void wfi_operation_observe_begin(wfi_operation *operation);                   /* not locked */
void wfi_operation_count(const wfi_operation *operation, bool failed);        /* it is over. [agent lock] */
void wfi_operation_observe_end(wfi_operation *operation, weft_status status); /* not locked */
weft_status wfi_groups_write_metrics(weft_agent *agent, FILE *to, const char *who);
void wfi_group_metrics_free(wfi_groups *groups);

/* ---- open.c ------------------------------------------------------------------------------------------------------ */

/* As weft_group_open, of those members of `group` that live: for shrink.c. */
weft_status wfi_group_of_living(weft_group *group, weft_group **out, weft_error **error);

/* ---- rules.c ----------------------------------------------------------------------------------------------------- */

weft_status wfi_rules_of_environment(const weft_agent *agent, wfi_rules *out);
weft_status wfi_group_take_rules(weft_group *group, const weft_group *from); /* a copy. WEFT_ERR_MEMORY */

struct wfi_json;
void wfi_groups_dump(weft_agent *agent, struct wfi_json *j); /* dump.c; [agent lock] */

extern const wfi_component wfi_group_component;

#endif
