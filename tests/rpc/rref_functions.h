/* SPDX-License-Identifier: Apache-2.0 */
/* rref_functions.h - what the workers of test_rpc_rref.c can be asked for: to make values, keep references, pass
 * them on. */
#ifndef TESTS_RPC_RREF_FUNCTIONS_H
#define TESTS_RPC_RREF_FUNCTIONS_H

#include "rpc/world.h"

#define RANKS_MAX 4
#define RREF_FUNCTIONS 7

/* What the functions of all ranks share: one process, one world at a time. */
typedef struct rref_shared {
    world *w;
    atomic_int drops;
    weft_rref *kept[RANKS_MAX];
    _Atomic(weft_call *) waiting, waiting_first; /* the last two that were held */
    atomic_bool done;
} rref_shared;

extern rref_shared shared;
extern const weft_function rref_functions[RREF_FUNCTIONS];

/* to_here, as a number. */
weft_status read_i64(weft_rref *rref, int64_t timeout_ms, int64_t *out);

#endif
