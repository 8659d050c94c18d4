/* SPDX-License-Identifier: Apache-2.0 */
/* image.h - the compiled kernels inside the library: written by cmake/WeftCuda.cmake, or image_none.c. */
#ifndef WFI_CUDA_IMAGE_H
#define WFI_CUDA_IMAGE_H

#include <stdbool.h>

extern const char wfi_cuda_image[];     /* a fatbin of all .cu files */
extern const bool wfi_cuda_image_built; /* false: the image is a text, which a driver rejects */

#endif
