/* SPDX-License-Identifier: Apache-2.0 */
/*
 * batch.h - gathers calls of one function into batches (weft/batch.h describes the public side).
 *
 * A function with run_batch has a batcher, which serves its calls (wfi_runner_ops). Before the server receives a call's
 * arguments, the batcher admits the call, and says where its tensors are to be stored (rows.c). When the arguments have
 * arrived, the server passes the call to the batcher; it also reports calls that will not run. The batcher begins
 * batches by itself.
 *
 * Calls whose tensors have the same dtypes and shapes form a shape class. A class has open batches, which accept calls,
 * the oldest batch first. A row is a call's place in a batch. When the call's header arrives, the call gets a row of an
 * open batch. Its tensors are pulled into that row of the batch's slabs; then the row is ready. A batch begins with the
 * rows that are ready. A call whose row is not ready then is late: when its arguments have arrived, it gets a row of
 * another batch, and they are copied there when that begins.
 *
 * FILES, from the bottom: client.c (callers, and how many of their calls may wait), rows.c (shape classes, open
 * batches, their rows), schedule.c (when a batch begins), run.c (its handler, its results), batcher.c (makes and frees
 * batchers; serves calls), handler_api.c (functions for handlers), metrics.c. A file calls only files below it;
 * schedule.c calls run.c through `batcher->run`.
 *
 * LOCK. The agent's lock guards everything except the fields below "the handler's": these belong to the thread that
 * runs or finishes the batch.
 *
 * LIFETIME. A batcher exists as long as its agent. A batch exists while it is open, until its handler is over, and
 * while a call has a row of it. A shape class exists while it has an open batch.
 */
#ifndef WFI_BATCH_H
#define WFI_BATCH_H

#include "base/histogram.h"
#include "rpc/server/server.h"

typedef struct wfi_shape_class {
    uint64_t hash;             /* of `tensors`: its key in the batcher's map */
    wfi_list open;             /* weft_batch.class_link, oldest first */
    wfi_tensor_type tensors[]; /* the tensors of one row: batcher->tensor_count */
} wfi_shape_class;

/* A worker that calls the function. */
typedef struct wfi_batch_client {
    int rank;
    size_t number;  /* counted from 0, in the order of the first calls */
    size_t queued;  /* its calls that wait, or are being received */
    size_t waiting; /* those of them whose arguments have arrived */
} wfi_batch_client;

typedef struct wfi_row {
    weft_call *call; /* NULL: the row is free */
    wfi_batch_client *client;
    bool ready;    /* the call's arguments have arrived */
    size_t placed; /* bytes of the call that are in the slabs */
} wfi_row;

/* The number of rows of a batch that one client has. */
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
    bool takes_no_others; /* all expected callers have calls in open batches, perhaps not all in this one */
    bool has_returned;    /* its handler has returned, and the batch is deferred */
    int holds;            /* of the handler's thread, and of the code that finishes the batch */
    size_t taken, ready;  /* numbers of rows */
    size_t scanned;       /* no row below this one is free */
    size_t room;          /* elements of `rows` and `calls` */
    size_t clients_known; /* elements of `of_client` */
    size_t spare_bytes;   /* bytes of the slabs, and of copies, that no call is charged for */
    uint64_t first_ns;    /* when the arguments of its first call had arrived; 0: not yet */
    int reason;           /* why it began: schedule.c */
    uint64_t seed;        /* of its tape */
    weft_tensor *slabs[WEFT_MAX_SIGNATURE]; /* they have rows for the first calls, perhaps not for all */
    wfi_row *rows;                          /* once it runs, those of late calls */
    wfi_row_count *of_client;               /* by wfi_batch_client.number */

    /* ---- the handler's ---- */
    weft_agent *agent; /* referenced */
    weft_call **calls;
    size_t count;
    weft_tensor *seen[WEFT_MAX_SIGNATURE];  /* the tensors for the handler, by the tensors of `takes` */
    weft_tensor *given[WEFT_MAX_SIGNATURE]; /* the results of the handler, by `gives` */
    weft_error *error;
    wfi_call_slot slot;
    bool in_place; /* `seen` are the first `count` rows of the slabs */
    bool deferred;
    uint64_t copied_bytes, made_bytes; /* made: bytes of tensors in `seen` that are not slabs */
    wfi_task task;
};

