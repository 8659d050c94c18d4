/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.h - the stages of pipeline_resnet50, the images that go through them, and what one process makes of the same ones. */
#ifndef EXAMPLES_PIPELINE_H
#define EXAMPLES_PIPELINE_H

#include <weft/rpc.h>
#include <weft/tape.h>

#define PIPELINE_STAGES 2
#define PIPELINE_CLASSES 1000

/*
 * What a stage's worker serves. The master makes a stage there and keeps a handle; the others take that as their first argument.
 *   "make_stage" (number from 0, seed) -> the stage, an object
 *   "parameters" (stage)               -> its parameters
 *   "forward"    (stage, images)       -> what it makes of them: `images` is a handle to a tensor, which it fetches from wherever that is
 *   "gradients"  (stage)               -> those that the call's context has of its parameters
 */
#define PIPELINE_FUNCTIONS 4
extern const weft_function pipeline_functions[PIPELINE_FUNCTIONS];

/* A batch of `count` images [3, size, size] of noise, in micro-batches of `piece`, the last one smaller if it does not divide. */
typedef struct pipeline_batch {
    int64_t count, size, piece;
    uint64_t seed;
} pipeline_batch;

int64_t pipeline_pieces(const pipeline_batch *batch);
/* How many images there are in micro-batch k. */
int64_t pipeline_piece(const pipeline_batch *batch, int64_t k);
/* Draws them, [n, 3, size, size]: image i of a batch is the same in whatever pieces. NULL: no memory. */
weft_tensor *pipeline_images(const pipeline_batch *batch, int64_t k);
/* Their share of the batch's loss: the mean of (scores - target)^2, where the target is 1 for an image's class, drawn too, and 0 elsewhere. */
weft_tensor *pipeline_loss(weft_tape *tape, const pipeline_batch *batch, int64_t k, weft_tensor *scores);

/*
 * Takes the same micro-batches through the same stages, made anew of `model_seed`, in this process alone; *difference receives the largest
 * relative difference, over the parameters, of `found`'s gradients of each stage (|found - alone| / |alone|, by the 2-norm). *error, if
 * not NULL, receives a failure; you release it.
 */
weft_status pipeline_compare(const pipeline_batch *batch, uint64_t model_seed,
                             const weft_tensors found[PIPELINE_STAGES], double *difference, weft_error **error);

#endif
