/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/base.h - what every other public header rests on: visibility, C++ linkage, forward names, callbacks.
 *
 * The grammar of the whole API (docs/api.md has it at length):
 *   - weft_<noun>_<verb>; the object first, then inputs, then an options pointer (NULL or zeroed = defaults), outputs
 *     last and written only on success.
 *   - _open/_close for what has a life, _create/_ref/_unref for what is counted; releasing NULL is a no-op.
 *   - `get` borrows, `ref` shares, `take` moves.
 *   - what returns a weft_status must be looked at.
 */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int64_t and kin */
#include <stdio.h>   /* FILE */

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#define WEFT_NODISCARD __attribute__((warn_unused_result))
#define WEFT_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))
#else
#define WEFT_API
#define WEFT_NODISCARD
#define WEFT_PRINTF(fmt, first)
#endif

#ifdef __cplusplus
#define WEFT_BEGIN_C extern "C" {
#define WEFT_END_C }
#else
#define WEFT_BEGIN_C
#define WEFT_END_C
#endif

WEFT_BEGIN_C

/* Never, as a time out in milliseconds. */
#define WEFT_FOREVER (-1)

/* The opaque objects; each has a header of its own. */
typedef struct weft_error weft_error;         /* weft/status.h */
typedef struct weft_future weft_future;       /* weft/future.h */
typedef struct weft_tensor weft_tensor;       /* weft/tensor.h */
typedef struct weft_values weft_values;       /* weft/value.h */
typedef struct weft_rref weft_rref;           /* weft/rref.h */
typedef struct weft_tape weft_tape;           /* weft/tape.h */
typedef struct weft_module weft_module;       /* weft/nn.h */
typedef struct weft_optimizer weft_optimizer; /* weft/optim.h */
typedef struct weft_agent weft_agent;         /* weft/agent.h */
typedef struct weft_call weft_call;           /* weft/rpc.h */
typedef struct weft_sim weft_sim;             /* weft/sim.h */
typedef struct weft_job weft_job;             /* weft/spawn.h */

typedef struct weft_group weft_group;             /* weft/group.h */
typedef struct weft_object_type weft_object_type; /* weft/rref.h */

/* Releases what `arg` stands for. Called exactly once, on every path, failure included. NULL: nothing to release. */
typedef void (*weft_drop_fn)(void *arg);

WEFT_END_C
#endif
