/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - what the parts of the random programs share: the book that they keep of all that is done in one
 * simulated job.
 *
 * All is one thread: programs, handlers and the director are fibers of it, and give way only where they wait. Words:
 * an actor is a place in the simulation, a life is one agent from its opening to its end, an entry is a call that
 * was started, a thing is a value or an object behind references.
 */
#ifndef TESTS_RPC_RANDOM_H
#define TESTS_RPC_RANDOM_H

#include "rpc/promise.h"
#include "rpc/must.h"
#include "rpc/spoiler.h"

#include <weft/weft.h>

#include <string.h>

#define ACTORS_MAX 6
#define LIVES_MAX 64
#define DIRECTOR 1000    /* its rank in the simulation */
#define DEATH_MS 500     /* the bound */
#define BRIEF_MS 150     /* nobody is declared dead for a silence of that */
#define DEFAULT_MS 8000  /* limit of calls that name none */
#define PATIENT_MS 5000  /* a limit that nothing reaches where nothing was disturbed */
#define TOLD_SOON_MS 100 /* that somebody gave up, where connections hold */
#define FUNCTIONS_MAX 32
#define HANDLES_MAX 8
#define MEETINGS_MAX 4
#define TENSORS_MAX 4
#define PLACES_MAX 3
#define PLACE_COUNT 5000 /* elements of a place where arguments land */
#define NS_PER_MS 1000000u

#define MUST_IN_JOB(condition)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            tell_where();                                                                                              \
            MUST(condition);                                                                                           \
        }                                                                                                              \
    } while (0)

typedef struct life life;
typedef struct entry entry;
typedef struct thing thing;

/* Whom a call is for. */
typedef struct whom {
    int rank;             /* -1: only the name is known */
    int actor;            /* whose name it was, or -1 */
    uint32_t incarnation; /* or 0 */
} whom;

struct entry {
    int64_t id;
    const char *function;
    life *by;
    whom to;
    entry *parent;             /* the call that it was made within, or NULL */
    entry *next;               /* of `by` */
    int64_t limit_ms, told_ms; /* told of its end by a call that has this limit */
    uint64_t begun_ns, ended_ns;
    uint64_t worked_ns; /* the caller's, when it began */
    int attempts;       /* it may run so often */
    int64_t attempt_ms; /* the limit of one; or 0 */
    int many;           /* of a multicast's first entry: how many there are */
    bool waits;         /* for others, or long: its time limit may pass though all is well */
    bool strange, started, cancelled, may_be_refused, chains;
    thing *about, *from; /* what its reference names; what it was made from */

    weft_future *future, *then;
    weft_tensor *sent, *land;
    int parts_seen, then_runs, then_drops;
    int done_calls;
    weft_status status, inner; /* once it ended */
    bool ended;

    int runs, inside;     /* handlers that began, that are at it */
    weft_status answered; /* by the handler */
    uint64_t answered_ns;
    bool at_home;    /* of its caller's own: it ends after the handler, whatever it ends with */
    bool keeps_none; /* but for one that is deferred without its arguments */
    int64_t gave;    /* with it: its number */
};

/* A value (no drops) or an object behind references. */
struct thing {
    int64_t number;
    thing *next;
    life *owner; /* once made */
    entry *maker;
    bool object;
    int made, drops;
    int held[LIVES_MAX]; /* handles that are in the test's hands, by life */
};

typedef struct handle {
    weft_rref *rref;
    thing *of;
} handle;

typedef struct held_call {
    struct held_call *next;
    weft_call *call;   /* or */
    weft_batch *batch; /* of several */
    entry *of;
} held_call;

typedef struct meeting { /* an operation of a group */
    weft_future *future;
    weft_group *group;
    int number;
} meeting;

struct life {
    int actor, number; /* the place in job.lives */
    int rank;          /* -1 while it is not known */
    uint64_t state;    /* of its chance */
    weft_function functions[FUNCTIONS_MAX];
    weft_agent *agent;
    entry *entries;
    held_call *held, **held_end;
    handle handles[HANDLES_MAX];
    weft_tensor *places[PLACES_MAX], *total;
    bool place_given[PLACES_MAX];
    int64_t added;         /* what `total` must hold */
    weft_group *groups[2]; /* of all, and of the first few */
    meeting meetings[MEETINGS_MAX];
    int meeting_count;
    weft_worker known[ACTORS_MAX]; /* whom it once saw at a rank: perhaps gone since */
    int watches[ACTORS_MAX];
    uint32_t watched[ACTORS_MAX];                     /* which incarnation */
    enum { NOT_TOLD, THERE, GONE } there[ACTORS_MAX]; /* by what it was told */
    uint64_t there_ns[ACTORS_MAX];                    /* since when */
    int ends_told[ACTORS_MAX];
    weft_member_event told_self;
    bool suspect;   /* killed, or silent or cut off for so long that it may be declared dead */
    bool killed;    /* by the simulation */
    bool leaving;   /* closing or stopping */
    bool finishing; /* keeps nothing for others any more */
    bool over;
    bool
        moved; /* it may have been taken in, and thrown out again, before its opening succeeded: at another rank, then */
    int asked_again; /* for a place in the job, at most, as the store was silent: each time it may have been taken in */
    bool late;       /* not one of the first of a job: it opened when others may have gone */
    uint64_t tried_ns, opened_ns; /* the opening that succeeded: from, to; 0 before */
    uint64_t paused_ns;
    uint64_t worked_ns; /* by handlers that had a worker to themselves, all together */
    int stops_at;       /* the step before which it stops at once; or -1 */
    bool leaves_early;  /* does not wait for the others */
};

