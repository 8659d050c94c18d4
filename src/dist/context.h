/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h - one worker's part of a distributed context: a graph, the tensors that were sent to and received from
 * others, the backward passes over them, and their gradients.
 *
 * A pair is one recorded tensor that was transferred: a send, which is a node at its origin, and a recv, which is a
 * node at its target. In each context an origin numbers its sends from 1; a pair is named by its origin and that
 * number.
 *
 * LOCKS. `lock` guards all that changes: sends, recvs, passes, gradients, `over`. A thread that takes `lock` holds no
 * other lock except the agent's or `sums`. A thread that reads gradients, or adds up those of final passes, holds
 * `sums`, which it takes before `lock` and without the agent's lock. It adds those of final passes without `lock`.
 * Contexts are in the agent's table (contexts.h) under the agent's lock.
 * LIFETIME. Reference-counted: by the table, until the context is over; by its user, each of its tapes, links
 * (link.c) and passes.
 */
#ifndef WFI_CONTEXT_H
#define WFI_CONTEXT_H

#include "autograd/graph.h"
#include "base/handle.h"
#include "base/map.h"
#include "base/mutex.h"
#include "rpc/agent/agent.h"

#include <weft/context.h>

typedef struct wfi_send {
    wfi_node *node; /* referenced; its one input is the tensor that was sent */
    int to;
    uint32_t incarnation;
} wfi_send;

typedef struct wfi_recv {
    wfi_node *node; /* referenced */
    int from;
    uint32_t incarnation;
    uint64_t number; /* the origin's number of the pair */
} wfi_recv;

/*
 * The context's record of a pass, part of wfi_dist_pass: late messages of the pass are answered from it. With the
 * context's lock.
 */
typedef struct wfi_pass_record {
    wfi_list link;
    int root;
    uint64_t number;   /* given by the root, for each context separately */
    bool ended_well;   /* on this worker; elsewhere it may still fail */
    bool is_final;     /* it and all earlier passes of its root have ended well everywhere */
    wfi_map gradients; /* leaf's tensor id -> weft_gradient, if it has ended well; see wfi_context_join_final */
    weft_error *error; /* why it failed; referenced */
    void (*unref)(struct wfi_pass_record *record);
} wfi_pass_record;

struct weft_context {
    wfi_handle handle;
    _Atomic uint32_t refs;
    weft_agent *agent; /* referenced */
    weft_context_id id;
    uint32_t incarnation; /* of this worker */
    wfi_graph *graph;

    wfi_mutex sums;
    wfi_mutex lock;
    bool over;
    uint32_t tapes;    /* number of tapes that weft_context_tape has opened here */
    weft_hooks *hooks; /* for the leaves here; referenced; NULL: none */
    wfi_send *sends;   /* number n is sends[n - 1] */
    size_t send_count, send_capacity;
    uint64_t send_bytes; /* about the size of all sends' gradients in one pass */
    wfi_recv *recvs;
    size_t recv_count, recv_capacity;
    bool *has_pairs;    /* by rank: whether a tensor was transferred between it and this worker */
    wfi_list passes;    /* wfi_pass_record, by root and number; each referenced */
    uint64_t last_pass; /* of the passes whose root is here */

    /* [agent lock] contexts.c */
    struct weft_context *next_same; /* in the table, of the same hash */
    /* opened by this worker: in the list of contexts that are open, or over with workers that do not know it */
    wfi_list link;
    uint8_t *holders;      /* by rank: enum wfi_holder */
    size_t working_passes; /* passes of others that count their working memory */
    size_t served;         /* calls of others that are not answered yet: their answers name the holders */
    bool reports;          /* a call that tells the opener the holders is in progress */
    bool quiet;            /* no call came since the asking timer checked it */
    uint64_t untold;       /* if not the opener: number of holders that the opener does not know */
    bool lost;             /* if the opener: a worker has ended, so some holder may never be named */
    weft_future *ended;    /* of weft_context_close, while a holder has not released it; referenced. NULL: none */
};

/* One reference; NULL: no memory. [agent lock], unless this worker opens it */
weft_context *wfi_context_create(weft_agent *agent, weft_context_id id);
weft_context *wfi_context_ref(weft_context *context);
void wfi_context_unref(weft_context *context); /* not locked */
bool wfi_context_is_of(const weft_context *context, const weft_context_id *id);

/*
 * Whether a tensor is linked when it is transferred: it was recorded into the context, or is a leaf that requires a
 * gradient.
 */
bool wfi_context_links(const weft_context *context, const weft_tensor *tensor);
/* weft_context_tape at a path; the tape takes a reference to the path. NULL: no memory. */
weft_tape *wfi_context_tape_at(weft_context *context, const weft_tape_options *options, wfi_tape_path *path);
/*
 * Adds sends of `count` tensors, for each of which wfi_context_links is true, to worker `to`. *first is the number of
 * the first. `path`: of their call. WEFT_ERR_STATE: the context is over; WEFT_ERR_MEMORY.
 */
weft_status wfi_context_add_sends(weft_context *context, wfi_tape_path *path, int to, uint32_t incarnation,
                                  weft_tensor *const *tensors, size_t count, uint64_t *first);
/* Makes a recorded tensor over the storage of `tensor`, which was received as the pair's recv. NULL: no memory. */
weft_tensor *wfi_context_add_recv(weft_context *context, const wfi_recv *pair, weft_tensor *tensor);
void wfi_gradients_clear(wfi_map *gradients); /* drops all, and ends the map */
/* The passes of `root` up to *number* are final: those here that have ended well are marked. With the lock. */
void wfi_context_mark_final(weft_context *context, int root, uint64_t number);
/* This worker's own passes are final as soon as they, and those before, have ended well. With the lock. */
void wfi_context_mark_own_final(weft_context *context);
/* The number of the last pass of `root` that is known here to be final; 0: none. With the lock. */
uint64_t wfi_context_last_final(const weft_context *context, int root);
/* Adds the gradients of the final passes of each root to those of the first one, so that a context holds one set for
 * any number of final passes. Some stay until the next call if there is no memory, or if another thread reads gradients
 * or adds them up. Not locked. */
void wfi_context_join_final(weft_context *context);

#endif
