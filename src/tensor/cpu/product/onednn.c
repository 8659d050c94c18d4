/* SPDX-License-Identifier: Apache-2.0 */
/* onednn.c - what oneDNN 2 and 3 do differently. */
#include "base/alloc.h"
#include "tensor/cpu/product/onednn.h"

#include <stdlib.h>

#if DNNL_VERSION_MAJOR >= 3

dnnl_status_t wfi_layout_create(int ndim, const dnnl_dims_t dims, dnnl_format_tag_t tag, wfi_layout **out)
{
    *out = NULL;
    return dnnl_memory_desc_create_with_tag(out, ndim, dims, dnnl_f32, tag);
}

dnnl_status_t wfi_layout_clone(const wfi_layout *layout, wfi_layout **out)
{
    *out = NULL;
    return dnnl_memory_desc_clone(out, layout);
}

void wfi_layout_destroy(wfi_layout *layout)
{
    if (layout)
        dnnl_memory_desc_destroy(layout);
}

dnnl_status_t wfi_conv_primitive_desc(dnnl_engine_t engine, wfi_conv_kind kind, const wfi_conv_descs *d,
                                      const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                                      dnnl_primitive_desc_t *out)
{
    dnnl_alg_kind_t alg = dnnl_convolution_direct;
    if (kind == WFI_CONV_BACKWARD_DATA)
        return dnnl_convolution_backward_data_primitive_desc_create(out, engine, alg, d->x, d->weight, d->y, d->stride,
                                                                    d->dilation, d->padding, d->padding, hint, attr);
    if (kind == WFI_CONV_BACKWARD_WEIGHT)
        return dnnl_convolution_backward_weights_primitive_desc_create(out, engine, alg, d->x, d->weight, d->bias, d->y,
                                                                       d->stride, d->dilation, d->padding, d->padding,
                                                                       hint, attr);
    return dnnl_convolution_forward_primitive_desc_create(out, engine, dnnl_forward_training, alg, d->x, d->weight,
                                                          d->bias, d->y, d->stride, d->dilation, d->padding, d->padding,
                                                          attr);
}

#else

dnnl_status_t wfi_layout_create(int ndim, const dnnl_dims_t dims, dnnl_format_tag_t tag, wfi_layout **out)
{
    wfi_layout *layout = wfi_calloc(1, sizeof(*layout));
    *out = NULL;
    if (!layout)
        return dnnl_out_of_memory;
    dnnl_status_t status = dnnl_memory_desc_init_by_tag(layout, ndim, dims, dnnl_f32, tag);
    if (status != dnnl_success) {
        free(layout);
        return status;
    }
    *out = layout;
    return dnnl_success;
}

/* Copies memory of oneDNN, which another thread may have filled under locks that ThreadSanitizer does not see:
 * tools/sanitizers/tsan.supp names this function. */
__attribute__((noinline)) dnnl_status_t wfi_layout_clone(const wfi_layout *layout, wfi_layout **out)
{
    *out = wfi_calloc(1, sizeof(**out));
    if (!*out)
        return dnnl_out_of_memory;
    **out = *layout;
    return dnnl_success;
}

void wfi_layout_destroy(wfi_layout *layout)
{
    free(layout);
}

static dnnl_status_t describe_pass(wfi_conv_kind kind, const wfi_conv_descs *d, dnnl_convolution_desc_t *op)
{
    dnnl_alg_kind_t alg = dnnl_convolution_direct;
    if (kind == WFI_CONV_BACKWARD_DATA)
        return dnnl_dilated_convolution_backward_data_desc_init(op, alg, d->x, d->weight, d->y, d->stride, d->dilation,
                                                                d->padding, d->padding);
    if (kind == WFI_CONV_BACKWARD_WEIGHT)
        return dnnl_dilated_convolution_backward_weights_desc_init(op, alg, d->x, d->weight, d->bias, d->y, d->stride,
                                                                   d->dilation, d->padding, d->padding);
    return dnnl_dilated_convolution_forward_desc_init(op, dnnl_forward_training, alg, d->x, d->weight, d->bias, d->y,
                                                      d->stride, d->dilation, d->padding, d->padding);
}

dnnl_status_t wfi_conv_primitive_desc(dnnl_engine_t engine, wfi_conv_kind kind, const wfi_conv_descs *d,
                                      const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                                      dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t op;
    dnnl_status_t status = describe_pass(kind, d, &op);
    return status == dnnl_success ? dnnl_primitive_desc_create(out, &op, attr, engine, hint) : status;
}

#endif
