/* SPDX-License-Identifier: Apache-2.0 */
/* strided.c - see strided.h. */
#include "tensor/strided.h"

#include "tensor/tensor.h"

#include <string.h>

static weft_status set_operand(wfi_strided *walk, int operand, const weft_shape *shape, const weft_tensor *tensor)
{
    int missing = shape->ndim - tensor->shape.ndim;
    if (missing < 0)
        return WEFT_ERR_SHAPE;
    weft_device device = weft_tensor_device(tensor);
    if (operand == 0)
        walk->device = device;
    if (!wfi_device_equal(device, walk->device))
        return WEFT_ERR_UNSUPPORTED;
    int64_t size = (int64_t)weft_dtype_size(tensor->dtype);
    for (int d = 0; d < tensor->shape.ndim; d++) {
        bool same = tensor->shape.dims[d] == shape->dims[d + missing];
        if (!same && tensor->shape.dims[d] != 1)
            return WEFT_ERR_SHAPE;
        bool steps = same && tensor->shape.dims[d] != 1 && tensor->numel > 0;
        walk->strides[operand][d + missing] = steps ? tensor->strides[d] * size : 0;
    }
    walk->data[operand] = wfi_tensor_address(tensor);
    return device.kind == WEFT_DEVICE_CPU ? WEFT_OK : wfi_tensor_use(tensor, operand == walk->operands - 1);
}

static bool joins(const wfi_strided *walk, int outer, int inner)
{
    for (int k = 0; k < walk->operands; k++) {
        if (walk->strides[k][outer] != walk->strides[k][inner] * walk->dims[inner])
            return false;
    }
    return true;
}

static bool is_empty(const wfi_strided *walk)
{
    for (int d = 0; d < walk->ndim; d++)
        if (walk->dims[d] == 0)
            return true;
    return false;
}

/* Drops dimensions of size 1 and joins adjacent ones, so that the innermost run is as long as possible. */
static void simplify(wfi_strided *walk)
{
    int kept = 0;
    for (int d = 1; d < walk->ndim; d++) {
        bool drop_outer = walk->dims[kept] == 1;
        bool join = !drop_outer && walk->dims[d] != 1 && joins(walk, kept, d);
        if (walk->dims[d] == 1)
            continue;
        int64_t length = join ? walk->dims[kept] * walk->dims[d] : walk->dims[d];
        if (!drop_outer && !join)
            kept++;
        walk->dims[kept] = length;
        for (int k = 0; k < walk->operands; k++)
            walk->strides[k][kept] = walk->strides[k][d];
    }
    walk->ndim = kept + 1;
}

weft_status wfi_strided_init(wfi_strided *walk, const weft_shape *shape, int operands,
                             const weft_tensor *const *tensors)
{
    memset(walk, 0, sizeof(*walk));
    walk->operands = operands;
    walk->ndim = shape->ndim > 0 ? shape->ndim : 1;
    walk->dims[0] = 1;
    for (int d = 0; d < shape->ndim; d++)
        walk->dims[d] = shape->dims[d];
    for (int k = 0; k < operands; k++) {
        weft_status status = set_operand(walk, k, shape, tensors[k]);
        if (status != WEFT_OK)
            return status;
    }
    if (!is_empty(walk)) /* products of an empty walk's sizes may overflow */
        simplify(walk);
    return WEFT_OK;
}

/* Advances the indices of the outer dimensions, like an odometer. False after the last combination. */
static bool advance(const wfi_strided *walk, int64_t *index, char **at)
{
    for (int d = walk->ndim - 2; d >= 0; d--) {
        index[d]++;
        for (int k = 0; k < walk->operands; k++)
            at[k] += walk->strides[k][d];
        if (index[d] < walk->dims[d])
            return true;
        for (int k = 0; k < walk->operands; k++)
            at[k] -= walk->strides[k][d] * walk->dims[d];
        index[d] = 0;
    }
    return false;
}

bool wfi_strided_walk(const wfi_strided *walk, wfi_strided_row row, void *arg)
{
    int64_t index[WEFT_MAX_DIMS] = {0}, step[WFI_STRIDED_OPERANDS_MAX];
    char *at[WFI_STRIDED_OPERANDS_MAX];
    if (is_empty(walk))
        return true;
    for (int k = 0; k < WFI_STRIDED_OPERANDS_MAX; k++) {
        at[k] = walk->data[k];
        step[k] = walk->strides[k][walk->ndim - 1];
    }
    do {
        if (!row(at, step, walk->dims[walk->ndim - 1], arg))
            return false;
    } while (advance(walk, index, at));
    return true;
}
