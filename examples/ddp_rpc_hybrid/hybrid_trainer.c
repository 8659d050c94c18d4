/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid_trainer.c - what a trainer of ddp_rpc_hybrid does. */
#include "hybrid_trainer.h"

#include "hybrid.h"
#include "hybrid_settings.h"
#include "common/report.h"

#include <weft/weft.h>

#include <math.h>
#include <stdlib.h>

typedef struct trainer {
    const hybrid_settings *set;
    int64_t index; /* among the trainers */
    weft_agent *agent;
    weft_remote_module *embedding;
    weft_module *dense;
    weft_group *gradients, *steps; /* of the trainers */
    weft_data_parallel *parallel;
    weft_dist_optimizer *sgd;
    double *losses; /* [epochs], means */
    tally tally, told;
    weft_error *error;
} trainer;

/* The dense part becomes a replica of trainer 0's, and from then on passes average its gradients over the trainers. */
static weft_status replicate(trainer *me)
{
    int ranks[HYBRID_MOST_TRAINERS];
    for (int i = 0; i < me->set->trainers; i++)
        ranks[i] = HYBRID_FIRST_TRAINER + i;
    size_t count = (size_t)me->set->trainers;
    weft_status st = weft_group_open(me->agent, "gradients", ranks, count, &me->gradients, NULL);
    if (!st)
        st = weft_group_open(me->agent, "steps", ranks, count, &me->steps, NULL);
    if (!st)
        st = weft_data_parallel_create(me->gradients, me->dense, NULL, &me->parallel, &me->error);
    return st;
}

/* An optimizer over the embedding there and the dense part here. */
static weft_status make_optimizer(trainer *me)
{
    weft_values *remote = NULL;
    weft_rref *both[2] = {NULL};
    weft_status st = weft_remote_parameters(me->embedding, &remote);
    if (!st)
        st = weft_values_get_rref(remote, 0, &both[0]);
    if (!st)
        st = weft_rref_create(me->agent, weft_of_tensors(weft_module_parameters(me->dense)), &both[1]);
    const weft_optimizer_spec spec = {.kind = WEFT_OPTIMIZER_SGD, .sgd.lr = me->set->lr};
    if (!st)
        st = weft_dist_optimizer_create(me->agent, both, 2, &spec, &me->sgd, &me->error);
    weft_rref_unref(both[1]);
    weft_values_unref(remote);
    return st;
}

static weft_tensor *loss_of(trainer *me, weft_tape *t, int64_t number)
{
    const hybrid_settings *s = me->set;
    hybrid_batch batch = hybrid_draw(t, (uint64_t)s->seed, me->index, number);
    weft_args in = WEFT_VALUES(weft_of_tensor(batch.index), weft_of_tensor(batch.offsets));
    double began = clock_seconds();
    weft_tensor *x = weft_remote_forward(t, me->embedding, in, NULL);
    me->tally.in_calls += clock_seconds() - began;
    me->tally.images += batch.bags;
    weft_tensor *loss = weft_cross_entropy(t, weft_module_forward(t, me->dense, x), batch.target);
    double value = weft_tensor_get_f64(loss, 0);
    if (loss && !isfinite(value))
        weft_tape_fail(t, WEFT_ERR_STATE,
                       "the loss of trainer %d is %s in epoch %lld, batch %lld, with --lr %g: a smaller one, please",
                       weft_agent_rank(me->agent), isnan(value) ? "nan" : "infinite",
                       (long long)(number / s->batches) + 1, (long long)(number % s->batches) + 1, s->lr);
    return loss;
}

/*
 * After the pass, in which all trainers averaged, all have looked up what they need of the embedding; before the barrier all
 * have stepped it.
 */
static weft_status step_together(trainer *me, weft_context *context)
{
    weft_status st = weft_dist_optimizer_step(me->sgd, &context, 1, &(weft_dist_step_options){.error = &me->error});
    return st ? st : weft_group_barrier(me->steps, WEFT_FOREVER);
}