typedef struct wfi_batcher {
    wfi_runner runner;
    struct wfi_batcher *next; /* in agent->batchers; constant after it was announced */
    weft_agent *agent;
    const weft_function *function;
    void (*run)(wfi_task *task); /* runs a batch: wfi_batch_task */
    weft_batch_options options;  /* without zeros; `callers` is owned, and guarded by the agent's lock */
    size_t tensor_count;         /* tensors in `takes` */
    wfi_list open;               /* weft_batch.link: all open batches, oldest first */
    wfi_map class_by_hash;       /* wfi_shape_class */
    wfi_map clients;             /* wfi_batch_client, by rank */
    size_t queued;               /* number of calls */
    size_t running;              /* number of batches */
    size_t recent_max;           /* the largest recent batch */
    uint64_t begun;              /* total number of batches */
    wfi_timer timer;
    uint64_t scan_ns; /* when it fires; WFI_NEVER: it is not set */
    weft_batch_stats stats;
    wfi_histogram sizes, waits;
} wfi_batcher;

/* ---- client.c. [agent lock], except wfi_batcher_of --------------------------------------------------------------- */

wfi_batcher *wfi_batcher_of(const weft_function *function); /* NULL: it is not batched. Not locked */
/* Called before a call's arguments are received. NULL: the call is counted as queued; otherwise why it is refused. */
weft_error *wfi_batch_admit(weft_call *call);
void wfi_batch_unqueue(weft_call *call);
wfi_batch_client *wfi_batch_client_of(wfi_batcher *batcher, int rank); /* NULL: it never called */

/* ---- rows.c. [agent lock] ---------------------------------------------------------------------------------------- */

/* A call with such tensors is being received: gives it a row, if there is memory. A wfi_expect_fn. */
void wfi_batch_expect(void *call, const wfi_tensor_types *types);
/* The place for tensor `index` of a call; NULL: it is pulled into new memory. A wfi_place_fn. */
weft_tensor *wfi_batch_place(void *call, size_t index, weft_dtype dtype, weft_shape shape);
/* The call's arguments have arrived: marks its row as ready, after giving it one if it has none. False: memory is
 * out. */
bool wfi_batch_make_ready(weft_call *call, const wfi_tensor_types *types);
void wfi_batch_leave_row(weft_call *call); /* no-op if it has none */
/* The rows that a client has in the batch; none if `client` is NULL. */
wfi_row_count wfi_batch_count_of(const weft_batch *batch, const wfi_batch_client *client);
void wfi_batch_take_calls(weft_batch *batch); /* it begins: closes it, and moves the ready calls to `calls` */
void wfi_batch_free_if_ended(weft_batch *batch);

/* ---- schedule.c. [agent lock] ------------------------------------------------------------------------------------ */

/* Begin the batches that are due, of one function or of all functions (after a worker has left the job, or before this
 * worker leaves). */
void wfi_batcher_pump(wfi_batcher *batcher);
void wfi_batchers_pump(weft_agent *agent);
void wfi_batch_timer(wfi_timer *timer);
void wfi_batch_arrived(weft_call *call, uint64_t now_ns); /* its row is ready */
void wfi_batch_count(weft_batch *batch, uint64_t now_ns); /* its handler begins */

/* ---- run.c ------------------------------------------------------------------------------------------------------- */

void wfi_batch_task(wfi_task *task); /* runs a batch */
/* All threads of the executor wait: refuses the queued batches, and returns the number of their calls. [agent lock] */
size_t wfi_batches_refuse_queued(weft_agent *agent);
/* ---- batcher.c --------------------------------------------------------------------------------------------------- */

extern const wfi_component wfi_batch_component;

/* ---- metrics.c --------------------------------------------------------------------------------------------------- */

/* Writes the metrics of batched functions; `who` holds the labels of every line. Not locked. */
weft_status wfi_batches_write_metrics(weft_agent *agent, FILE *to, const char *who);

#endif
