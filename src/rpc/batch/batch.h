/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h - calls of one function gathered into batches (weft/batch.h says what users see of it).
 *
 * WHAT IT OFFERS. A function with run_batch has a batcher, which serves its calls (wfi_runner_ops). The server asks the
 * batcher to admit a call before it takes the arguments in, and where they are to go (rows.c). When the call is whole
 * the server hands it over; it also says if a call will not run after all. The batcher begins batches by itself.
 *
 * The calls whose tensors have the same dtypes and shapes form a shape class. A class has open batches, which take
 * calls, the oldest batch first. A row is a call's place in a batch. When the call's header arrives the call gets a row
 * of an open batch, its tensors are pulled into that row of the batch's slabs, and when they are there the row is
 * ready. A batch begins with the rows that are ready. A call whose row is not ready then is late: once it is whole it
 * is copied into a row of another batch.
 *
 * FILES, from the bottom: client.c (who calls, and how many calls may wait), rows.c (shape classes, open batches, their
 * rows), schedule.c (when a batch begins), run.c (its handler, its results), batcher.c (makes and frees batchers;
 * serves calls), handler_api.c (what a handler calls), metrics.c. Calls go down only; schedule.c reaches run.c by
 * `batcher->run`.
 *
 * LOCK. The agent's lock guards all of it, but for what stands under "the handler's": that belongs to the thread that
 * runs or finishes the batch.
 *
 * LIFETIME. A batcher lives as long as its agent. A batch lives while it is open, until its handler is over, and while
 * a call has a row of it. A shape class lives as long as it has an open batch.
 */
#ifndef WFI_BATCH_H
#define WFI_BATCH_H

#include "base/histogram.h"
#include "rpc/server/server.h"

typedef struct wfi_shape_class {
    uint64_t hash;             /* of `tensors`: its key in the batcher's map */
    wfi_list open;             /* weft_batch.class_link, oldest first */
    wfi_tensor_type tensors[]; /* of one row each: as many as the batcher's calls have */
} wfi_shape_class;

/* Somebody who calls the function. */
typedef struct wfi_batch_client {
    int rank;
    size_t number;  /* counted from 0, in the order in which they first called */
    size_t queued;  /* its calls that wait, or are pulled */
    size_t waiting; /* those of them that are whole */
    uint64_t seen;  /* batcher->begun at its last call */
    bool is_active; /* counted in batcher->active */
} wfi_batch_client;

typedef struct wfi_row {
    weft_call *call; /* NULL: the row is free */
    wfi_batch_client *client;
    bool ready;    /* the call is whole */
    size_t placed; /* bytes of the call that lie in the slabs */
} wfi_row;

/* How many rows of a batch one client has. */
typedef struct wfi_row_count {
    unsigned taken, ready;
} wfi_row_count;

struct weft_batch {
    wfi_handle handle;
    struct wfi_batcher *batcher;
    wfi_shape_class *class; /* while open */
    wfi_list link;          /* in batcher->open */
    wfi_list class_link;    /* in class->open */
    bool open;
    bool hurries;         /* it has a late call, and waits for nobody else */
    bool takes_no_others; /* all expected callers have calls in open batches, if not all in this one */
    bool has_left;        /* its handler has returned, and the batch is deferred */
    int holds;            /* the handler's thread, and whoever finishes it */
    size_t taken, ready;  /* rows */
    size_t scanned;       /* no row below this one is free */
    size_t room;          /* elements of `rows` and `calls` */
    size_t clients_known; /* elements of `of_client` */
    size_t clients_ready; /* clients with a ready row */
    size_t spare_bytes;   /* of the slabs, and copies: bytes that no call is charged for */
    uint64_t first_ns;    /* when its first call was whole; 0: none yet */
    uint64_t last_ns;     /* when its last one was */
    uint64_t could_ns;    /* since when it has a ready row and might have begun; 0: not yet */
    uint64_t due_ns;      /* since when it waits only for rows that are not ready; 0: it does not */
    int reason;           /* why it began: schedule.c */
    uint64_t seed;        /* of its tape */
    weft_tensor *slabs[WEFT_MAX_SIGNATURE]; /* a row for each of the first calls; perhaps not for all */
    wfi_row *rows;                          /* once it runs, those of late calls */
    wfi_row_count *of_client;               /* by wfi_batch_client.number */

