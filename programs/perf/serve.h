/* SPDX-License-Identifier: Apache-2.0 */
/*
 * serve.h - the waiting side of two hosts: weft-perf --serve. It is rank 0 of an elastic job. The measuring side joins
 * once for each fabric, and says at the end that it is done.
 */
#ifndef WEFT_PERF_SERVE_H
#define WEFT_PERF_SERVE_H

#include "perf/settings.h"

#include <weft/agent.h>

/* The agent options that both sides use. All pointers are borrowed. */
weft_agent_options serve_options(const char *host, int port, const char *fabrics);
/* Serves one weft-perf --to over the fabrics of this list, until it is done. Returns the exit code. */
int serve(const settings *o, const char *fabrics);
/* Writes the fabrics that the serving side opened: "host,tcp". `agent` has joined its job. */
void serve_list(weft_agent *agent, char *out, size_t room);
/* Tells the serving side that the measurements are done. `agent` must be open. */
weft_status serve_tell_done(weft_agent *agent);

#endif
