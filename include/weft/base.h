/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/base.h - what every other public header needs: visibility, C++ linkage, the names of the objects, callbacks.
 *
 * Rules of the whole API (docs/api.md has them at length):
 *   - Functions are called weft_<noun>_<verb>. Arguments come in this order: the object, the inputs, a pointer to
 *     options (NULL or a zeroed struct takes the defaults), the outputs. Outputs are written only on success.
 *   - Objects that are opened have _open and _close. Objects that are counted have _create, _ref and _unref.
 *     Releasing NULL does nothing.
 *   - NULL for an object, or for an output that the function must write, is an argument outside its domain: a
 *     function that returns a weft_status returns WEFT_ERR_INVALID, and the error or the log says what was NULL; one
 *     that makes something makes nothing; one that asks something returns 0, false or NULL, or -1 for a rank.
 *   - A function called `get` lends something, `ref` gives you a reference of your own, `take` takes yours over.
 *   - The caller must look at every weft_status that a function returns; the compiler warns otherwise.
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

/* As a time limit in milliseconds: there is no limit. */
#define WEFT_FOREVER (-1)

/* The opaque objects; each has a header of its own. */
typedef struct weft_error weft_error;                 /* weft/status.h */
typedef struct weft_future weft_future;               /* weft/future.h */
typedef struct weft_tensor weft_tensor;               /* weft/tensor.h */
typedef struct weft_values weft_values;               /* weft/value.h */
typedef struct weft_rref weft_rref;                   /* weft/rref.h */
typedef struct weft_tape weft_tape;                   /* weft/tape.h */
typedef struct weft_context weft_context;             /* weft/context.h */
typedef struct weft_hooks weft_hooks;                 /* weft/hooks.h */
typedef struct weft_data_parallel weft_data_parallel; /* weft/data_parallel.h */
typedef struct weft_module weft_module;               /* weft/nn.h */
typedef struct weft_optimizer weft_optimizer;         /* weft/optim.h */
typedef struct weft_agent weft_agent;                 /* weft/agent.h */
typedef struct weft_call weft_call;                   /* weft/rpc.h */
typedef struct weft_sim weft_sim;                     /* weft/sim.h */
typedef struct weft_job weft_job;                     /* weft/spawn.h */

typedef struct weft_group weft_group;             /* weft/group.h */
typedef struct weft_object_type weft_object_type; /* weft/rref.h */

/* Releases `arg`. Weft calls it exactly once, also where the function that it was given to fails. A NULL
 * weft_drop_fn means that there is nothing to release. */
typedef void (*weft_drop_fn)(void *arg);

WEFT_END_C
#endif
