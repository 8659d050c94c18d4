/* SPDX-License-Identifier: Apache-2.0 */
/* rref_counts.h - numbers out of weft_debug_dump, asked of this worker or another, and a function that checks its
 * handles. */
#ifndef TESTS_RPC_RREF_COUNTS_H
#define TESTS_RPC_RREF_COUNTS_H

#include "rpc/world.h"

/* A top-level number of this agent's dump. */
int64_t dump_number(weft_agent *agent, const char *key);
/* The whole text; to be freed. */
char *dump_text(weft_agent *agent);
/* The same of another worker, or of ourselves. */
int64_t ask_number(weft_agent *agent, int rank, const char *key);
/* Waits, in the world's time, until it is so; fails the test after long. */
void await_number(world *w, weft_agent *agent, int rank, const char *key, int64_t wanted);

/* "number": of the dump, by key. "checked": fails unless all references in its arguments are confirmed, and counts
 * runs. */
extern const weft_function count_functions[2];
extern _Atomic int checked_runs;

#endif
