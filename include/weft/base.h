/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/base.h - what every other public header needs: visibility, C++ linkage, the names of the objects, callbacks.
 *
 * RULES of the whole API. docs/api.md has examples.
 *
 * NAMES are weft_<noun>_<verb>. Enumerators begin with the name of their type.
 *
 * ARGUMENTS come in this order: the object, the inputs, a pointer to options (NULL or a zeroed struct takes the
 * defaults), the outputs. Outputs are written only on success.
 *
 * LIFETIMES. Objects that are opened have _open and _close; weft_agent_stop closes an agent without waiting for other
 * workers. Objects that are counted have _create, _ref and _unref. Releasing NULL does nothing.
 *
 * REFERENCES. A function that returns an object lends it. A function that makes the object, or has `ref` in its
 * name, gives the caller a reference instead. Futures always come with a reference. A function with `take` in its
 * name takes over the caller's reference.
 *
 * FAILURES. The caller must check every weft_status; the compiler warns otherwise. A function that makes an object ends
 * with two parameters: `out`, and `weft_error **error`. On failure *error receives the detail; you release it. If
 * `error` is NULL, the log has the detail. Exceptions: tapes, futures and results of operators are returned. These
 * keep their error themselves (for a result, its tape does), and are NULL only if memory is out or the first
 * argument is NULL. Functions that start calls take `error` as an option (weft/rpc.h).
 *
 * NULL. A NULL object, or a NULL output that the function must write, is an invalid argument. A function that
 * returns a weft_status then returns WEFT_ERR_INVALID, and the error or the log names the argument. A function that
 * returns an object returns NULL. A function that queries something returns 0, false or NULL, or -1 for a rank.
 *
 * TIME. wait_ms limits how long a function blocks (0: not at all). The operation that the function waits for
 * continues after that time. timeout_ms limits an operation, which then fails (0: the default).
 *
 * SIZES. A struct of options, a table of functions, or a struct that weft fills may get further fields at its end.
 * Programs that were compiled with the shorter struct keep working. Functions that are given such structs are
 * inline. They pass the struct's size to the exported function, whose name ends with _sized. weft reads a shorter
 * struct as if the missing fields were zero, and writes only the fields that the struct has. If a program that was
 * compiled with a newer weft sets a field that this library does not have, the function fails with WEFT_ERR_INVALID.
 * A member `reserved` is room for later fields, and must be zero. Bindings of other languages call the _sized
 * functions.
 *
 * MISUSE. Functions check the objects that they are given. These mistakes end the process: use of an object after its
 * end (_close, the last _unref, weft_call_finish), and a second release. A sentence on stderr names the function and
 * the address, then abort() is called. The check is certain until the memory of the object is used again.
 */
#ifndef WEFT_BASE_H
#define WEFT_BASE_H

#include <stdbool.h> /* bool */
#include <stddef.h>  /* size_t */
#include <stdint.h>  /* int64_t ... */
#include <stdio.h>   /* FILE */

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

#define WEFT_VERSION_NUMBER (WEFT_VERSION_MAJOR * 10000 + WEFT_VERSION_MINOR * 100 + WEFT_VERSION_PATCH)

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

/*
 * The version of the library that runs: as text ("0.1.0"), and as a number. WEFT_VERSION_NUMBER is the number of the
 * headers: if the two differ, the library does not match the headers. Any thread; no agent is needed.
 */
WEFT_API const char *weft_version(void);
WEFT_API int weft_version_number(void);

/* A time limit in milliseconds that never passes. */
#define WEFT_FOREVER (-1)

/* The opaque objects; each has a header of its own. */
typedef struct weft_error weft_error;                 /* weft/status.h */
typedef struct weft_future weft_future;               /* weft/future.h */
typedef struct weft_tensor weft_tensor;               /* weft/tensor.h */
typedef struct weft_values weft_values;               /* weft/value.h */
typedef struct weft_rref weft_rref;                   /* weft/rref.h */
typedef struct weft_stream weft_stream;               /* weft/stream.h */
typedef struct weft_tape weft_tape;                   /* weft/tape.h */
typedef struct weft_context weft_context;             /* weft/context.h */
typedef struct weft_hooks weft_hooks;                 /* weft/hooks.h */
typedef struct weft_data_parallel weft_data_parallel; /* weft/data_parallel.h */
typedef struct weft_module weft_module;               /* weft/nn.h */
typedef struct weft_optimizer weft_optimizer;         /* weft/optim.h */
typedef struct weft_agent weft_agent;                 /* weft/agent.h */
typedef struct weft_call weft_call;                   /* weft/rpc.h */
typedef struct weft_batch weft_batch;                 /* weft/batch.h */
typedef struct weft_sim weft_sim;                     /* weft/sim.h */
typedef struct weft_job weft_job;                     /* weft/job.h */

typedef struct weft_group weft_group;             /* weft/group.h */
typedef struct weft_object_type weft_object_type; /* weft/rref.h */

/* A function that releases `arg`. weft calls it exactly once, even if the function that received it fails. A NULL
 * weft_drop_fn means that nothing has to be released. */
typedef void (*weft_drop_fn)(void *arg);

WEFT_END_C
#endif
