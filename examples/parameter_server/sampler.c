/* SPDX-License-Identifier: Apache-2.0 */
/* sampler.c - batches of shuffled images. */
#include "sampler.h"

#include "common/random_stream.h"

#include <stdio.h>
#include <stdlib.h>

weft_status sampler_init(sampler *s, uint64_t seed, size_t count, size_t batch, size_t part, size_t parts,
                         weft_error **error)
{
    *s = (sampler){.seed = seed, .count = count, .batch = batch, .part = part, .parts = parts, .epoch = -1};
    if (count > UINT32_MAX || batch == 0 || parts == 0 || part >= parts || count / parts < batch) {
        char shared[48] = "";
        if (parts > 1)
            snprintf(shared, sizeof shared, " for each of %zu trainers", parts);
        *error = weft_error_create(WEFT_ERR_INVALID, "%zu images do not make a batch of %zu%s: a smaller batch, please",
                                   count, batch, shared);
        return WEFT_ERR_INVALID;
    }
    s->order = malloc(count * sizeof *s->order);
    if (s->order)
        return WEFT_OK;
    *error = weft_error_create(WEFT_ERR_MEMORY, "out of memory for the order of %zu images", count);
    return WEFT_ERR_MEMORY;
}

int64_t sampler_per_epoch(const sampler *s)
{
    return (int64_t)(s->count / (s->batch * s->parts));
}

/* Fisher and Yates's shuffle, in Durstenfeld's form (CACM 1964). */
static void shuffle(sampler *s, int64_t epoch)
{
    random_stream random = {random_key(s->seed, (uint64_t)epoch)};
    for (size_t i = 0; i < s->count; i++)
        s->order[i] = (uint32_t)i;
    for (size_t i = s->count - 1; i > 0; i--) {
        size_t j = random_below(&random, (uint32_t)(i + 1));
        uint32_t swap = s->order[i];
        s->order[i] = s->order[j];
        s->order[j] = swap;
    }
    s->epoch = epoch;
}

const uint32_t *sampler_batch(sampler *s, int64_t iteration)
{
    int64_t per_epoch = sampler_per_epoch(s);
    if (iteration / per_epoch != s->epoch)
        shuffle(s, iteration / per_epoch);
    return s->order + ((size_t)(iteration % per_epoch) * s->parts + s->part) * s->batch;
}

void sampler_fini(sampler *s)
{
    free(s->order);
    s->order = NULL;
}
