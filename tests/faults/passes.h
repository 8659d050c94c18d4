/* SPDX-License-Identifier: Apache-2.0 */
/*
 * passes.h - computations that are spread over workers by nested calls, and the same on one tape (passes_graph.c), for
 * passes.c.
 */
#ifndef TESTS_FAULTS_PASSES_H
#define TESTS_FAULTS_PASSES_H

#include "faults/faults.h"

#define PARAMETERS 3 /* of each worker */
#define BREAKS 15    /* a bit of `ranks`: some nodes refuse their gradient, and the pass fails */
#define COLUMNS 8    /* of every tensor; a parameter is one row */

/* A computation: everything in it follows from the seed. */
typedef struct graph {
    uint64_t seed;
    int64_t rows;   /* of every tensor but the parameters */
    bool fractions; /* values are no integers: sums depend on the order */
    unsigned ranks; /* bits: the workers that may take part; and BREAKS */
    int depth;      /* of nested calls, at most */
} graph;

extern const weft_function passes_functions[];
extern const size_t passes_function_count;

/* The parameters of this worker, which follow from its rank. */
void graph_begin(void);
void graph_end(void);
weft_tensor *graph_own(int k, bool fractions); /* borrowed */
/* Those of any rank, as constants of the local oracle that want gradients. The caller releases them. */
weft_tensor *graph_parameter(int rank, int k, bool fractions);
weft_tensor *graph_input(const graph *g);

/*
 * The loss, one element, by calls to the others. NULL: the tape has failed, or a call, whose error is in *error (the
 * caller's to release).
 */
weft_tensor *graph_run(const graph *g, weft_tape *tape, weft_error **error);
/* The same on one tape as if it began at `rank`, with parameters[rank * PARAMETERS + k]. */
weft_tensor *graph_run_locally(const graph *g, int rank, weft_tape *tape, weft_tensor *const *parameters);
/* Arguments of "loss", by which another worker computes the loss of `input` and keeps it. */
void graph_loss_arguments(const graph *g, weft_tensor *input, weft_value out[6]);

#endif
