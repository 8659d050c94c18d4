/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload.h - the training of the parameter servers: a model, its batches, loss and accuracy.
 *
 *   convnet    PyTorch's MNIST ConvNet on images of digits, with negative log-likelihood
 *   resnet50   ResNet-50 on random images, with mean squared error to one-hot targets, fixed for each trainer
 *
 * resnet50 is the load of PyTorch's tutorial on batch-updating parameter servers. Nothing can be learned from its
 * images.
 */
#ifndef EXAMPLES_WORKLOAD_H
#define EXAMPLES_WORKLOAD_H

#include <weft/nn.h>

#include "settings.h"

typedef struct workload workload;

/*
 * Opens the data of the worker in `settings`. The server (rank 0) checks all data. In batch_parameter_server it keeps
 * the held-out part, and the trainers share the rest. In rpc_parameter_server each trainer keeps all data, in an order
 * of its own.
 */
WEFT_NODISCARD weft_status workload_open(const settings *settings, workload **out, weft_error **error);
void workload_close(workload *workload);

/* The number of batches of each trainer. */
int64_t workload_iterations(const workload *workload);

/* The seed of dropout for batch number `iteration` of this trainer. */
uint64_t workload_seed(const workload *workload, int64_t iteration);

/* Creates the model; the same seed gives the same weights. NULL: no memory. You unref it. */
weft_module *workload_model(const workload *workload);

/*
 * The loss of `model` on batch number `iteration` of this trainer, on the tape's device, `device`. The tape may record.
 * NULL: the tape failed. It fails if the loss is NaN or infinite; the error names trainer, epoch and iteration.
 */
weft_tensor *workload_loss(workload *workload, weft_tape *tape, weft_module *model, int64_t iteration,
                           weft_device device);

/*
 * For a worker that keeps held-out images: the share that `model` classifies correctly, 0 to 1; -1 if nothing is held
 * out. WEFT_ERR_STATE: the scores are NaN or infinite.
 */
WEFT_NODISCARD weft_status workload_accuracy(workload *workload, weft_module *model, double *out, weft_error **error);

/* Whether a loss or scores were NaN or infinite. Then no trainer can continue. */
bool workload_diverged(const workload *workload);

#endif
