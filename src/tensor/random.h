/* SPDX-License-Identifier: Apache-2.0 */
/*
 * random.h - counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy
 * as 1, 2, 3", SC 2011).
 *
 * A number depends only on the seed, the stream and its index in the stream. There is no state. So any thread may
 * generate any of the numbers, and they do not depend on the number of threads. Take a new stream for each use.
 */
#ifndef WFI_RANDOM_H
#define WFI_RANDOM_H

#include <weft/tensor.h>

typedef struct wfi_random {
    uint64_t seed, stream;
} wfi_random;

/* Number `index` of the stream: the first two words of the block whose counter is (index, stream) and whose key is the
 * seed. */
uint64_t wfi_random_u64(wfi_random random, uint64_t index);
double wfi_random_f64(wfi_random random, uint64_t index);        /* uniform in [0, 1), 53 bits */
double wfi_random_normal_f64(wfi_random random, uint64_t index); /* mean 0, deviation 1; Box-Muller */

/* Fill contiguous tensors of float32 or float64, element i from number i. WEFT_ERR_TYPE for other dtypes. */
weft_status wfi_random_uniform(weft_tensor *tensor, wfi_random random, double low, double high);
weft_status wfi_random_normal(weft_tensor *tensor, wfi_random random, double mean, double deviation);
/* The same: `value` with probability p, otherwise 0. For dropout: p = 1 - rate, value = 1 / p. */
weft_status wfi_random_mask(weft_tensor *tensor, wfi_random random, double p, double value);

#endif
