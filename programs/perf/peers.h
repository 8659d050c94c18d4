/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peers.h - measures other programs on this host: fi_pingpong, ucx_perftest, PyTorch RPC and Gloo, Open MPI. They are
 * looked for at run time. If one is missing, a note says how to install it.
 */
#ifndef WEFT_PERF_PEERS_H
#define WEFT_PERF_PEERS_H

#include "perf/settings.h"
#include "perf/task.h"

bool peers_measure(const settings *o, task_end *to); /* in the process of a task */

#endif
