/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload.h - what is trained, on what: a model, batches for it, its loss, its accuracy.
 *
 *   convnet    PyTorch's MNIST ConvNet on images of digits, negative log-likelihood;
 *   resnet50   ResNet-50 on random images, mean squared error to one-hot targets that stay the same for each trainer: the
 *              load of PyTorch's tutorial on batch-updating parameter servers, of which nothing is to be learned.
 */
#ifndef EXAMPLES_WORKLOAD_H
#define EXAMPLES_WORKLOAD_H

#include <weft/nn.h>

#include "settings.h"

typedef struct workload workload;

/*
 * For the worker that `settings` says. The server (rank 0) checks all data. Of batch_parameter_server it keeps what is held out, and the trainers share
 * the rest; of rpc_parameter_server each trainer keeps all of both, in an order of its own.
 */
WEFT_NODISCARD weft_status workload_open(const settings *settings, workload **out, weft_error **error);
void workload_close(workload *workload);

/* Batches for each trainer. */
int64_t workload_iterations(const workload *workload);

/* Of dropout, for this trainer's batch number `iteration`. */
uint64_t workload_seed(const workload *workload, int64_t iteration);

/* The model, the same for the same seed; NULL if memory is out. You unref it. */
weft_module *workload_model(const workload *workload);

/*
 * The loss of `model` on this trainer's batch number `iteration`, on a tape that may record. NULL when the tape fails; it does so if the
 * loss is NaN or infinite, with an error that names trainer, epoch and iteration.
 */
weft_tensor *workload_loss(workload *workload, weft_tape *tape, weft_module *model, int64_t iteration);

/*
 * Where held-out images are kept: the share of them that `model` gets right, 0 to 1; -1 if nothing is held out. WEFT_ERR_STATE: its scores
 * are NaN or infinite.
 */
WEFT_NODISCARD weft_status workload_accuracy(workload *workload, weft_module *model, double *out, weft_error **error);

/* Whether a loss or scores were NaN or infinite: then there is no use in going on, for no trainer. */
bool workload_diverged(const workload *workload);

#endif