typedef enum actor_state { ACTOR_NONE, ACTOR_BUSY, ACTOR_RESTING } actor_state;

typedef struct role { /* of an actor */
    actor_state state;
    int programs; /* begun */
    bool ill;     /* paused or cut off at this moment, for long */
    uint64_t disturbed_until_ns;
    life *now;
} role;

typedef enum mood {
    CALM,   /* connections break, and nothing else */
    SHAKEN, /* and short silences: nobody dies */
    BROKEN, /* and deaths, long silences, cuts, workers that stop at once; the store stays */
    LOST,   /* and the store goes */
    MOODS
} mood;

typedef struct job {
    struct job *next_grave;
    uint64_t seed;
    weft_sim *sim;
    mood mood;
    bool elastic;
    int actors, steps;
    size_t budget, queue_limit; /* 0: the defaults */
    role cast[ACTORS_MAX];
    life *lives[LIVES_MAX];
    int life_count;
    entry **entries;
    int64_t entry_count, entry_room;
    thing *things;
    int64_t thing_count;
    int came[MEETINGS_MAX]; /* members that began an operation of the group */
    int meetings, few;      /* operations of groups; members of the smaller group */
    bool directed;          /* the director is done */
    int beginnings;         /* how often an actor became busy */
    uint64_t breaks_ns[2];  /* of connections that broke one soon after the other: the first, the last */
    bool shaken;            /* something was disturbed, if only for a moment */
    bool store_at_risk;
    bool ending; /* the job's graceful end has begun: nobody begins anew */
    int kills;
    bool has_fabrics; /* workers open several fabrics, and `spoiler` does harm to them */
    spoiler spoiler;
} job;

extern job *now_playing;

/* ---- random_chance.c ------------------------------------------------------------------------------------------ */

int below(uint64_t *state, int limit);
/* True once in so many times. */
bool once_in(uint64_t *state, int times);
uint64_t now_ns(void);
void sleep_us(uint64_t us);

/* ---- random_book.c: the book, and what must hold of calls ----------------------------------------------------- */

void tell_where(void); /* seed and time, before an assertion fails */
life *life_begin(int actor, int rank);
entry *entry_begin(life *by, const char *function, whom to, int64_t limit_ms);
/* Its future is complete, or it could not be started: checks that this fits. */
void entry_end(entry *e, weft_status status, weft_status inner);
/* In a handler: the call's entry, which begins to run here. */
entry *entry_runs(const weft_call *call);
entry *entry_of(const weft_call *call);
weft_status entry_answers(entry *e, weft_status status); /* returns it */
void show_running(void);                                 /* calls that are in their handlers */
/* The world has ended. */
void check_book(void);
uint64_t digest_book(void); /* of what happened in the world, and to each call and thing */
bool may_not_be(const thing *t);
bool is_excused(const life *l); /* it may be dead, or out, or gone for the others */

/* ---- random_functions.c --------------------------------------------------------------------------------------- */

/* What "mixed" is called with, by the call's number. */
void fill_bytes(uint8_t *out, size_t size, int64_t number);
/* Fills l->functions; returns how many. */
size_t give_functions(life *l);
void release_one(life *l);
void release_all(life *l);

/* ---- random_calls.c ------------------------------------------------------------------------------------------- */

const char *name_of_actor(int actor);
weft_target choose_target(life *l, whom *to);
int64_t choose_limit(life *l);
/* Starts it; `how` may have anything but timeout and error. */
void start(entry *e, weft_target to, weft_args args, weft_rpc_options how);
/* The rest of start, for calls that are started otherwise: `status` is what that returned. */
void watch_entry(entry *e, weft_status status);
void step_call(life *l);
void step_tensor(life *l);
void step_gather(life *l);
void step_values(life *l);
void step_multicast(life *l);
void step_cancel(life *l);
void step_wait_any(life *l);
void await_entries(life *l);
void forget_entries(life *l);

/* ---- random_things.c ------------------------------------------------------------------------------------------ */

thing *thing_begin(bool object);
void thing_made(thing *t, life *owner);
void hold(life *l, thing *t);
void let_go(life *l, thing *t, weft_rref *rref);
/* Nobody sees a handle before its owner has counted it; but in calls to oneself, which are by reference. */
void check_confirmed(const weft_rref *rref, const entry *e, bool to_itself);
extern const weft_object_type thing_type;
void step_thing(life *l);
/* Puts a handle among those that a life keeps, in the place of another; takes the reference. */
void keep_handle(life *l, weft_rref *rref, thing *of, int at);
void drop_handles(life *l);
/* A call's result is a reference: takes it among the handles of who called. */
void take_lent(entry *e, const weft_values *values);

/* ---- random_members.c: membership, groups, and what is left at the end ---------------------------------------- */

int times_asked_again(const life *l);
void on_membership(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg);
void begin_meetings(life *l);
void step_meeting(life *l);
void await_meetings(life *l);
void step_watch(life *l);
/* That one is being killed: whoever counted on it and is well must be told within the bound. */
void expect_news_of(const life *dead);
/* Dump, metrics and counters, read at any moment. */
void step_look(life *l);
/* Nothing is held, or under way. */
void check_quiet(life *l);

/* ---- random_programs.c, random_director.c --------------------------------------------------------------------- */

void run_actor(weft_sim *sim, int rank, void *arg);
void run_director(weft_sim *sim, int rank, void *arg);

#endif
