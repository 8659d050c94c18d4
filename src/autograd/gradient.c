/* SPDX-License-Identifier: Apache-2.0 */
/* gradient.c - adds up the gradient of one tensor. */
#include "autograd/gradient.h"

#include "tensor/copy.h"
#include "tensor/cpu/cpu.h"
#include "tensor/cpu/embedding.h"

void wfi_gradient_clear(weft_gradient *sum)
{
    weft_tensor_unref(sum->rows);
    weft_tensor_unref(sum->values);
    *sum = (weft_gradient){0};
}

static void replace_values(weft_gradient *sum, weft_tensor *values)
{
    weft_tensor_unref(sum->values);
    sum->values = values;
}

weft_status wfi_gradient_make_own(weft_gradient *sum)
{
    if (!sum->values || wfi_tensor_is_alone(sum->values))
        return WEFT_OK;
    weft_tensor *copy = wfi_tensor_clone(sum->values, NULL);
    if (!copy)
        return WEFT_ERR_MEMORY;
    replace_values(sum, copy);
    return WEFT_OK;
}

static weft_status add_dense(weft_gradient *sum, const weft_tensor *share)
{
    if (wfi_tensor_is_alone(sum->values))
        return wfi_add_into(share, sum->values);
    weft_tensor *total = wfi_tensor_empty_like(share, share->shape, share->dtype);
    if (!total)
        return WEFT_ERR_MEMORY;
    weft_status status = wfi_binary(WFI_ADD, sum->values, share, total);
    replace_values(sum, total);
    return status;
}

weft_status wfi_gradient_add(weft_gradient *sum, weft_tensor *share)
{
    weft_status status = wfi_gradient_make_dense(sum, &share->shape);
    if (status == WEFT_OK && !sum->values) {
        sum->values = share;
        return WEFT_OK;
    }
    if (status == WEFT_OK)
        status = add_dense(sum, share);
    weft_tensor_unref(share);
    return status;
}

/* The rows of `a`, then those of `b`, both borrowed. NULL: no memory. */
static weft_tensor *append(const weft_tensor *a, const weft_tensor *b)
{
    weft_shape shape = a->shape;
    shape.dims[0] += b->shape.dims[0];
    weft_tensor *joined = wfi_tensor_empty_like(a, shape, a->dtype);
    weft_tensor *upper = wfi_tensor_narrow(joined, 0, 0, a->shape.dims[0], NULL);
    weft_tensor *lower = wfi_tensor_narrow(joined, 0, a->shape.dims[0], b->shape.dims[0], NULL);
    bool done = upper && lower && wfi_copy(a, upper) == WEFT_OK && wfi_copy(b, lower) == WEFT_OK;
    weft_tensor_unref(upper);
    weft_tensor_unref(lower);
    if (done)
        return joined;
    weft_tensor_unref(joined);
    return NULL;
}

static weft_status append_rows(weft_gradient *sum, weft_gradient *more)
{
    weft_gradient joined = {append(sum->values, more->values), append(sum->rows, more->rows)};
    if (!joined.values || !joined.rows) {
        wfi_gradient_clear(&joined);
        return WEFT_ERR_MEMORY;
    }
    wfi_gradient_clear(sum);
    *sum = joined;
    return WEFT_OK;
}

weft_status wfi_gradient_add_rows(weft_gradient *sum, weft_tensor *rows, weft_tensor *values)
{
    weft_gradient more = {values, rows};
    return wfi_gradient_join(sum, &more);
}

weft_status wfi_gradient_join(weft_gradient *sum, weft_gradient *more)
{
    weft_status status = WEFT_OK;
    if (!sum->values) {
        *sum = *more;
        *more = (weft_gradient){0};
        return WEFT_OK;
    }
    if (!more->rows) {
        weft_tensor *share = more->values;
        more->values = NULL;
        return !share ? WEFT_OK : wfi_gradient_add(sum, share);
    }
    if (sum->rows) {
        status = append_rows(sum, more);
    } else {
        status = wfi_gradient_make_own(sum);
        if (status == WEFT_OK)
            status = wfi_rows_add(more->values, more->rows, sum->values);
    }
    wfi_gradient_clear(more);
    return status;
}

weft_status wfi_gradient_make_dense(weft_gradient *sum, const weft_shape *shape)
{
    if (!sum->rows)
        return WEFT_OK;
    weft_gradient dense = {.values = wfi_tensor_full_like(sum->values, *shape, sum->values->dtype, 0)};
    weft_status status = !dense.values ? WEFT_ERR_MEMORY : wfi_rows_add(sum->values, sum->rows, dense.values);
    wfi_gradient_clear(sum);
    *sum = dense;
    return status;
}
