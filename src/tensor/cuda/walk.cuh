/* SPDX-License-Identifier: Apache-2.0 */
/* walk.cuh - loops over the elements of tensors, over any strides or over contiguous memory. */
#ifndef WFI_WALK_CUH
#define WFI_WALK_CUH

#include "tensor/cuda/kernel.cuh"

namespace wfi
{

/* body(a, b, c): addresses of the operands of one element; those that the walk does not have are null. */
template <typename Body> __device__ inline void over_walk(const wfi_walk_args &args, Body body)
{
    const wfi_strided &walk = args.walk;
    int64_t step = step_of_all();
    if (walk.ndim == 1) { /* most: contiguous, or one operand is a scalar */
        for (int64_t i = first_of_all(); i < args.count; i += step)
            body(walk.data[0] + i * walk.strides[0][0], walk.data[1] + i * walk.strides[1][0],
                 walk.data[2] + i * walk.strides[2][0]);
        return;
    }
    for (int64_t i = first_of_all(); i < args.count; i += step) {
        char *at[WFI_STRIDED_OPERANDS_MAX] = {walk.data[0], walk.data[1], walk.data[2]};
        int64_t rest = i;
        for (int d = walk.ndim - 1; d >= 0; d--) {
            int64_t index = rest % walk.dims[d];
            rest /= walk.dims[d];
            for (int k = 0; k < WFI_STRIDED_OPERANDS_MAX; k++)
                at[k] += index * walk.strides[k][d];
        }
        body(at[0], at[1], at[2]);
    }
}

} // namespace wfi
#endif
