/* SPDX-License-Identifier: Apache-2.0 */
/* settings.h - the command lines of the parameter servers. */
#ifndef EXAMPLES_SETTINGS_H
#define EXAMPLES_SETTINGS_H

#include "common/worker.h"

typedef enum settings_model { MODEL_CONVNET = 0, MODEL_RESNET50 = 1 } settings_model;
typedef enum settings_schedule { SCHEDULE_LINEAR = 0, SCHEDULE_CONSTANT = 1 } settings_schedule;

typedef enum settings_program {
    SETTINGS_BATCH,
    SETTINGS_RPC
} settings_program; /* batch_parameter_server, rpc_parameter_server */

typedef struct settings {
    settings_program program;
    worker_options job; /* rank 0 is the server */
    int64_t trainers;   /* world_size - 1 */

    /* The training. */
    int model, schedule;
    int64_t batch_size, batch_update_size, image_size, classes, epochs, iterations, digits, held_out, seed;
    double lr, momentum;
    const char *data;
    const char *device_text; /* as given; NULL: the CPU */
    weft_device device;      /* of a worker that computes the model; otherwise the CPU */
    bool deterministic;

    /* Output. */
    const char *save, *report;
    bool quiet;
} settings;

/*
 * Returns -1 to continue, or the exit code to end with. Sets WEFT_CPU_THREADS in the environment, also for started
 * workers, so call it before anything computes.
 */
int settings_parse(settings_program program, int argc, char **argv, settings *out);
const char *settings_model_name(const settings *settings);
/* The learning rate of update number `update` of `updates`. */
double settings_lr(const settings *settings, int64_t update, int64_t updates);

#endif
