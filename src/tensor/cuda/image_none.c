/* SPDX-License-Identifier: Apache-2.0 */
/* image_none.c - the table of kernels of a build without nvcc. The emulated GPU of the tests takes any image. */
#include "tensor/cuda/image.h"

#include <stddef.h>

const void *const wfi_cuda_images[] = {"weft was built without kernels for GPUs", NULL};
const bool wfi_cuda_images_built = false;
