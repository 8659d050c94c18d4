/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline.h - the stages of pipeline_resnet50 and their images, and the same computation in one process. */
#ifndef EXAMPLES_PIPELINE_H
#define EXAMPLES_PIPELINE_H

#include <weft/rpc.h>
#include <weft/tape.h>

#define PIPELINE_STAGES 2
#define PIPELINE_CLASSES 1000

/*
 * Stage 0 or 1 of ResNet-50, cut behind layer2 as in the tutorial. With one seed, both stages together have the
 * parameters of the whole network. NULL: no memory.
 */
weft_module *pipeline_stage(int64_t stage, uint64_t seed);

/*
 * A batch of `count` images [3, size, size] of noise, in micro-batches of `piece`. The last one is smaller if `piece`
 * does not divide `count`.
 */
typedef struct pipeline_batch {
    int64_t count, size, piece;
    uint64_t seed;
} pipeline_batch;

int64_t pipeline_pieces(const pipeline_batch *batch);
/* The number of images in micro-batch k. */
int64_t pipeline_piece(const pipeline_batch *batch, int64_t k);
/*
 * Draws the images of micro-batch k, [n, 3, size, size]. Image i of a batch does not depend on `piece`. NULL: no
 * memory.
 */
weft_tensor *pipeline_images(const pipeline_batch *batch, int64_t k);
/*
 * The micro-batch's share of the loss of the batch: the mean of (scores - target)^2. The target is 1 for the image's
 * class, which is drawn too, and 0 elsewhere.
 */
weft_tensor *pipeline_loss(weft_tape *tape, const pipeline_batch *batch, int64_t k, weft_tensor *scores);

/*
 * Runs the same micro-batches through the same stages, created again from `model_seed`, in this process alone.
 * *difference receives the largest relative difference of a gradient in `found` from the gradient computed here: |found
 * - alone| / |alone|, in the 2-norm. *error, if not NULL, receives a failure; you release it.
 */
weft_status pipeline_compare(const pipeline_batch *batch, uint64_t model_seed,
                             const weft_tensors found[PIPELINE_STAGES], double *difference, weft_error **error);

#endif
