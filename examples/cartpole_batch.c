/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cartpole_batch.c - an agent chooses actions for observers that balance poles, in one batch a step, and learns.
 *
 *   cartpole_batch --world-size 5                  starts four observers as processes of this machine
 *   RANK=... WORLD_SIZE=... MASTER_ADDR=... MASTER_PORT=... cartpole_batch      is one worker; rank 0 is the agent
 *
 * In each step every observer calls the agent's function select_action. It is registered with a batched handler, which
 * sees the states of all observers as one tensor. With --no-batch it has a plain handler; nothing else differs.
 *
 * cartpole_manual.c makes the batches by hand. Both programs share the folder cartpole: the agent runs episodes
 * (cart_agent.c), observers play them (cart_observer.c). --sweep times both modes; --solve learns until the poles
 * stand.
 */
#include <weft/weft.h>

#include "cartpole/cart_agent.h"    /* episodes */
#include "cartpole/cart_learner.h"  /* the policy: decides, remembers, learns */
#include "cartpole/cart_observer.h" /* poles */
#include "cartpole/cart_settings.h" /* the command line */
#include "cartpole/cart_sweep.h"    /* the figure */
#include "common/worker.h"          /* messages, exit codes */

#include <stdlib.h>

static weft_status select_actions(weft_batch *batch, void *user)
{
    cart_learner *learner = user;
    weft_tape *t = weft_batch_tape(batch);
    int64_t count = (int64_t)weft_batch_count(batch), admitted = 0;
    weft_tensor *ranks = weft_tape_take(t, weft_tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_INT32));
    if (!ranks)
        return WEFT_ERR_MEMORY;
    int *rank = weft_tensor_data(ranks);
    for (int64_t i = 0; i < count; i++) {
        weft_call *call = weft_batch_call(batch, (size_t)i);
        bool good = !cart_learner_admit(learner, call); /* a call that is not admitted fails alone */
        rank[i] = good ? weft_call_from(call) : 0;
        admitted += good;
    }
    if (admitted)
        weft_batch_give(batch, 0, cart_learner_decide(learner, t, rank, count, weft_batch_tensor(batch, 1)));
    return WEFT_OK;
}

static weft_status select_action(weft_call *call, void *user)
{
    weft_tape *t = weft_call_tape(call);
    const int rank = weft_call_from(call);
    weft_status st = cart_learner_admit(user, call);
    if (st)
        return st;
    weft_tensor *actions = cart_learner_decide(user, t, &rank, 1, weft_call_tensor(call, 1));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_select(t, actions, 0, 0))));
    return weft_tape_status(t);
}

static int serve(const cart_settings *set)
{
    size_t observers = (size_t)set->job.world_size - 1;
    int *ranks = calloc(observers, sizeof *ranks);
    cart_learner *learner = cart_learner_create(set);
    weft_function function = {.name = CART_SELECT_ACTION,
                              .takes = {WEFT_TYPE_I64, WEFT_TYPE_TENSOR},
                              .gives = {WEFT_TYPE_TENSOR},
                              .flags = WEFT_FUNCTION_INLINE, /* cheaper than handing the call to another thread */
                              .user = learner};
    for (size_t i = 0; i < observers && ranks; i++)
        ranks[i] = (int)i + 1;
    if (set->batch) {
        function.run_batch = select_actions;
        function.batch = (weft_batch_options){
            .size = (int)observers, .wait_us = WEFT_FOREVER, .callers = ranks, .caller_count = observers};
    } else {
        function.run = select_action;
    }
    int code = learner && ranks ? cart_agent_run(set, learner, &function, (cart_hooks){0})
                                : worker_error(WEFT_ERR_MEMORY, NULL);
    cart_learner_free(learner);
    free(ranks);
    return code;
}

int main(int argc, char **argv)
{
    cart_settings set;
    int code = cart_settings_parse(argc, argv, "cartpole_batch", true, &set);
    if (code >= 0)
        return code;
    worker_begin("cartpole_batch", "agent", "observer", (int)set.job.rank);
    if (set.sweep)
        return cart_sweep(&set);
    return set.job.rank == 0 ? serve(&set) : cart_observer_run(&set);
}
