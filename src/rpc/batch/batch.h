/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h - calls of one function gathered into batches: what batcher.c (who comes in), rows.c (where it sits), row_pin.c
 * (or lies), schedule.c (when a batch begins), run.c (its handler, its results) and batch/handler_api.c share.
 *
 * A batcher belongs to a registered function. Calls whose tensors have the same dtypes and shapes are of one form. A form has open
 * batches, oldest first, and extras: whole calls that got no seat, as their caller had its share of the newest batch. A seat is a
 * row: the place that the call's tensors are pulled to while it is being taken in. Before a batch begins, extras take the seats that
 * are left, their callers in turn. And where a batch is full of calls of callers who have more than their share, as they came
 * first, one who has less takes a seat from them: that call becomes an extra. Who was late for a batch sits at the end of the next
 * ones: a late row in the midst leaves nowhere n rows next to each other, and all would be copied.
 *
 * A call of a batched function is QUEUED from its admission until its batch begins or it leaves: refused, cancelled, out of time. In
 * its batch it is like a deferred call that weft_batch_finish finishes.
 *
 * LOCKING. All of it is guarded by the agent's lock, but for what stands under "the handler's": that belongs to the thread that runs
 * or finishes the batch.
 */
#ifndef WFI_BATCH_H
#define WFI_BATCH_H

#include "base/histogram.h"
#include "rpc/server/server.h"

/* A caller counts among those who share for so many batches after its last call, and for so many after it was late among those who
 * sit at the end. */
#define WFI_REMEMBERED_BATCHES 8

typedef struct wfi_batch_form {
    wfi_list link;                /* in the batcher's forms */
    uint64_t hash;                /* of `tensors` */
    struct wfi_batch_form *alike; /* the next one of this hash */
    wfi_list open;                /* weft_batch.link */
    wfi_list extras;              /* wfi_batch_extras.link: whose turn is next is the first */
    size_t extra_count;           /* calls in these */
    size_t extra_callers;         /* how many they are */
    wfi_tensor_type tensors[];    /* of one row each: as many as the batcher's calls have */
} wfi_batch_form;

/* The extras of one caller. */
typedef struct wfi_batch_extras {
    wfi_list link;
    wfi_batch_form *form;
    struct wfi_batch_caller *caller;
    wfi_list calls; /* weft_call.extra_link, oldest first */
} wfi_batch_extras;

typedef struct wfi_lodging wfi_lodging;

typedef struct wfi_seat {
    weft_call *call; /* NULL: free */
    struct wfi_batch_caller *caller;
    bool ready;    /* it is whole */
    bool spoiled;  /* what lies in its row is of a call that had to leave it to another caller's */
    size_t placed; /* bytes of the call that lie in the slabs */
} wfi_seat;

/* How many seats a caller has in a batch, and how many of these are ready. */
typedef struct wfi_seat_count {
    unsigned taken, ready;
} wfi_seat_count;

struct weft_batch {
    struct wfi_batcher *batcher;
    wfi_batch_form *form; /* while open */
    wfi_list link;        /* in form->open */
    bool open;
    bool hurries;     /* somebody in it was too late for the one before: it waits for nobody else */
    bool nobody_else; /* all who are expected have calls in open batches, though not all in this one: no newcomers */
    bool has_left;    /* its handler has returned, and the batch is deferred */
    int holds;        /* the handler's thread, whoever finishes it */
    wfi_lodging *lodging;                   /* NULL: nobody lodges here */
    size_t taken, ready, scanned;           /* seats; below `scanned` none is free */
    size_t scanned_back;                    /* nor among so many of the last that have a row */
    size_t room;                            /* in `seats` and `calls`: they grow */
    size_t callers_known;                   /* in `of_caller` */
    size_t spare_bytes;                     /* of places that no call has paid for, against the memory budget */
    uint64_t first_ns;                      /* when its first call was whole; 0: none yet */
    uint64_t last_ns;                       /* and its last */
    uint64_t could_ns;                      /* since when it has a whole call and might have begun; 0: not yet */
    uint64_t due_ns;                        /* since when it waits for seats that are not ready alone; 0: it does not */
    int reason;                             /* why it closed: schedule.c */
    uint64_t seed;                          /* of its tape */
    weft_tensor *slabs[WEFT_MAX_SIGNATURE]; /* a row for each of the first seats; perhaps not for all */
    wfi_seat *seats;                        /* when it runs, those that came too late */
    wfi_seat_count *of_caller;              /* by wfi_batch_caller.number */

    /* ---- the handler's ---- */
    weft_agent *agent; /* referenced */
    weft_call **calls;
    size_t count;
    weft_tensor *rows[WEFT_MAX_SIGNATURE];  /* what it sees, by the tensors of `takes` */
    weft_tensor *given[WEFT_MAX_SIGNATURE]; /* by `gives` */
    weft_error *error;
    wfi_call_slot slot;
    bool in_place; /* it sees rows of the slabs, from `first_row` on: nobody else's are among them, or written to */
    size_t first_row;
    bool deferred, ran;
    uint64_t copied_bytes, made_bytes; /* made: of tensors that are no slabs */
    uint64_t began_ns;
    wfi_task task;
};

typedef struct wfi_batch_caller {
    int rank;
    size_t number; /* they are counted from 0 as they come */
    size_t queued;
    uint64_t seen;   /* `begun` of the batcher at its last call */
    uint64_t served; /* and after the last batch with one of its calls */
    size_t seated;   /* whole calls with a seat in a batch that has not begun */
    uint64_t late;   /* and after the last that began while a call of its was being pulled; 0: none */
    bool is_active;  /* counted in `active` */
} wfi_batch_caller;