    /* ---- the handler's ---- */
    weft_agent *agent; /* referenced */
    weft_call **calls;
    size_t count;
    weft_tensor *seen[WEFT_MAX_SIGNATURE];  /* what the handler sees, by the tensors of `takes` */
    weft_tensor *given[WEFT_MAX_SIGNATURE]; /* by `gives` */
    weft_error *error;
    wfi_call_slot slot;
    bool in_place; /* it sees the first `count` rows of the slabs */
    bool deferred, ran;
    uint64_t copied_bytes, made_bytes; /* made: of tensors that are no slabs */
    uint64_t began_ns;
    wfi_task task;
};

typedef struct wfi_batcher {
    wfi_runner runner;
    struct wfi_batcher *next; /* of the agent's; constant once it is announced */
    weft_agent *agent;
    const weft_function *function;
    void (*run)(wfi_task *task);          /* a batch that begins: wfi_batch_task */
    weft_batch_options options;           /* without zeros; `callers` is owned, and guarded by the agent's lock */
    size_t tensor_count;                  /* in `takes` */
    wfi_list open;                        /* weft_batch.link: all that are open, oldest first */
    wfi_map class_by_hash;                /* wfi_shape_class */
    wfi_map clients;                      /* wfi_batch_client, by rank */
    size_t active;                        /* clients that called during the last few batches */
    size_t queued;                        /* calls */
    size_t running;                       /* batches */
    size_t recent_max;                    /* the largest batch lately */
    uint64_t begun;                       /* batches */
    double gap_ns, handler_ns, chosen_ns; /* averages, recent ones weigh more; 0: not known */
    uint64_t arrived_ns, finished_ns;     /* the last call, the last batch */
    wfi_timer timer;
    uint64_t look_ns; /* when it fires; WFI_NEVER: it is not set */
    weft_batch_stats stats;
    wfi_histogram sizes, waits;
} wfi_batcher;

/* ---- client.c. [agent lock] but for the first -------------------------------------------------------------------- */

wfi_batcher *wfi_batcher_of(const weft_function *function); /* NULL: it is not batched. Not locked */
/* Before a call's arguments are taken in: NULL, and it counts as queued; or why it is refused. */
weft_error *wfi_batch_admit(weft_call *call);
void wfi_batch_unqueue(weft_call *call);
wfi_batch_client *wfi_batch_client_of(wfi_batcher *batcher, int rank); /* NULL: it never called */
void wfi_batch_count_active(wfi_batcher *batcher);

/* ---- rows.c. [agent lock] ---------------------------------------------------------------------------------------- */

/* A call with such tensors is coming: gives it a row, if there is memory. A wfi_expect_fn. */
void wfi_batch_expect(void *call, const wfi_tensor_types *types);
/* Where argument `index` of a call is to be pulled to; NULL: to a place of its own. A wfi_place_fn. */
weft_tensor *wfi_batch_place(void *call, size_t index, weft_dtype dtype, weft_shape shape);
/* For a whole call: its row is ready; it gets one if it has none. False: memory is out. */
bool wfi_batch_settle(weft_call *call, const wfi_tensor_types *types);
void wfi_batch_leave_row(weft_call *call);                                           /* if it has one */
bool wfi_batch_has_call_of(const weft_batch *batch, const wfi_batch_client *client); /* a whole one */
void wfi_batch_take_calls(weft_batch *batch); /* it begins: shuts it, and moves the ready calls to `calls` */
void wfi_batch_free_if_over(weft_batch *batch);

/* ---- schedule.c. [agent lock] ------------------------------------------------------------------------------------ */

/* Begin the batches that are due: of one function; of all functions, after a worker has left the job, or before this
 * one leaves. */
void wfi_batcher_pump(wfi_batcher *batcher);
void wfi_batchers_pump(weft_agent *agent);
void wfi_batch_timer(wfi_timer *timer);
void wfi_batch_arrived(weft_call *call, uint64_t now_ns);     /* its row is ready */
void wfi_batch_count(weft_batch *batch, uint64_t now_ns);     /* its handler begins */
void wfi_batch_note_over(weft_batch *batch, uint64_t now_ns); /* its handler is over */

/* ---- run.c ------------------------------------------------------------------------------------------------------- */

void wfi_batch_task(wfi_task *task); /* what a batch that begins is queued as */
/* All threads of handlers wait: refuses the batches in their queue. How many calls those have. [agent lock] */
size_t wfi_batches_turn_away(weft_agent *agent);
/* ---- batcher.c --------------------------------------------------------------------------------------------------- */

extern const wfi_component wfi_batch_component;

/* ---- metrics.c --------------------------------------------------------------------------------------------------- */

/* What batched functions count; `who`: the labels of every line. Not locked. */
weft_status wfi_batches_write_metrics(weft_agent *agent, FILE *to, const char *who);

#endif
