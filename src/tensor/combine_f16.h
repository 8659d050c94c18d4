/* SPDX-License-Identifier: Apache-2.0 */
/*
 * combine_f16.h - the kernels of combine.h for float16. `out` may be `left` or `right`, otherwise it overlaps
 * neither.
 */
#ifndef WFI_COMBINE_F16_H
#define WFI_COMBINE_F16_H

#include <stddef.h>

void wfi_f16_sum(void *out, const void *left, const void *right, size_t count);
void wfi_f16_min(void *out, const void *left, const void *right, size_t count);
void wfi_f16_max(void *out, const void *left, const void *right, size_t count);
void wfi_f16_prod(void *out, const void *left, const void *right, size_t count);
void wfi_f16_divide(void *data, size_t count, size_t divisor);

#endif
