/* SPDX-License-Identifier: Apache-2.0 */
/* stream.c - the public functions of streams (weft/stream.h). */
#include "mem/stream.h"

#include "base/text/refuse.h"
#include "tensor/tensor.h"

static weft_status check(weft_device device, weft_error **error)
{
    if (device.kind == WEFT_DEVICE_CPU)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "a stream of the CPU: only CUDA devices have streams");
    weft_error *why = NULL;
    weft_status status = weft_device_check(device, &why);
    wfi_refuse_with(error, why);
    return status;
}

static weft_status give(weft_device device, weft_status status, weft_stream *stream, weft_stream **out,
                        weft_error **error)
{
    if (status == WEFT_OK)
        *out = stream;
    else if (status == WEFT_ERR_STATE)
        (void)wfi_refuse_to(error, status, "cuda:%d has %d streams already: drop some first", device.index,
                            WFI_STREAMS_MOST - 1);
    else if (status == WEFT_ERR_INVALID)
        (void)wfi_refuse_to(error, status,
                            "the stream is not one of cuda:%d's primary context, or is the per-thread default stream, "
                            "which is another stream on each thread",
                            device.index);
    else
        (void)wfi_refuse_to(error, status, "no stream on cuda:%d: %s", device.index, weft_status_text(status));
    return status;
}

weft_status weft_stream_create(weft_device device, weft_stream **out, weft_error **error)
{
    weft_stream *stream = NULL;
    weft_status status = out ? check(device, error) : wfi_refuse_null_to(error, "weft_stream_create", "out");
    if (status)
        return status;
    status = wfi_stream_create(device.index, &stream);
    return give(device, status, stream, out, error);
}

weft_status weft_stream_wrap(weft_device device, void *cuda_stream, weft_stream **out, weft_error **error)
{
    weft_stream *stream = NULL;
    weft_status status = out ? check(device, error) : wfi_refuse_null_to(error, "weft_stream_wrap", "out");
    if (status)
        return status;
    status = wfi_stream_wrap(device.index, cuda_stream, &stream);
    return give(device, status, stream, out, error);
}

weft_stream *weft_stream_ref(weft_stream *stream)
{
    WFI_CHECK_HANDLE(stream);
    if (stream)
        atomic_fetch_add_explicit(&stream->refs, 1, memory_order_relaxed);
    return stream;
}

void weft_stream_unref(weft_stream *stream)
{
    WFI_CHECK_HANDLE(stream);
    wfi_stream_unref(stream);
}

weft_status weft_stream_wait(weft_stream *stream)
{
    WFI_CHECK_HANDLE(stream);
    return !stream ? wfi_refuse_null("weft_stream_wait", "the stream") : wfi_stream_wait(stream);
}

void *weft_stream_cuda(const weft_stream *stream)
{
    WFI_CHECK_HANDLE(stream);
    return !stream ? NULL : stream->driver;
}
