/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.h - jobs of real processes under attack, and the book that says of every call what was told and what ran.
 *
 * The driver (faults/driver.c) runs one elastic job after the other. Its workers (faults/worker.c, calls.c) call each
 * other in every way that there is while the driver kills, stops, throttles and cuts them off (faults/weather.c). Each
 * call has an id. The book (calls_book.c) is memory that all processes share. It holds, for each id, how often the call
 * began to run, and how it ended for its caller. A violation is a fault of a call.
 */
#ifndef TESTS_FAULTS_CALLS_H
#define TESTS_FAULTS_CALLS_H

#include "rpc/promise.h"
#include "faults/faults.h"

#define SEATS 5
#define CALLS_MAX (1 << 20) /* of one job */

typedef enum calls_kind {
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
} calls_kind;
extern const char *const calls_kind_names[KINDS]; /* those of functions, where it is one */

/* ---- calls_book.c: what all processes share ------------------------------------------------------------------- */

/* One call. What is no atomic is written before the call starts. */
typedef struct calls_call {
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
} calls_call;

typedef struct calls_life {
    atomic_int made, dropped; /* objects behind references, of this life */
} calls_life;

typedef struct calls_book {
    atomic_llong next_call;
    struct {
        atomic_uint epoch, number; /* the operation of the group that this seat has come to */
    } came[SEATS];
    calls_life lives[LIVES_MAX];
    calls_call calls[CALLS_MAX];
} calls_book;
#define book ((calls_book *)board_book())

void book_new_job(void);

/* Something that must not be. `id` is a call's, or negative. */
void violation(int64_t id, const char *format, ...) WEFT_PRINTF(2, 3);

/* How a call is to be made. */
typedef struct calls_plan {
    weft_target target;
    int to;
    weft_retry retry;
    int64_t limit_ms;
    bool wait_for_room;
} calls_plan;
/* Ids for `count` calls in a row; the first one, or -1: the book is full. Nothing is started yet. */
int64_t book_begin(calls_kind kind, const calls_plan *plan, int count);
/* The caller has been told. Checks that it fits what ran. */
void book_end(int64_t id, weft_status status, weft_status inner);
/* In a handler, first of all, and before its answer. */
void book_runs(int64_t id, calls_kind kind, const weft_call *call);
void book_finishes(int64_t id);
/* Every entry of the job, once nobody is left who could run anything. */
void book_check(void);
/* Calls that nobody answered, although the machine was quiet for long. */
void book_check_answers(void);

/* ---- calls_memory.c: contents that follow from an id, and memory that notices who writes to it ---------------- */

typedef enum calls_salt { ARGUMENT = 1, RESULT = 2 } calls_salt; /* + 16 for each further tensor or part */

void words_fill(uint32_t *out, size_t count, int64_t id, unsigned salt);
/* The first wrong one; `count` if all are right. */
size_t words_wrong_at(const uint32_t *words, size_t count, int64_t id, unsigned salt);
/* A tensor whose content is wrong is a violation. */
void check_tensor(const weft_tensor *tensor, int64_t id, unsigned salt, const char *what);
weft_tensor *make_tensor(size_t count, int64_t id, unsigned salt); /* weft's own memory */

/* Memory between canaries. */
typedef struct calls_room calls_room;
calls_room *room_make(size_t count, int64_t id); /* of so many words */
uint32_t *room_words(calls_room *room);
weft_tensor *room_tensor(calls_room *room); /* lent: the room lives as long as anybody may use it */
/* From here on nobody may read it: it is overwritten and freed at once. */
void room_end_unread(calls_room *room);
/* From here on nobody may write to it: that is seen when it is freed, some time later. */
void room_end_unwritten(calls_room *room);
void rooms_end(void); /* checks those that are kept */

/* ---- calls_functions.c: what they serve ----------------------------------------------------------------------- */

extern const weft_function calls_functions[];
extern const size_t calls_function_count;
void functions_begin(void); /* the thread that finishes deferred calls */
void functions_end(void);   /* once all are finished; checks what was retained, and the sum */

/* ---- calls_kinds.c: the caller's side ------------------------------------------------------------------------- */

calls_plan plan_call(weft_agent *agent);
void step_call(void); /* one call, or a cancellation */
void step_haul(void); /* a row of large results, most of which are cancelled on their way */
/* Whether a call of this kind may end so. */
bool status_fits(calls_kind kind, weft_status status, bool cancelled);
int calls_under_way(void);

/* ---- calls_things.c: references ------------------------------------------------------------------------------- */

void step_thing(void);
void drop_things(void);
weft_status run_make(weft_call *call, void *user);
weft_status run_use(weft_call *call, void *user);
weft_status run_keep(weft_call *call, void *user);
weft_status run_read(weft_call *call, void *user);

/* ---- calls_groups.c ------------------------------------------------------------------------------------------- */

void meet_until_over(void);

#endif
