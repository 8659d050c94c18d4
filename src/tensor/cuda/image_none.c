/* SPDX-License-Identifier: Apache-2.0 */
/* image_none.c - the image of a build without nvcc. The emulated GPU of the tests takes any image. */
#include "tensor/cuda/image.h"

const char wfi_cuda_image[] = "weft was built without kernels for GPUs";
const bool wfi_cuda_image_built = false;
