/* SPDX-License-Identifier: Apache-2.0 */
/* cart_agent.h - the agent: makes observers, runs episodes on them, learns after each, and reports. */
#ifndef EXAMPLES_CART_AGENT_H
#define EXAMPLES_CART_AGENT_H

#include <weft/rpc.h>

#include "cart_learner.h"

/* For a program that defers calls of observers. Both may be NULL. */
typedef struct cart_hooks {
    void (*gone)(void *arg, int rank); /* this observer no longer takes part */
    void (*end)(void *arg,
                const char *why); /* the job ends early: answer all deferred calls, and defer no further ones */
    void *arg;
} cart_hooks;

/* Runs the job. `select_action` is the function that observers call, CART_SELECT_ACTION. Returns the exit code. */
int cart_agent_run(const cart_settings *settings, cart_learner *learner, const weft_function *select_action,
                   cart_hooks hooks);

#endif
