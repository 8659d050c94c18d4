/* SPDX-License-Identifier: Apache-2.0 */
/* cart_settings.h - what the CartPole programs can be asked for on their command line. */
#ifndef EXAMPLES_CART_SETTINGS_H
#define EXAMPLES_CART_SETTINGS_H

#include "common/worker.h"

#define CART_MOST_ENVS 4096
#define CART_MOST_STEPS 100000
#define CART_MOST_MOVES (1 << 24) /* poles times steps, of an observer: 128 MB of returns */

typedef struct cart_settings {
    worker_options job; /* rank 0 is the agent, the others are observers */
    bool batch;         /* one evaluation of the policy for all observers, else one for each */
    bool manual;        /* and that by hand */

    /* What is learned, and how; the defaults are the tutorial's, or those of --solve. */
    int64_t episodes, steps, envs, hidden, seed;
    double gamma, dropout, lr, share; /* share of the last episode in the running reward */
    bool normalise;                   /* returns, to mean 0 and deviation 1 */
    bool solve;                       /* ends when the running reward passes 475 */

    /* What happens around it. */
    bool render, quiet, sweep;
    const char *report, *save, *load, *out, *peer;
} cart_settings;

/* Returns -1: go on; else the exit code to end with, as cli_parse. `both`: the program batches or not, and sweeps. */
int cart_settings_parse(int argc, char **argv, const char *program, bool both, cart_settings *out);

#endif
