/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sampler.h - which images make the batch of a trainer: each epoch shuffled anew, shared out among the trainers.
 *
 * Every trainer shuffles in the same way and takes its own share of each joint batch, so that no image is seen twice in an
 * epoch. What is left over at the end of an epoch (less than a joint batch) is skipped, other images each time.
 */
#ifndef EXAMPLES_SAMPLER_H
#define EXAMPLES_SAMPLER_H

#include <weft/status.h>

typedef struct sampler {
    uint64_t seed;
    size_t count, batch, part, parts;
    int64_t epoch;   /* that `order` is for; -1: none yet */
    uint32_t *order; /* [count] */
} sampler;

/* Batches of `batch` out of `count` images for trainer `part` of `parts`. WEFT_ERR_INVALID, WEFT_ERR_MEMORY. */
WEFT_NODISCARD weft_status sampler_init(sampler *sampler, uint64_t seed, size_t count, size_t batch, size_t part,
                                        size_t parts, weft_error **error);
/* Joint batches in an epoch. */
int64_t sampler_per_epoch(const sampler *sampler);
/* The images of joint batch `iteration`, counted through all epochs: `batch` numbers, borrowed until the next call. */
const uint32_t *sampler_batch(sampler *sampler, int64_t iteration);
void sampler_fini(sampler *sampler);

#endif
