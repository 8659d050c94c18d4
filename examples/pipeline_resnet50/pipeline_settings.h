/* SPDX-License-Identifier: Apache-2.0 */
/* pipeline_settings.h - the command line of pipeline_resnet50. */
#ifndef EXAMPLES_PIPELINE_SETTINGS_H
#define EXAMPLES_PIPELINE_SETTINGS_H

#include "common/worker.h"

#define PIPELINE_MOST_SIZES 32

typedef struct pipeline_settings {
    worker_options job;
    int64_t batch, batches, image_size, seed;
    int64_t sizes[PIPELINE_MOST_SIZES]; /* sizes of micro-batches, in images */
    size_t size_count;
    double lr;
    bool check, quiet;
    const char *micro_batches, *report;
} pipeline_settings;

/* Returns -1 to continue, or the exit code to end with. */
int pipeline_parse(int argc, char **argv, pipeline_settings *s);

#endif
