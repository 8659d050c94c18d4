/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storm.h - jobs of real processes under attack, and the book that says of every call what was told and what ran.
 *
 * The driver (storm.c) runs one elastic job after the other. Its workers (storm_worker.c) call each other in every way that there is
 * while the driver kills, stops, throttles and cuts them off (storm_weather.c). Each call has an id. The book (storm_book.c)
 * is memory that all processes share: under its id stands how often a call began to run, and how it ended for its caller. Words: a
 * seat is a rank of the job, a life is one process in a seat, a violation is whatever must not be.
 */
#ifndef TESTS_STORM_STORM_H
#define TESTS_STORM_STORM_H

#include <weft/weft.h>

#include <stdatomic.h>
#include <string.h>
#include <sys/types.h>

#define SEATS 5
#define LIVES_MAX 8192
#define CALLS_MAX (1 << 20) /* of one job */
#define STATUSES 140        /* more than the largest code of a failure */
#define TICK_MS 100         /* of the quiet clock */
#define PATIENCE_MS 60000   /* of quiet time: for anything to end */
#define DEFAULT_MS 10000    /* the limit of calls that name none */
#define BOOK_FD "STORM_BOOK"

typedef enum storm_kind {
    NO_CALL, /* an id that is not in use */
    PLAIN,
    INLINE,
    URGENT,
    LAZY,
    ECHO,
    HAUL,
    PLACE,
    SUM,
    SEVERAL,
    GATHER,
    GATHER_LATER,
    STREAM,
    HOP,
    HOLD,
    LINGER,
    FAIL,
    RETAIN,
    ALL,
    MAKE,
    FETCH,
    USE,
    KEEP,
    READ,
    BARRIER,
    ALL_GATHER,
    KINDS
} storm_kind;
extern const char *const storm_kind_names[KINDS]; /* those of functions, where it is one */

/* ---- storm_book.c: what all processes share ------------------------------------------------------------------------- */

typedef enum storm_phase {
    PHASE_ON,    /* everybody calls */
    PHASE_DRAIN, /* nobody begins anything; what is under way ends */
    PHASE_DROP,  /* references are dropped */
    PHASE_CLOSE, /* all objects are gone; agents close */
} storm_phase;

typedef enum storm_stage {
    STAGE_NONE,
    STAGE_OPENING,
    STAGE_ON,
    STAGE_DRAINED,
    STAGE_DROPPED,
    STAGE_CLOSING
} storm_stage;

/* One call. What is no atomic is written before the call starts. */
typedef struct storm_call {
    atomic_uint begun, finished; /* by handlers */
    atomic_int told;             /* 0: under way; 1: it ended, and `status` and `inner` say how */
    int16_t status, inner;
    uint8_t kind, attempts; /* it may run so often */
    int8_t from, to;        /* ranks */
    uint32_t incarnation;   /* of `to`, where it is for that one alone; else 0 */
    uint32_t life;          /* of the caller */
    uint32_t begun_at;      /* on the quiet clock */
    int32_t limit_ms;       /* WEFT_FOREVER: it ends by itself within the default */
    bool lenient;           /* its failure is that of the call that asked after it, and promises nothing */
    atomic_bool shown;      /* as a violation */
} storm_call;

/* A seat, as its present life says. */
typedef struct storm_seat {
    atomic_int stage;
    atomic_uint life;
    atomic_ulong beats;     /* of a thread that does nothing else: the process runs */
    atomic_bool hauls;      /* asked for by the driver */
    atomic_int under_way;   /* calls and operations that have not ended */
    atomic_uint came_epoch; /* of the group: the operation that it has come to */
    atomic_uint came_number;
} storm_seat;

/* What is left in the book of a life that is over. */
typedef struct storm_life {
    atomic_int made, dropped; /* objects behind references, of this life */
    atomic_bool killed;       /* what it had under way needs no answer */
} storm_life;

typedef struct storm_book {
    int port, bound_ms, job;
    uint64_t seed;
    char master[64];
    atomic_int phase;
    atomic_int dump;   /* incremented: every worker prints what it holds */
    atomic_uint quiet; /* ticks in which every process ran and nothing was done to any */
    atomic_llong next_call;
    atomic_uint group_epoch;        /* odd while `group_lives` changes */
    atomic_uint group_lives[SEATS]; /* who is in the group of this epoch; 0: nobody of that seat */
    storm_seat seats[SEATS];
    storm_life lives[LIVES_MAX];
    atomic_ulong outcomes[KINDS][STATUSES]; /* by kind and by the failure's code */
    atomic_ulong refused;     /* members that were taken for unauthenticated peers, by those who closed well */
    atomic_ulong most_in_use; /* bytes of malloc of a worker that closed, and had nothing under way any more */
    atomic_uint violations;
    char texts[64][400]; /* of the first violations */
    storm_call calls[CALLS_MAX];
} storm_book;
extern storm_book *book;

storm_book *book_make(int *fd);
storm_book *book_find(void); /* of a worker: by BOOK_FD */
void book_new_job(int port);

/* Something that must not be. `id` is a call's, or negative. */
void violation(int64_t id, const char *format, ...) WEFT_PRINTF(2, 3);