static weft_status train_step(trainer *me, int64_t number)
{
    weft_context *context;
    weft_status st = weft_context_open(me->agent, &context);
    if (st)
        return st;
    double began = clock_seconds(), in_calls = me->tally.in_calls;
    weft_tape *t = weft_context_tape(context, NULL);
    weft_context_set_hooks(context, weft_data_parallel_hooks(me->parallel));
    weft_tensor *loss = loss_of(me, t, number);
    double back = clock_seconds();
    me->tally.computing += back - began - (me->tally.in_calls - in_calls);
    if (!weft_tape_status(t)) /* else give_up ends the groups, once the master has heard why */
        weft_dist_backward(t, loss, &(weft_pass_options){.step = me->set->synchronous ? NULL : me->sgd});
    st = weft_tape_status(t);
    if (st)
        me->error = weft_error_ref(weft_tape_error(t));
    else if (me->set->synchronous)
        st = step_together(me, context);
    me->tally.in_calls += clock_seconds() - back;
    if (!st)
        me->losses[number / me->set->batches] += weft_tensor_get_f64(loss, 0) / (double)me->set->batches;
    weft_tape_close(t);
    weft_context_close(context, NULL);
    return st;
}

/* Tells the master of an epoch. The answer is waited for only after the last: then the master has heard of all. */
static weft_status tell(trainer *me, int64_t epoch)
{
    const tally *t = &me->tally, *before = &me->told;
    weft_future *heard = NULL;
    weft_status st = weft_rpc_async(
        me->agent, weft_to_rank(0), "hear",
        WEFT_VALUES(weft_of_i64(me->set->batches), weft_of_f64(me->losses[epoch]),
                    weft_of_i64(t->images - before->images), weft_of_f64(t->computing - before->computing),
                    weft_of_f64(t->in_calls - before->in_calls)),
        &(weft_rpc_options){.error = &me->error}, epoch + 1 == me->set->epochs ? &heard : NULL);
    me->told = me->tally;
    if (heard)
        st = weft_future_wait(heard, WEFT_FOREVER);
    weft_future_unref(heard);
    return st;
}

static weft_status train_all(trainer *me)
{
    const hybrid_settings *s = me->set;
    me->losses = calloc((size_t)s->epochs, sizeof *me->losses);
    me->dense = hybrid_dense((uint64_t)s->seed, me->index);
    weft_status st = me->losses && me->dense ? replicate(me) : WEFT_ERR_MEMORY;
    if (!st)
        st = make_optimizer(me);
    tally_begin(&me->tally);
    for (int64_t i = 0; i < s->epochs * s->batches && !st; i++) {
        st = train_step(me, i);
        me->tally.ended = clock_seconds();
        if (!st && (i + 1) % s->batches == 0)
            st = tell(me, i / s->batches);
    }
    return st;
}

/* To the master: the losses, the seconds, and the dense part, which all trainers have alike. */
static void give_results(trainer *me, weft_call *call)
{
    weft_tensor *losses = weft_tensor_copy_of(WEFT_SHAPE(me->set->epochs), WEFT_DTYPE_FLOAT64, me->losses);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(losses), weft_of_f64(tally_seconds(&me->tally)),
                                     weft_of_tensors(weft_module_parameters(me->dense))));
    weft_tensor_unref(losses);
}

/* The master is to hear it before the others do, who would wait for this trainer's passes and steps. */
static weft_status give_up(trainer *me, weft_call *call, weft_status st)
{
    const weft_error *error = me->error                         ? me->error
                              : weft_group_error(me->gradients) ? weft_group_error(me->gradients)
                                                                : weft_group_error(me->steps);
    hybrid_reason why = hybrid_reason_of(me->agent, error ? weft_error_message(error) : weft_status_text(st));
    (void)!weft_rpc_sync(me->agent, weft_to_rank(0), "give_up", WEFT_VALUES(weft_of_string(why.text)), NULL, NULL);
    weft_group_abort(me->gradients, error);
    weft_group_abort(me->steps, error);
    weft_call_fail(call, st, "%s", why.text);
    return st;
}

weft_status hybrid_train(weft_call *call, void *set)
{
    trainer me = {.set = set, .agent = weft_call_agent(call)};
    me.index = weft_agent_rank(me.agent) - HYBRID_FIRST_TRAINER;
    weft_status st = weft_remote_module_from_rref(weft_call_rref(call, 0), &me.embedding);
    if (!st)
        st = train_all(&me);
    if (!st)
        give_results(&me, call);
    else
        st = give_up(&me, call, st);
    weft_dist_optimizer_unref(me.sgd);
    weft_data_parallel_unref(me.parallel);
    weft_group_close(me.steps);
    weft_group_close(me.gradients);
    weft_module_unref(me.dense);
    weft_remote_module_unref(me.embedding);
    weft_error_unref(me.error);
    free(me.losses);
    return st;
}
