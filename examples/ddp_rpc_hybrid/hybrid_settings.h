/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid_settings.h - the command line of ddp_rpc_hybrid, and the ranks of its workers. */
#ifndef EXAMPLES_HYBRID_SETTINGS_H
#define EXAMPLES_HYBRID_SETTINGS_H

#include "common/worker.h"

/* Ranks. The master has rank 0. */
#define HYBRID_SERVER 1
#define HYBRID_FIRST_TRAINER 2
#define HYBRID_MOST_TRAINERS 1024

typedef struct hybrid_settings {
    worker_options job;
    int64_t trainers, epochs, batches, seed;
    double lr;
    bool synchronous, check, quiet;
    const char *report;
} hybrid_settings;

/* Returns -1 to continue, or the exit code to end with. */
int hybrid_parse(int argc, char **argv, hybrid_settings *s);

typedef struct hybrid_reason {
    char text[768];
} hybrid_reason;

/* The reason `why`, preceded by the name of a worker that is gone, if one is. */
hybrid_reason hybrid_reason_of(const weft_agent *agent, const char *why);

#endif
