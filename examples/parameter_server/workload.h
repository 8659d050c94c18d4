/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workload.h - the training of the parameter servers: options, a model, its batches, loss and accuracy.
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

#include "common/dataset.h"
#include "common/report.h"
#include "common/worker.h"

typedef struct workload {
    /* The options. */
    int model; /* 0: convnet, 1: resnet50 */
    int64_t trainers, batch_size, image_size, classes, epochs, iterations, digits, held_out, seed;
    double lr;
    weft_device device;
    bool shared, quiet; /* shared: the trainers share the images of an epoch, else each goes through all */
    const char *data, *device_text, *save;

    /* The data. */
    int rank;        /* 0 is the server */
    dataset images;  /* convnet: a trainer's training part, the server's held-out part */
    uint32_t *order; /* a trainer's: the images of this epoch, shuffled */
    int64_t epoch;   /* of `order`; -1: none yet */
} workload;

/*
 * Reads the options, finds this worker's rank (worker_begin), and opens its data. `program` has a name, a purpose and
 * an example. batch_parameter_server (`shared`) has more options. Returns -1 to continue, or the exit code.
 */
int workload_open(workload *out, cli program, bool shared, int argc, char **argv);
void workload_close(workload *workload);

/* Creates the model; the same seed gives the same weights. */
weft_status workload_model(const workload *workload, weft_module **out, weft_error **error);
/* The seed of dropout for batch number `iteration` of this trainer. */
uint64_t workload_seed(const workload *workload, int64_t iteration);
/* The images of this trainer's batch number `iteration`: `batch_size` indices, borrowed until the next call. */
const uint32_t *workload_batch(workload *workload, int64_t iteration);
/*
 * The loss of `model` on batch number `iteration` of this trainer, on the tape's device, `device`. The tape may record.
 * NULL: the tape failed. On the CPU it fails if the loss is NaN or infinite; the error names trainer and iteration. On
 * a GPU the loss is not read, because reading waits.
 */
weft_tensor *workload_loss(workload *workload, weft_tape *tape, weft_module *model, int64_t iteration,
                           weft_device device);
/*
 * On the server, after training, while the trainers wait in weft_agent_close: measures the accuracy of `model` on
 * held-out images, saves its parameters (--save), and prints the final table. `lost` trainers died.
 * `share_of_calls` of the trainers' time, 0 to 1; < 0: unknown. WEFT_ERR_STATE: the model's scores are NaN or infinite.
 */
WEFT_NODISCARD weft_status workload_deliver(workload *workload, weft_module *model, const progress *progress,
                                            int64_t lost, double share_of_calls, const weft_agent *agent,
                                            weft_error **error);

#endif
