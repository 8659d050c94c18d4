/* SPDX-License-Identifier: Apache-2.0 */
/*
 * faults.h - what programs of faults share: jobs of real processes over tcp that are killed, stopped, throttled and
 * cut off.
 *
 * The driver (driver.c) runs one elastic job after the other. A seat is a rank of the job. A life is one process in a
 * seat. A worker that was killed or declared dead is replaced. The board (board.c) is memory that all processes share:
 * it holds the seats, the lives, the quiet clock, and every fault that any process found. A program (faults_program)
 * says what a worker does, and checks the results.
 *
 * TIME. No limit depends on the wall clock, because any process may be stopped, and the machine may be busy. The quiet
 * clock counts ticks in which every process ran and nothing was done to any. Everything that has to end gets a minute
 * of quiet time.
 */
#ifndef TESTS_FAULTS_FAULTS_H
#define TESTS_FAULTS_FAULTS_H

#include "children.h"

#include <weft/weft.h>

#include <stdatomic.h>
#include <string.h>

#define SEATS_MOST 8
#define LIVES_MAX 8192
#define LANES_MOST 4
#define WAITS_MOST 24     /* of one seat at one time */
#define TICK_MS 100       /* of the quiet clock */
#define PATIENCE_MS 60000 /* of quiet time: for anything to end */
#define DEFAULT_MS 10000  /* the limit of calls that name none */
#define EXIT_OUT 3        /* a worker was declared dead, or lost the store, and ended as it should */
#define STATUSES 140      /* more than the largest code of a failure */
#define KINDS_MOST 32     /* of operations */

/* ---- board.c: what all processes share --------------------------------------------------------------------------- */

typedef enum faults_phase {
    PHASE_ON,    /* workers begin operations */
    PHASE_DRAIN, /* no worker begins anything; operations under way end */
    PHASE_DROP,  /* workers drop their objects and references */
    PHASE_CLOSE, /* agents close */
} faults_phase;

typedef enum faults_stage {
    STAGE_NONE,
    STAGE_OPENING,
    STAGE_ON,
    STAGE_DRAINED,
    STAGE_DROPPED,
    STAGE_CLOSING
} faults_stage;

/*
 * An operation that a thread waits for. The driver reports it as a hang if it lasts a minute of quiet time longer than
 * its limit.
 */
typedef struct faults_wait {
    atomic_bool taken;
    atomic_uint since; /* the quiet clock + 1; 0: nothing is waited for */
    atomic_llong limit_ms;
    atomic_bool shown;
    char text[200];
} faults_wait;

/* A seat, as its present life describes it. */
typedef struct faults_seat {
    atomic_int stage;
    atomic_uint life;
    atomic_ulong beats;   /* of a thread that does nothing else: the process runs */
    atomic_bool hauls;    /* set by the driver when a row of stops begins: a good moment for large transfers */
    atomic_bool leave;    /* set by the driver: the worker ends before the job does */
    atomic_int under_way; /* operations that have not ended */
    faults_wait waits[WAITS_MOST];
} faults_seat;

/* A life on the board; the entry stays when the life is over. */
typedef struct faults_life {
    atomic_uint incarnation; /* its number in the job; 0: it has not joined */
    atomic_bool killed;      /* or about to be: what it had under way needs no answer */
    atomic_bool disturbed;   /* it was stopped, throttled or cut off: it may be declared dead */
    atomic_bool over;        /* its process has ended, or begins to leave the job */
    atomic_bool said_dead;   /* an error said that it is dead: then it must not close well */
} faults_life;

typedef enum faults_fault_kind { FAULT_WRONG, FAULT_HANG, FAULT_LEAK, FAULT_KINDS } faults_fault_kind;

typedef struct faults_board {
    int size; /* seats of a job */
    int port, bound_ms, job;
    int scene; /* the only one to play; -1: all */
    uint64_t seed;
    char master[64];
    atomic_int phase;
    atomic_int dump;                     /* incremented: every worker prints what it holds */
    atomic_uint quiet;                   /* ticks in which every process ran and nothing was done to any */
    atomic_uint group_epoch;             /* odd while `group_lives` changes */
    atomic_uint group_lives[SEATS_MOST]; /* the lives that were in the job when the epoch began; 0: none in that seat */
    atomic_ulong at[LANES_MOST][SEATS_MOST];     /* how far each member of a lane is (lanes.c) */
    bool small_budget;                           /* in this job; of faults_program.budget_bytes */
    atomic_ulong outcomes[KINDS_MOST][STATUSES]; /* of operations, by kind and by the failure's code */
    faults_seat seats[SEATS_MOST];
    faults_life lives[LIVES_MAX];
    atomic_ulong refused;     /* members that were taken for unauthenticated peers, by those who closed well */
    atomic_ulong most_in_use; /* bytes of malloc of a worker that closed, and had nothing under way any more */
    atomic_uint faults[FAULT_KINDS];
    atomic_uint fault_count;
    char texts[256][400]; /* of the first faults */
    atomic_bool readable[256];
} faults_board;
extern faults_board *board;

/* In the driver and in each worker. The program's own `book_bytes` of shared memory follow the board. All is zero. */
void board_begin(size_t book_bytes);
void *board_book(void); /* the program's own shared memory */
void board_new_job(int port);
unsigned board_faults(void); /* of all kinds */
/* Counts an operation of this kind that ended with `status`. */
void board_count(int kind, weft_status status);
/* Reports that something happened that must not. */
void fault(faults_fault_kind kind, const char *format, ...) WEFT_PRINTF(2, 3);

