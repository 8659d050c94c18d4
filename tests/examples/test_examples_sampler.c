/* SPDX-License-Identifier: Apache-2.0 */
/* test_examples_sampler.c - batches: no image twice in an epoch, another order in the next, the same for the same seed. */
#include <stdint.h>
#include "unit.h"

#include <sampler.h>

#include <string.h>

#define COUNT 100
#define BATCH 8
#define PARTS 3

static sampler make(uint64_t seed, size_t part)
{
    sampler s;
    weft_error *error = NULL;
    assert_int_equal(sampler_init(&s, seed, COUNT, BATCH, part, PARTS, &error), WEFT_OK);
    return s;
}

static void no_image_twice_in_an_epoch(void **state)
{
    int seen[COUNT] = {0};
    for (size_t part = 0; part < PARTS; part++) {
        sampler s = make(1, part);
        assert_int_equal(sampler_per_epoch(&s), COUNT / (BATCH * PARTS));
        for (int64_t i = 0; i < sampler_per_epoch(&s); i++)
            for (size_t k = 0; k < BATCH; k++)
                assert_int_equal(seen[sampler_batch(&s, i)[k]]++, 0);
        sampler_fini(&s);
    }
}

static void orders_follow_seed_and_epoch(void **state)
{
    sampler a = make(1, 0), b = make(1, 0), c = make(2, 0);
    uint32_t first[BATCH];
    memcpy(first, sampler_batch(&a, 0), sizeof first);
    assert_memory_equal(sampler_batch(&b, 0), first, sizeof first);
    assert_memory_not_equal(sampler_batch(&c, 0), first, sizeof first);
    assert_memory_not_equal(sampler_batch(&a, sampler_per_epoch(&a)), first, sizeof first);
    assert_memory_equal(sampler_batch(&a, 0), first, sizeof first);
    sampler_fini(&a);
    sampler_fini(&b);
    sampler_fini(&c);
}

static void too_few_images_are_refused(void **state)
{
    sampler s;
    weft_error *error = NULL;
    assert_int_equal(sampler_init(&s, 1, 23, BATCH, 0, PARTS, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "23 images"));
    weft_error_unref(error);
}

UNIT_MAIN(no_image_twice_in_an_epoch, orders_follow_seed_and_epoch, too_few_images_are_refused)
