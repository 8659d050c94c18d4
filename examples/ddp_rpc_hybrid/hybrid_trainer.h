/* SPDX-License-Identifier: Apache-2.0 */
/* hybrid_trainer.h - what a trainer of ddp_rpc_hybrid does. */
#ifndef EXAMPLES_HYBRID_TRAINER_H
#define EXAMPLES_HYBRID_TRAINER_H

#include <weft/rpc.h>

/*
 * Serves the master's call to train: with a handle to the embedding, as (WEFT_TYPE_RREF); `settings` is the job's
 * hybrid_settings. Gives the mean loss of each epoch, the seconds that all iterations took, and the parameters of the
 * dense part. Meanwhile it calls "hear" on the master after each epoch, and "give_up" when it fails.
 */
weft_status hybrid_train(weft_call *call, void *settings);

#endif
