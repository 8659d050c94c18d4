/* SPDX-License-Identifier: Apache-2.0 */
/*
 * context.h - what one worker holds of a distributed context: a graph, the tensors that crossed to and from others, the passes over them,
 * and the gradients that these left.
 *
 * A pair is one recorded tensor that crossed: a send, a node here at its origin, and a recv, a node at its target. Sends are numbered by
 * their origin from 1, in each context anew; a pair is named by its origin and that number.
 *
 * LOCKS. `lock`, below the agent's and below no other, guards all that changes: sends, recvs, passes, gradients, `over`. Contexts are in
 * the agent's table (contexts.h) under the agent's lock.
 * LIFETIME. Counted: by the table, until the context is over; by its user, each of its tapes, links (link.c) and passes.
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
    wfi_node *node; /* referenced; its one input is what was sent */
    int to;
    uint32_t incarnation;
} wfi_send;

typedef struct wfi_recv {
    wfi_node *node; /* referenced */
    int from;
    uint32_t incarnation;
    uint64_t number; /* the origin's */
} wfi_recv;

/* What a context keeps of a pass, part of wfi_dist_pass: so that those that come late hear how it ended. With the context's lock. */
typedef struct wfi_pass_record {
    wfi_list link;
    int root;
    uint64_t number;   /* counted by the root, in each context anew */
    bool ended_well;   /* here; elsewhere it may yet fail */
    wfi_map gradients; /* leaf's tensor id -> weft_gradient, if it has ended well */
    weft_error *error; /* how it failed; referenced */
    void (*unref)(struct wfi_pass_record *record);
} wfi_pass_record;

struct weft_context {
    wfi_handle handle;
    _Atomic uint32_t refs;
    weft_agent *agent; /* referenced */
    weft_context_id id;
    uint32_t incarnation; /* of this worker */
    wfi_graph *graph;

    wfi_mutex lock;
    bool over;
    uint32_t tapes;    /* that weft_context_tape has opened here */
    weft_hooks *hooks; /* of the leaves here; referenced; NULL: none */
    wfi_send *sends;   /* number n is sends[n - 1] */
    size_t send_count, send_capacity;
    uint64_t send_bytes; /* about what the gradients of all sends take in one pass */
    wfi_recv *recvs;
    size_t recv_count, recv_capacity;
    bool *has_pairs;    /* by rank: whether some tensor crossed between it and this worker */
    wfi_list passes;    /* wfi_pass_record, by root and number; each referenced */
    uint64_t last_pass; /* of those whose root is here */

    /* [agent lock] contexts.c */
    struct weft_context *next_same; /* in the table, of the same hash */
    wfi_list link;                  /* of ours: among those that are open, or over and not known to be so by all */
    uint8_t *holders;               /* by rank: enum wfi_holder */
    size_t working_passes;          /* that others began and that count what they work with */
    size_t served;                  /* calls of others that are not answered yet: their answers carry the holders */
    bool reports;                   /* a call that tells the opener of them is under way */
    bool quiet;                     /* no call came since the asking timer looked at it */
    uint64_t untold;                /* not the opener: how many holders the opener has not heard of */
    bool lost;                      /* the opener: a holder may be named by nobody, because a worker is gone */
    weft_future *ended;             /* of weft_context_close, while a holder has not let go; referenced. NULL: none */
};

/* One reference; NULL: no memory. [agent lock], unless this worker opens it */
weft_context *wfi_context_create(weft_agent *agent, weft_context_id id);
weft_context *wfi_context_ref(weft_context *context);
void wfi_context_unref(weft_context *context); /* not locked */
bool wfi_context_is_of(const weft_context *context, const weft_context_id *id);

/* Whether a tensor is to be linked where it crosses: it was recorded into the context, or is a leaf that wants a gradient. */
bool wfi_context_links(const weft_context *context, const weft_tensor *tensor);
/* weft_context_tape at a path, of which the tape takes a reference. NULL: no memory. */
weft_tape *wfi_context_tape_at(weft_context *context, const weft_tape_options *options, wfi_tape_path *path);
/* Sends of `count` tensors, each of which wfi_context_links, to worker `to`. *first is the number of the first.
 * `path`: of the call that they belong to. WEFT_ERR_STATE: the context is over; WEFT_ERR_MEMORY. */
weft_status wfi_context_add_sends(weft_context *context, wfi_tape_path *path, int to, uint32_t incarnation,
                                  weft_tensor *const *tensors, size_t count, uint64_t *first);
/* The tensor that came as the pair's recv: one over the same storage, which is recorded. NULL: no memory. */
weft_tensor *wfi_context_add_recv(weft_context *context, const wfi_recv *pair, weft_tensor *tensor);
void wfi_gradients_clear(wfi_map *gradients); /* drops all, and ends the map */

#endif