/* How a call is to be made. */
typedef struct storm_plan {
    weft_target target;
    int to;
    weft_retry retry;
    int64_t limit_ms;
    bool wait_for_room;
} storm_plan;
/* Ids for `count` calls in a row; the first one, or -1: the book is full. Nothing is started yet. */
int64_t book_begin(storm_kind kind, const storm_plan *plan, int count);
/* The caller has been told. Checks that it fits what ran. */
void book_end(int64_t id, weft_status status, weft_status inner);
/* In a handler, first of all, and before its answer. */
void book_runs(int64_t id, storm_kind kind, const weft_call *call);
void book_finishes(int64_t id);
/* Every entry of the job, once nobody is left who could run anything. */
void book_check(void);
/* Calls that nobody answered, although the machine was quiet for long. */
void book_check_answers(void);
void book_count(storm_kind kind, weft_status status);

/* ---- storm_memory.c: contents that follow from an id, and memory that notices who writes to it ------------------------- */

typedef enum storm_salt { ARGUMENT = 1, RESULT = 2 } storm_salt; /* + 16 for each further tensor or part */

void words_fill(uint32_t *out, size_t count, int64_t id, unsigned salt);
/* The first wrong one; `count` if all are right. */
size_t words_wrong_at(const uint32_t *words, size_t count, int64_t id, unsigned salt);
/* A tensor whose content is wrong is a violation. */
void check_tensor(const weft_tensor *tensor, int64_t id, unsigned salt, const char *what);
weft_tensor *make_tensor(size_t count, int64_t id, unsigned salt); /* weft's own memory */

/* Memory between canaries. */
typedef struct storm_room storm_room;
storm_room *room_make(size_t count, int64_t id); /* of so many words */
uint32_t *room_words(storm_room *room);
weft_tensor *room_tensor(storm_room *room); /* lent: the room lives as long as anybody may use it */
/* From here on nobody may read it: it is overwritten and freed at once. */
void room_end_unread(storm_room *room);
/* From here on nobody may write to it: that is seen when it is freed, some time later. */
void room_end_unwritten(storm_room *room);
void rooms_end(void); /* checks those that are kept */

/* ---- storm_worker.c ---------------------------------------------------------------------------------------------------- */

#define EXIT_OUT 3 /* the worker was declared dead, or lost the store, and ended as it should */

typedef struct storm_self {
    weft_agent *agent; /* may be NULL in the first handlers: they have the call's */
    int rank;
    uint32_t life;
    storm_seat *seat;
    atomic_bool over; /* begins nothing any more */
} storm_self;
extern storm_self self;

int work_in_seat(int rank, uint32_t life);
bool goes_on(void); /* whether threads may begin something new */
/* Of the calling thread. */
uint64_t chance_below(uint64_t below);
bool once_in(unsigned times);
uint64_t now_ms(void);
void sleep_ms(uint64_t ms);

/* ---- storm_functions.c: what they serve -------------------------------------------------------------------------------- */

extern const weft_function storm_functions[];
extern const size_t storm_function_count;
void functions_begin(void); /* the thread that finishes deferred calls */
void functions_end(void);   /* once all are finished; checks what was retained, and the sum */

/* ---- storm_calls.c: the caller's side ---------------------------------------------------------------------------------- */

storm_plan plan_call(weft_agent *agent);
void step_call(void); /* one call, or a cancellation */
void step_haul(void); /* a row of large results, most of which are cancelled on their way */
/* Whether a call of this kind may end so. */
bool status_fits(storm_kind kind, weft_status status, bool cancelled);
int calls_under_way(void);

/* ---- storm_things.c: references ---------------------------------------------------------------------------------------- */

void step_thing(void);
void drop_things(void);
weft_status run_make(weft_call *call, void *user);
weft_status run_use(weft_call *call, void *user);
weft_status run_keep(weft_call *call, void *user);
weft_status run_read(weft_call *call, void *user);

/* ---- storm_groups.c ---------------------------------------------------------------------------------------------------- */

void meet_until_over(void);

/* ---- storm_weather.c: what the driver does to the workers -------------------------------------------------------------- */

typedef struct storm_process {
    pid_t pid; /* 0: nobody is in the seat */
    uint32_t life;
    bool killed;         /* by us */
    bool disturbed;      /* ever in this life */
    uint64_t restart_at; /* all times are in milliseconds */
    bool stopped;
    uint64_t stop_until;     /* or, between two stops of a row, begin again */
    int stops_left;          /* of a row: further ones, */
    unsigned stop_ms, go_ms; /* so long and so far apart */
    bool cut;
    uint64_t cut_until;
    int cuts_left;
    unsigned cut_ms, whole_ms;
    bool throttled;
    uint64_t throttled_until;
} storm_process;

typedef struct storm_weather {
    storm_process seats[SEATS];
    unsigned bound_ms;
    const char *hosts; /* the tag of network namespaces, one a seat; NULL: all are in this one */
    char groups[64];   /* what the names of control groups with processor quotas begin with; "": there are none */
    bool groups_are_v2;
    unsigned kills, stops, rows, quotas, cuts, losses; /* so far */
} storm_weather;

void weather_begin(storm_weather *w);
void weather_end(storm_weather *w);
void weather_adopt(storm_weather *w, int rank, pid_t pid, uint32_t life); /* a process took the seat */
void weather_turn(storm_weather *w);                                      /* goes on with what is under way */
void weather_clear(storm_weather *w);                                     /* ends all of it */
bool weather_is_calm(const storm_weather *w);
/* These choose whom; false if there is nobody. */
bool weather_kill(storm_weather *w);
bool weather_stop(storm_weather *w);
bool weather_quota(storm_weather *w);
bool weather_cut(storm_weather *w);
void weather_kill_seat(storm_weather *w, int rank);

#endif