/* Around everything that a worker's thread waits for. WEFT_FOREVER: the operation ends by itself without a limit. */
faults_wait *wait_begins(int64_t limit_ms, const char *format, ...) WEFT_PRINTF(2, 3);
void wait_ends(faults_wait *wait);
void board_check_waits(int rank); /* driver */

/* ---- The epoch: who is in the job, as the driver has seen it ----------------------------------------------------- */

typedef struct faults_epoch {
    unsigned number;
    uint32_t lives[SEATS_MOST]; /* by rank */
    int ranks[SEATS_MOST];
    size_t count; /* of `ranks` */
    bool ours;    /* this life is one of them */
} faults_epoch;

bool epoch_read(faults_epoch *out); /* false: it changes at this moment */
bool epoch_is_current(const faults_epoch *e);
/*
 * Whether every life of this epoch is still in the job and nothing was done to any, so that no operation has a reason
 * to fail.
 */
bool epoch_is_undisturbed(const faults_epoch *e);
/* The same of one rank. */
bool epoch_was_disturbed(const faults_epoch *e, int rank);
/*
 * An error said that this worker is dead. If it is the one of the epoch, the driver reports a fault if its life ends
 * well all the same.
 */
void epoch_says_dead(const faults_epoch *e, int rank, uint32_t incarnation);

/* ---- worker.c ---------------------------------------------------------------------------------------------------- */

typedef struct faults_self {
    weft_agent *agent; /* may be NULL in the first handlers: they have the call's */
    int rank;
    uint32_t life;
    faults_seat *seat;
    atomic_bool over; /* begins nothing any more */
} faults_self;
extern faults_self self;

bool goes_on(void); /* whether threads may begin something new */
/* Of the calling thread. */
uint64_t chance_below(uint64_t below);
bool once_in(unsigned times);
uint64_t now_ms(void);
void sleep_ms(uint64_t ms);

/* ---- weather.c: what the driver does to the workers -------------------------------------------------------------- */

typedef struct faults_process {
    child worker; /* pid 0: nobody is in the seat */
    uint32_t life;
    bool killed;         /* by the driver */
    bool leaving;        /* asked to */
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
} faults_process;

typedef struct faults_weather {
    faults_process seats[SEATS_MOST];
    unsigned bound_ms;
    const char *hosts; /* the tag of network namespaces, one a seat; NULL: all are in this one */
    char groups[64];   /* what the names of control groups with processor quotas begin with; "": there are none */
    bool groups_are_v2;
    unsigned kills, leaves, stops, rows, quotas, cuts, losses; /* so far */
} faults_weather;

void weather_begin(faults_weather *w);
void weather_end(faults_weather *w);
void weather_adopt(faults_weather *w, int rank, child worker, uint32_t life); /* a process took the seat */
void weather_turn(faults_weather *w);                                         /* goes on with what is under way */
void weather_clear(faults_weather *w);                                        /* ends all of it */
bool weather_is_calm(const faults_weather *w);
/* These choose whom; false if there is nobody. */
bool weather_kill(faults_weather *w);
bool weather_leave(faults_weather *w);
bool weather_stop(faults_weather *w);
bool weather_quota(faults_weather *w);
bool weather_cut(faults_weather *w);
void weather_kill_seat(faults_weather *w, int rank);

/* ---- driver.c ---------------------------------------------------------------------------------------------------- */

/* A program of faults. All functions but `run` may be NULL. */
typedef struct faults_program {
    const char *name, *about;  /* of the program, and one line that --help shows */
    size_t book_bytes;         /* of memory of its own that all processes share */
    int workers;               /* in a job, unless --workers says otherwise */
    bool fixed_workers;        /* --workers is refused */
    const char *const *scenes; /* their names, for --scene */
    int scene_count;
    bool leaves;              /* workers leave before the job ends, too */
    const char *operations;   /* what is counted, for the table at the end */
    const char *const *kinds; /* the names of its kinds, at most KINDS_MOST */
    int kind_count;
    int64_t budget_bytes;      /* of memory in every third job; 0: no job has a budget */
    int threads;               /* the number of threads of each worker that call `run` */
    void (*run)(int number);   /* one thread, numbered from 0: returns when goes_on() is false */
    unsigned long most_in_use; /* bytes of malloc that a worker may hold when nothing is under way; 0: 64 MiB */

    const weft_function *functions; /* that a worker serves */
    const size_t *function_count;
    void (*adjust)(weft_agent_options *options);
    void (*begin)(void);  /* in a worker whose agent is open, before its threads */
    void (*end)(void);    /* its threads have ended: returns when all they began has ended */
    void (*drop)(void);   /* drops objects, and waits until others have dropped theirs */
    void (*check)(void);  /* nothing is under way in the whole job: reports what is left */
    void (*closed)(void); /* the agent is closed */

    /* In the driver. */
    void (*job_begins)(void);
    void (*job_ended)(void); /* no worker is left */
    void (*look)(void);      /* every few seconds */
    void (*table)(void);     /* prints what was done besides the operations */
} faults_program;

/* The whole program: main returns what it returns. */
int faults_main(const faults_program *program, int argc, char **argv);
int work_in_seat(const faults_program *program, int rank, uint32_t life); /* worker.c; driver.c calls it */

#endif
