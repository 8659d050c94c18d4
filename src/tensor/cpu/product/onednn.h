/* SPDX-License-Identifier: Apache-2.0 */
/*
 * onednn.h - oneDNN's C API, for versions 2 and 3.
 *
 * Version 3 made memory descriptors opaque and creates a primitive's descriptor in one step. Functions that differ
 * between the two are declared here and implemented in onednn.c; all others are called by oneDNN's own names, which
 * take a `wfi_layout *` in either version.
 */
#ifndef WFI_TENSOR_CPU_ONEDNN_H
#define WFI_TENSOR_CPU_ONEDNN_H

#include "tensor/cpu/product/conv.h"

#include <oneapi/dnnl/dnnl.h>

/* Sizes and order in memory of one array: oneDNN's memory descriptor. */
#if DNNL_VERSION_MAJOR >= 3
typedef struct dnnl_memory_desc wfi_layout;
#else
typedef dnnl_memory_desc_t wfi_layout;
#endif

/* A layout of 32-bit floats. The caller destroys what it creates. On failure *out is NULL. */
dnnl_status_t wfi_layout_create(int ndim, const dnnl_dims_t dims, dnnl_format_tag_t tag, wfi_layout **out);
dnnl_status_t wfi_layout_clone(const wfi_layout *layout, wfi_layout **out);
void wfi_layout_destroy(wfi_layout *layout); /* NULL is a no-op */

/* The parts of a convolution; its layouts belong to the caller. `bias` is NULL if there is none. */
typedef struct wfi_conv_descs {
    wfi_layout *x, *weight, *y, *bias;
    dnnl_dims_t stride, dilation, padding;
} wfi_conv_descs;

/* The primitive of one kind. The backward ones take the forward one's descriptor as `hint`; forward: NULL. */
dnnl_status_t wfi_conv_primitive_desc(dnnl_engine_t engine, wfi_conv_kind kind, const wfi_conv_descs *d,
                                      const_dnnl_primitive_attr_t attr, const_dnnl_primitive_desc_t hint,
                                      dnnl_primitive_desc_t *out);

#endif
