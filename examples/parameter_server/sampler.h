/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.h - the images of each batch of a trainer: shuffled anew for each epoch, and divided among the trainers.
 *
 * Every trainer shuffles in the same way and takes its own part of each joint batch, so no image is used twice in an
 * epoch. At the end of an epoch the rest, less than a joint batch, is skipped: other images in each epoch.
 */
#ifndef EXAMPLES_SAMPLER_H
#define EXAMPLES_SAMPLER_H

#include <weft/status.h>

typedef struct sampler {
    uint64_t seed;
    size_t count, batch, part, parts;
    int64_t epoch;   /* the epoch of `order`; -1: none yet */
    uint32_t *order; /* [count] */
} sampler;

/* Makes batches of `batch` out of `count` images, for trainer `part` of `parts`. WEFT_ERR_INVALID, WEFT_ERR_MEMORY. */
WEFT_NODISCARD weft_status sampler_init(sampler *sampler, uint64_t seed, size_t count, size_t batch, size_t part,
                                        size_t parts, weft_error **error);
/* The number of joint batches in an epoch. */
int64_t sampler_per_epoch(const sampler *sampler);
/* The images of joint batch `iteration`, counted over all epochs: `batch` indices, borrowed until the next call. */
const uint32_t *sampler_batch(sampler *sampler, int64_t iteration);
void sampler_fini(sampler *sampler);

#endif
