/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h - one worker's part of a distributed context: a graph, the tensors that were sent to and received from
 * others, the backward passes over them, and their gradients.
 *
 * A tensor that was recorded under the context and travels with a call makes a pair of nodes: a *send* at its origin,
 * and a *recv* at its target. They are PyTorch's SendRpcBackward and RecvRpcBackward. In each context an origin numbers
 * its sends from 1; the origin and that number name the pair.
 *
 * LOCKS. `lock` guards all that changes: sends, recvs, passes, gradients, `over`. A thread that takes `lock` holds no
 * other lock except the agent's or `sums`. A thread that reads gradients, or adds up those of final passes, holds
 * `sums`, which it takes before `lock` and without the agent's lock. Gradients are added and dropped without `lock`
 * and the agent's lock: they may be on a GPU.
 * Contexts are in the agent's table (contexts.h) under the agent's lock.
 * LIFETIME. Reference-counted: by the table, until the context is over; by its user, each of its tapes, recordings
 * (recording.c) and passes.
 */
#ifndef WFI_CONTEXT_H
#define WFI_CONTEXT_H

#include "autograd/graph.h"
#include "base/handle.h"
#include "base/map.h"
#include "base/mutex.h"
#include "rpc/agent/agent.h"

#include <weft/context.h>

/* A tensor that this worker sent. A backward pass gets its gradient from worker `to`, on the tensor's device. */
typedef struct wfi_send {
    wfi_node *node; /* referenced; its one input is the tensor that was sent */
    int to;
    uint32_t incarnation;
    uint8_t device; /* of the tensor (rpc/agent/devices.h) */
} wfi_send;

/* A tensor that this worker received. A backward pass sends its gradient to worker `from`. */
typedef struct wfi_recv {
    wfi_node *node; /* referenced */
    int from;
    uint32_t incarnation;
    uint8_t device;  /* of that worker: where the tensor was, and its gradient shall be */
    uint64_t number; /* the origin's number of the pair */
} wfi_recv;

/*
 * The outcome of a backward pass on this worker; a part of wfi_pass. A context keeps the results of all its passes,
 * because late messages of a pass are answered from them. With the context's lock.
 */
typedef struct wfi_pass_result {
    wfi_list link;
    int root;
    uint64_t number;   /* given by the root, for each context separately */
    bool ended_well;   /* on this worker; elsewhere it may still fail */
    bool is_final;     /* it and all earlier passes of its root have ended well everywhere */
    wfi_map gradients; /* leaf's tensor id -> weft_gradient, if it has ended well; see wfi_context_sum_final */
    wfi_map undone;    /* the same of a pass that failed later; to be dropped without a lock */
    weft_error *error; /* why it failed; referenced */
    void (*unref)(struct wfi_pass_result *result);
} wfi_pass_result;

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
    bool *has_pairs;    /* by rank: a recorded tensor has travelled between that worker and this one */
    wfi_list passes;    /* wfi_pass_result, by root and number; each referenced */
    uint64_t last_pass; /* number of the last pass whose root is here */

    /* [agent lock] contexts.h: */
    struct weft_context *next_same; /* in the table, with the same hash */
    wfi_list link;                  /* if this worker opened it: wfi_contexts.opened */
    uint8_t *holders;               /* by rank: enum wfi_holder */
    size_t working_passes;          /* number of passes of other workers that count their memory (pass_budget.c) */
    size_t served;        /* number of served calls under it that are not answered: their replies name holders */
    bool reports;         /* a call of "weft:joined" is in progress */
    bool idle;            /* no call has arrived since query_timer checked it */
    uint64_t unreported;  /* elsewhere than at the opener: number of holders in state PRESENT */
    bool holders_unknown; /* at the opener: some holder may never be named, because a worker has ended */
    weft_future *ended;   /* the future of weft_context_close, until all holders have released it; referenced */
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
bool wfi_context_records(const weft_context *context, const weft_tensor *tensor);
/* weft_context_tape at a path; the tape takes a reference to the path. NULL: no memory. */
weft_tape *wfi_context_tape_at(weft_context *context, const weft_tape_options *options, wfi_tape_path *path);
/*
 * Adds sends of `count` tensors, for each of which wfi_context_records is true, to worker `to`. *first is the number
 * of the first. `path`: of their call. WEFT_ERR_STATE: the context is over; WEFT_ERR_MEMORY.
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
void wfi_context_sum_final(weft_context *context);

#endif
