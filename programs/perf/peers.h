/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h - other programs that do the same on this host: PyTorch RPC and Gloo, Open MPI, and weft in Python. They are
 * looked for at run time, and measured by a helper, in turns with weft.
 */
#ifndef WEFT_PERF_PEERS_H
#define WEFT_PERF_PEERS_H

#include "perf/settings.h"
#include "perf/task.h"

#define PEERS 4

typedef struct peers peers;

/* Looks for the programs that measure the same as weft over these fabrics, and starts the helper: call it before there
 * are threads. A program that is missing is a note, which says how to install it. NULL: there is nothing to measure. */
peers *peers_open(const settings *o, const char *fabrics, task_end *to);
void peers_close(peers *p); /* NULL does nothing */
/* Measures with one of the peers what `of` says, for about `us` microseconds, and adds samples to `out`. Adds none if
 * that peer does not measure it, or has failed. Its first failure is a note. */
void peers_measure(peers *p, int which, const result *of, double us, series *out);
/* The result of a peer, of samples that were measured in turns with those of `ours`. */
result peers_result(const peers *p, int which, const result *ours, series *samples);

#endif
