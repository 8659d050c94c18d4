/* SPDX-License-Identifier: Apache-2.0 */
/* test_examples_sampler.c - batches: no image twice in an epoch, another order in the next, the same for the same
 * seed. */
#include <stdint.h>
#include "unit.h"

#include <workload.h>

#include <stdlib.h>
#include <string.h>

#define COUNT 100
#define BATCH 8
#define PARTS 3
#define PER_EPOCH (COUNT / (BATCH * PARTS))

static workload make(int64_t seed, int rank)
{
    workload w = {.shared = true, .trainers = PARTS, .batch_size = BATCH, .seed = seed, .rank = rank, .epoch = -1};
    w.images.count = COUNT;
    w.order = malloc(COUNT * sizeof(*w.order));
    assert_non_null(w.order);
    return w;
}

static void no_image_twice_in_an_epoch(void **state)
{
    int seen[COUNT] = {0};
    for (int rank = 1; rank <= PARTS; rank++) {
        workload w = make(1, rank);
        for (int64_t i = 0; i < PER_EPOCH; i++)
            for (size_t k = 0; k < BATCH; k++)
                assert_int_equal(seen[workload_batch(&w, i)[k]]++, 0);
        workload_close(&w);
    }
}

static void orders_follow_seed_and_epoch(void **state)
{
    workload a = make(1, 1), b = make(1, 1), c = make(2, 1);
    uint32_t first[BATCH];
    memcpy(first, workload_batch(&a, 0), sizeof(first));
    assert_memory_equal(workload_batch(&b, 0), first, sizeof(first));
    assert_memory_not_equal(workload_batch(&c, 0), first, sizeof(first));
    assert_memory_not_equal(workload_batch(&a, PER_EPOCH), first, sizeof(first));
    assert_memory_equal(workload_batch(&a, 0), first, sizeof(first));
    workload_close(&a);
    workload_close(&b);
    workload_close(&c);
}

UNIT_MAIN(no_image_twice_in_an_epoch, orders_follow_seed_and_epoch)
