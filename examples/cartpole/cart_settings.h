/* SPDX-License-Identifier: Apache-2.0 */
/* cart_settings.h - the command line of the CartPole programs. */
#ifndef EXAMPLES_CART_SETTINGS_H
#define EXAMPLES_CART_SETTINGS_H

#include "common/worker.h"

#define CART_MOST_ENVS 4096
#define CART_MOST_STEPS 100000
#define CART_MOST_MOVES (1 << 24) /* poles times steps of an observer: 128 MB of returns */

typedef struct cart_settings {
    worker_options job; /* rank 0 is the agent, the others are observers */
    bool batch;         /* one evaluation of the policy a step for all observers, else one for each */
    bool manual;        /* cartpole_manual: the batches are made by hand */

    /* Learning. The defaults are those of the tutorial, or those of --solve. */
    int64_t episodes, steps, envs, hidden, seed;
    double gamma, dropout, lr, share; /* share: weight of the last episode in the running reward */
    const char *device_text;          /* as given; NULL: the CPU */
    weft_device device;               /* where the agent runs the policy */
    bool normalise;                   /* normalise the returns to mean 0 and deviation 1 */
    bool solve;                       /* end when the running reward exceeds 475 */

    /* Input and output. */
    bool render, quiet, sweep;
    const char *report, *save, *load, *out, *peer;
} cart_settings;

/* Returns -1 to continue, or the exit code to end with. `both`: the program has both modes, and --sweep. */
int cart_settings_parse(int argc, char **argv, const char *program, bool both, cart_settings *out);

#endif
