/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hybrid.h - the model and the batches of ddp_rpc_hybrid, and the same training in one process.
 *
 * Weights and batches depend only on the seed (random_stream.h), so that tests/oracle/hybrid_oracle.py can draw the
 * same.
 */
#ifndef EXAMPLES_HYBRID_H
#define EXAMPLES_HYBRID_H

#include <weft/nn.h>

#define HYBRID_ROWS 100 /* of the embedding */
#define HYBRID_WIDTH 16
#define HYBRID_CLASSES 8

/* The embedding bag: sums of rows of a table [100, 16], drawn from N(0, 1). NULL: no memory. */
weft_module *hybrid_embedding(uint64_t seed);
/*
 * The linear layer [16] -> [8] of trainer 0, 1 ..., drawn from U(-1/4, 1/4), different for each trainer. NULL: no
 * memory.
 */
weft_module *hybrid_dense(uint64_t seed, int64_t trainer);

typedef struct hybrid_batch {
    weft_tensor *index, *offsets, *target; /* owned by a tape */
    int64_t bags;
} hybrid_batch;
/*
 * Draws a batch as in the tutorial: 20 to 50 rows, in bags of 1 to 10. `number` counts iterations. Tensors are NULL if
 * the tape fails.
 */
hybrid_batch hybrid_draw(weft_tape *t, uint64_t seed, int64_t trainer, int64_t number);

typedef struct hybrid_run {
    uint64_t seed;
    double lr;
    int64_t trainers, epochs, batches;
} hybrid_run;
/*
 * Trains in this process alone. Each step uses the batches of all trainers: gradients of the dense part are averaged,
 * those of the embedding added. losses[trainer * epochs + epoch] receives the mean loss.
 */
WEFT_NODISCARD weft_status hybrid_alone(const hybrid_run *run, double *losses, weft_error **error);

#endif