typedef struct wfi_batcher {
    struct wfi_batcher *next; /* of the agent's; constant once it is announced */
    weft_agent *agent;
    const weft_function *function;
    weft_batch_options options;           /* without zeros; `callers` is owned, and guarded by the agent's lock */
    size_t tensor_count;                  /* in `takes` */
    wfi_list forms;                       /* by turns */
    wfi_map forms_by_hash;                /* the same: each hash's first */
    size_t queued;                        /* calls */
    size_t running;                       /* batches */
    wfi_map callers;                      /* wfi_batch_caller, by rank */
    size_t active;                        /* callers among whom batches are shared */
    size_t recent_max;                    /* the largest batch lately */
    uint64_t begun;                       /* batches */
    double gap_ns, handler_ns, chosen_ns; /* averages, recent ones weigh more; 0: not known */
    uint64_t arrived_ns, finished_ns;     /* the last call, the last batch */
    wfi_timer timer;
    uint64_t look_ns; /* when it fires; WFI_NEVER: it is not set */
    weft_batch_stats stats;
    wfi_histogram sizes, waits;
} wfi_batcher;

/* ---- batcher.c: who comes in. [agent lock] unless stated ------------------------------------------------------------------ */

/* What is wrong with the options or the signature of a batched function; NULL: nothing. */
const char *wfi_batch_problem(const weft_function *function);
/* These four: not locked. */
weft_status wfi_batcher_create(weft_agent *agent, const weft_function *function, wfi_batcher **out);
void wfi_batcher_announce(wfi_batcher *batcher);            /* to wfi_batchers_pump */
void wfi_batcher_destroy(wfi_batcher *batcher);             /* with the agent; NULL is a no-op */
wfi_batcher *wfi_batcher_of(const weft_function *function); /* NULL: it is not batched */
/* Whether a call may wait, asked before anything of it is taken in; else why not. */
weft_error *wfi_batch_admit(weft_call *call);
void wfi_batch_join(weft_call *call);  /* its arguments are whole */
void wfi_batch_leave(weft_call *call); /* it will not be in a batch, if it was to be */
/* The same of one that waits: nobody wants its answer any more. */
void wfi_batch_leave_out(weft_call *call, weft_status why, const char *text);
void wfi_batch_unqueue(weft_call *call);
size_t wfi_batch_share(const wfi_batcher *batcher, size_t whole);      /* of one caller, rounded up */
wfi_batch_caller *wfi_batch_caller_of(wfi_batcher *batcher, int rank); /* NULL: it never called */
void wfi_batch_count_active(wfi_batcher *batcher);

/* ---- rows.c: where it sits. [agent lock] --------------------------------------------------------------------------- */

/* What is to come: gives the call a seat, if there is one for it. */
void wfi_batch_expect(void *call, const wfi_tensor_types *types);
/* Where an argument of a call is to be pulled to: a wfi_place_fn. */
weft_tensor *wfi_batch_place(void *call, size_t index, weft_dtype dtype, weft_shape shape);
/* For a whole call: the seat that it has, another one, or a place among the extras. False: memory is out. */
bool wfi_batch_find_room(weft_call *call, weft_tensor *const *tensors);
void wfi_batch_leave_room(weft_call *call);
weft_batch *wfi_batch_open(wfi_batcher *batcher, wfi_batch_form *form); /* NULL: memory is out */
void wfi_batch_close_empty(weft_batch *batch);              /* one that nobody got a seat in; its form stays */
void wfi_batch_fill(weft_batch *batch, bool beyond_shares); /* with extras */
bool wfi_batch_has_call_of(const weft_batch *batch, const wfi_batch_caller *caller); /* a whole one */
void wfi_batch_shut(weft_batch *batch);                                              /* it takes no more calls */
void wfi_batch_free_if_over(weft_batch *batch);

/* ---- row_pin.c. [agent lock] ------------------------------------------------------------------------------------- */

/* The call leaves its seat, and its arguments stay where they are. */
void wfi_batch_lodge(weft_batch *batch, weft_call *call);
void wfi_batch_move_out(weft_call *call); /* its arguments are gone: it lodges nowhere any more, if it did */
/* The batch has begun, and others' rows keep the slabs: whoever was in it pays for his no more. */
void wfi_batch_charge_whole(weft_batch *batch);
void wfi_batch_leave_to_lodgers(weft_batch *batch); /* it is over: what the slabs count for is theirs */
/* `agent`: in whose budget it counts; NULL: that is closed, and the lock is not needed. */
void wfi_lodging_unref(wfi_lodging *lodging, weft_agent *agent);

/* ---- schedule.c --------------------------------------------------------------------------------------------------- */

/* Begins whatever batches are due. [agent lock] */
void wfi_batcher_pump(wfi_batcher *batcher);
/* Somebody left the job, or this worker is about to. [agent lock] */
void wfi_batchers_pump(weft_agent *agent);
void wfi_batch_arrived(weft_call *call, uint64_t now_ns); /* it is whole, and has a seat or is an extra. [agent lock] */
void wfi_batch_timer(wfi_timer *timer);
void wfi_batch_note_handler(weft_batch *batch, uint64_t now_ns); /* it is over. [agent lock] */
void wfi_batch_count(weft_batch *batch, uint64_t now_ns);        /* its handler begins. [agent lock] */

/* ---- run.c ----------------------------------------------------------------------------------------------------- */

void wfi_batch_task(wfi_task *task); /* what a batch that begins is queued as */
/* Refuses a batch that was withdrawn from the executor's queue. [agent lock] */
extern const wfi_component wfi_batch_component;

#endif
