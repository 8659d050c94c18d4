/* SPDX-License-Identifier: Apache-2.0 */
/* public.c - the constructors of weft/tensor.h: they return a status, and give the program the reason of a failure. */
#include "tensor/tensor.h"

#include "base/text/refuse.h"

weft_status weft_tensor_empty(weft_shape shape, weft_dtype dtype, weft_tensor **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_empty(shape, dtype, &why);
    return WFI_GIVE("weft_tensor_empty", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_zeros(weft_shape shape, weft_dtype dtype, weft_tensor **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_zeros(shape, dtype, &why);
    return WFI_GIVE("weft_tensor_zeros", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_full(weft_shape shape, weft_dtype dtype, double value, weft_tensor **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_full(shape, dtype, value, &why);
    return WFI_GIVE("weft_tensor_full", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_arange(int64_t count, weft_dtype dtype, weft_tensor **out, weft_error **error)
{
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_arange(count, dtype, &why);
    return WFI_GIVE("weft_tensor_arange", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_copy_of(weft_shape shape, weft_dtype dtype, const void *data, weft_tensor **out,
                                weft_error **error)
{
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_copy_of(shape, dtype, data, &why);
    return WFI_GIVE("weft_tensor_copy_of", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_empty_on(weft_device device, weft_shape shape, weft_dtype dtype, weft_tensor **out,
                                 weft_error **error)
{
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_empty_on(device, shape, dtype, &why);
    return WFI_GIVE("weft_tensor_empty_on", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_empty_pinned(weft_device device, weft_shape shape, weft_dtype dtype, weft_tensor **out,
                                     weft_error **error)
{
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_empty_pinned(device, shape, dtype, &why);
    return WFI_GIVE("weft_tensor_empty_pinned", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_to_device(weft_tensor *tensor, weft_device device, weft_tensor **out, weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_to_device(tensor, device, &why);
    return WFI_GIVE("weft_tensor_to_device", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_reshape(weft_tensor *tensor, weft_shape shape, weft_tensor **out, weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_reshape(tensor, shape, &why);
    return WFI_GIVE("weft_tensor_reshape", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_transpose(weft_tensor *tensor, int dim0, int dim1, weft_tensor **out, weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_transpose(tensor, dim0, dim1, &why);
    return WFI_GIVE("weft_tensor_transpose", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_narrow(weft_tensor *tensor, int dim, int64_t start, int64_t length, weft_tensor **out,
                               weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_narrow(tensor, dim, start, length, &why);
    return WFI_GIVE("weft_tensor_narrow", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_select(weft_tensor *tensor, int dim, int64_t index, weft_tensor **out, weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_select(tensor, dim, index, &why);
    return WFI_GIVE("weft_tensor_select", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_contiguous(weft_tensor *tensor, weft_tensor **out, weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_contiguous(tensor, &why);
    return WFI_GIVE("weft_tensor_contiguous", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_clone(const weft_tensor *tensor, weft_tensor **out, weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_clone(tensor, &why);
    return WFI_GIVE("weft_tensor_clone", made, why, weft_tensor_unref, out, error);
}

weft_status weft_tensor_to(weft_tensor *tensor, weft_dtype dtype, weft_tensor **out, weft_error **error)
{
    WFI_CHECK_HANDLE(tensor);
    weft_error *why = NULL;
    weft_tensor *made = wfi_tensor_to(tensor, dtype, &why);
    return WFI_GIVE("weft_tensor_to", made, why, weft_tensor_unref, out, error);
}
