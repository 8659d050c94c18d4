/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cartpole_manual.c - cartpole_batch with batches made by hand: a lock, a counter, and deferred calls.
 *
 *   cartpole_manual --world-size 5                 starts four observers as processes of this machine
 *
 * The handler copies the states of an observer into a row, defers the call, and returns. The handler of the last
 * observer's call evaluates the policy once and answers all calls, so no thread waits.
 *
 * A batched handler (weft/batch.h) does this for you. It also pulls tensors directly into their rows, and handles
 * errors, time limits and deaths.
 */
#include <weft/weft.h>

#include "cartpole/cart_agent.h"    /* episodes */
#include "cartpole/cart_learner.h"  /* the policy: decides, remembers, learns */
#include "cartpole/cart_observer.h" /* poles */
#include "cartpole/cart_settings.h" /* the command line */
#include "cartpole/cartpole.h"
#include "common/worker.h" /* messages, exit codes */

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

typedef struct gathering {
    cart_learner *learner;
    size_t observers, row_bytes; /* in total; bytes of the states of one observer */

    pthread_mutex_t lock; /* protects the fields below */
    weft_tensor *states;  /* [observers, poles, 4], by arrival */
    weft_call **calls;    /* by row; NULL: its observer has died since */
    int *ranks;           /* by row; 0: its observer has died since */
    size_t rows, waiting; /* rows in use; rows with a call */
    size_t expected;      /* observers that take part */
    bool *gone;           /* by rank */
    bool over;            /* the job ends early */
} gathering;

static void answer(gathering *g, weft_tape *t, weft_tensor *actions, weft_status status, const char *why)
{
    for (size_t i = 0; i < g->rows; i++) {
        weft_call *call = g->calls[i];
        g->calls[i] = NULL;
        if (!call)
            continue;
        if (status)
            weft_call_fail(call, status, "%s", why);
        else
            weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_select(t, actions, 0, (int64_t)i))));
        weft_call_finish(call, status);
    }
    g->rows = g->waiting = 0;
}

static void decide_if_complete(gathering *g)
{
    if (g->waiting == 0 || g->waiting < g->expected)
        return;
    weft_tape *t = weft_tape_open(NULL);
    weft_tensor *states = weft_narrow(t, g->states, 0, 0, (int64_t)g->rows);
    weft_tensor *actions = cart_learner_decide(g->learner, t, g->ranks, (int64_t)g->rows, states);
    weft_status st = weft_tape_status(t);
    answer(g, t, actions, st, st ? weft_error_message(weft_tape_error(t)) : "");
    weft_tape_close(t);
}

static weft_status select_action(weft_call *call, void *user)
{
    gathering *g = user;
    pthread_mutex_lock(&g->lock);
    weft_status st = g->over ? WEFT_ERR_STATE : cart_learner_admit(g->learner, call);
    if (!st) {
        char *row = (char *)weft_tensor_data(g->states) + g->rows * g->row_bytes;
        memcpy(row, weft_tensor_data(weft_call_tensor(call, 1)), g->row_bytes);
        g->ranks[g->rows] = weft_call_from(call);
        g->calls[g->rows++] = weft_call_defer(call);
        g->waiting++;
        decide_if_complete(g);
    }
    pthread_mutex_unlock(&g->lock);
    return st ? st : WEFT_DEFERRED;
}

/* An observer is dead. If the others waited only for its call, they are answered now. */
static void on_gone(void *arg, int rank)
{
    gathering *g = arg;
    pthread_mutex_lock(&g->lock);
    for (size_t i = 0; i < g->rows; i++) {
        if (g->ranks[i] != rank)
            continue;
        weft_call_finish(g->calls[i], WEFT_ERR_PEER_DEAD);
        g->calls[i] = NULL;
        g->ranks[i] = 0;
        g->waiting--;
    }
    g->expected -= !g->gone[rank];
    g->gone[rank] = true;
    decide_if_complete(g);
    pthread_mutex_unlock(&g->lock);
}

static void on_end(void *arg, const char *why)
{
    gathering *g = arg;
    pthread_mutex_lock(&g->lock);
    g->over = true;
    answer(g, NULL, NULL, WEFT_ERR_CANCELLED, why);
    pthread_mutex_unlock(&g->lock);
}

static bool open_gathering(gathering *g, const cart_settings *set)
{
    g->observers = g->expected = (size_t)set->job.world_size - 1;
    g->row_bytes = (size_t)set->envs * CARTPOLE_STATE * sizeof(float);
    g->learner = cart_learner_create(set);
    g->states = weft_tensor_zeros(WEFT_SHAPE((int64_t)g->observers, set->envs, CARTPOLE_STATE), WEFT_DTYPE_FLOAT32);
    g->calls = calloc(g->observers, sizeof(weft_call *));
    g->ranks = calloc(g->observers, sizeof *g->ranks);
    g->gone = calloc(g->observers + 1, sizeof *g->gone);
    return g->learner && g->states && g->calls && g->ranks && g->gone;
}

static void close_gathering(gathering *g)
{
    free(g->gone);
    free(g->ranks);
    free(g->calls);
    weft_tensor_unref(g->states);
    cart_learner_free(g->learner);
}

static int serve(const cart_settings *set)
{
    gathering g = {.lock = PTHREAD_MUTEX_INITIALIZER};
    const cart_hooks hooks = {.gone = on_gone, .end = on_end, .arg = &g};
    const weft_function function = {.name = CART_SELECT_ACTION,
                                    .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
                                    .gives = {WEFT_TYPE_TENSOR},
                                    .run = select_action,
                                    .flags = WEFT_FUNCTION_INLINE, /* cheaper than handing the call to another thread */
                                    .user = &g};
    int code = open_gathering(&g, set) ? cart_agent_run(set, g.learner, &function, hooks)
                                       : worker_error(WEFT_ERR_MEMORY, NULL);
    close_gathering(&g);
    return code;
}

int main(int argc, char **argv)
{
    cart_settings set;
    int code = cart_settings_parse(argc, argv, "cartpole_manual", false, &set);
    if (code >= 0)
        return code;
    worker_begin("cartpole_manual", "agent", "observer", (int)set.job.rank);
    return set.job.rank == 0 ? serve(&set) : cart_observer_run(&set);
}
