/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hybrid.h - what the trainers of ddp_rpc_hybrid train: the two parts of the model, the batches, and the same training in one process.
 *
 * Weights and batches are functions of the seed alone (random_stream.h), so that tests/oracle/hybrid_oracle.py can draw the same.
 */
#ifndef EXAMPLES_HYBRID_H
#define EXAMPLES_HYBRID_H

#include <weft/nn.h>

#define HYBRID_ROWS 100 /* of the embedding */
#define HYBRID_WIDTH 16
#define HYBRID_CLASSES 8

/* An embedding bag, sums of rows [100, 16], N(0, 1). NULL: memory is out. */
weft_module *hybrid_embedding(uint64_t seed);
/* The linear layer [16] -> [8] of a trainer (0, 1, ..), weights and bias U(-1/4, 1/4); each trainer has another. NULL: memory is out. */
weft_module *hybrid_dense(uint64_t seed, int64_t trainer);

typedef struct hybrid_batch {
    weft_tensor *index, *offsets, *target; /* of a tape */
    int64_t bags;
} hybrid_batch;
/* The tutorial's: 20 to 50 rows, in bags of 1 to 10. `number`: of the iteration. Tensors are NULL if the tape fails. */
hybrid_batch hybrid_draw(weft_tape *t, uint64_t seed, int64_t trainer, int64_t number);

typedef struct hybrid_run {
    uint64_t seed;
    double lr;
    int64_t trainers, epochs, batches;
} hybrid_run;
/*
 * Trains in this process alone: in each step the gradients of the trainers' batches, of the dense part averaged, of the embedding added.
 * losses[trainer * epochs + epoch] receives the mean loss.
 */
WEFT_NODISCARD weft_status hybrid_alone(const hybrid_run *run, double *losses, weft_error **error);

#endif
