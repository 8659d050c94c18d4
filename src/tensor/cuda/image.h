/* SPDX-License-Identifier: Apache-2.0 */
/* image.h - the compiled kernels inside the library: images.S of the build folder, or image_none.c. */
#ifndef WFI_CUDA_IMAGE_H
#define WFI_CUDA_IMAGE_H

#include <stdbool.h>

extern const void *const wfi_cuda_images[]; /* one for each .cu file; the last is NULL */
extern const bool wfi_cuda_images_built;    /* false: the only image is a text, which a driver rejects */

#endif
