/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as
 * 1, 2, 3", SC 2011).
 *
 * Number i of (seed, stream) is a function of the three alone: nothing is carried along, so any thread may make any part,
 * and results do not depend on how many there are. Take a new stream for each use.
 */
#ifndef WFI_RANDOM_H
#define WFI_RANDOM_H

#include <weft/tensor.h>

typedef struct wfi_random {
    uint64_t seed, stream;
} wfi_random;

/* The bijection itself. */
void wfi_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Number `index`, on its own. */
uint64_t wfi_random_u64(wfi_random random, uint64_t index);
double wfi_random_f64(wfi_random random, uint64_t index);                 /* uniform in [0, 1), 53 bits */
double wfi_random_normal_f64(wfi_random random, uint64_t index);          /* mean 0, deviation 1; Box-Muller */
int64_t wfi_random_below(wfi_random random, uint64_t index, int64_t end); /* uniform in [0, end); 0 if end < 1 */

/* Fill contiguous host tensors, element i from number i. WEFT_ERR_TYPE for a dtype that the line does not name. */
weft_status wfi_random_uniform(weft_tensor *tensor, wfi_random random, double low, double high);      /* floats */
weft_status wfi_random_normal(weft_tensor *tensor, wfi_random random, double mean, double deviation); /* floats */
/* `value` with probability p, else 0. For dropout: p = 1 - rate, value = 1 / p. Floats. */
weft_status wfi_random_mask(weft_tensor *tensor, wfi_random random, double p, double value);
/* A permutation of 0 .. numel-1 (Fisher-Yates), int64. */
weft_status wfi_random_permutation(weft_tensor *tensor, wfi_random random);

#endif
