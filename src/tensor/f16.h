/* SPDX-License-Identifier: Apache-2.0 */
/* f16.h - runs of float16 to floats and back, by the processor's own instructions where it has them; the same numbers as half.h gives. */
#ifndef WFI_F16_H
#define WFI_F16_H

#include <stddef.h>
#include <stdint.h>

/* out[i] = in[i], exactly. */
void wfi_f16_widen(float *out, const uint16_t *in, size_t count);
/* out[i] = in[i], rounded to nearest, ties to even; of the NaN 0x7fc00000 it makes 0x7e00. */
void wfi_f16_narrow(uint16_t *out, const float *in, size_t count);

#endif
