/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/stream.h - streams of GPUs: queues of work that run beside each other.
 *
 * A program needs no streams of its own: weft queues everything on one stream of the device, in the order of the
 * calls. That stream is in order with CUDA's legacy default stream, as each blocking stream is. Use streams if tapes
 * on several threads shall share a GPU, or to queue weft's work on a stream of your own CUDA code. A tape takes a
 * stream by weft_tape_options.stream:
 *
 *     weft_tape *open_beside(weft_device gpu, weft_error **error)
 *     {
 *         weft_stream *mine = NULL;
 *         weft_status status = weft_stream_create(gpu, &mine, error);
 *         weft_tape *t = status ? NULL : weft_tape_open(&(weft_tape_options){.device = gpu, .stream = mine});
 *         weft_stream_unref(mine); // the tape has a reference
 *         return t;
 *     }
 *
 * ORDER. weft knows for each tensor on which stream it was written and read. If another stream uses the tensor later,
 * that stream waits for an event; the host does not wait. So the results are the same as with a single stream.
 * Copies to the host wait only for the stream that wrote the tensor.
 *
 * YOUR OWN CUDA CODE. weft does not see what your code queues. Your work on a wrapped stream is in order with the
 * work of tapes on that stream. Otherwise wait (weft_stream_wait) before your code uses a tensor on another stream.
 *
 * THREADS. Any thread may call any of these functions.
 */
#ifndef WEFT_STREAM_H
#define WEFT_STREAM_H

#include <weft/tensor.h>

WEFT_BEGIN_C

/* Creates a stream on a CUDA device. The caller gets one reference. Errors, with the reason in *error if `error` is
 * not NULL: no such device (as weft_device_check), the CPU (WEFT_ERR_INVALID), or more than 55 streams of the device
 * at once (WEFT_ERR_STATE). If calls carry tensors of the device, weft itself uses two of the 55. */
WEFT_API WEFT_NODISCARD weft_status weft_stream_create(weft_device device, weft_stream **out, weft_error **error);
/* Makes a weft_stream over a stream of the program (a CUstream or cudaStream_t of this device's primary context;
 * NULL is the legacy default stream). The program still owns its stream: the stream must exist until the last
 * reference is dropped, and weft does not destroy it. WEFT_ERR_INVALID: the stream has another context, or is the
 * per-thread default stream. */
WEFT_API WEFT_NODISCARD weft_status weft_stream_wrap(weft_device device, void *cuda_stream, weft_stream **out,
                                                     weft_error **error);
WEFT_API weft_stream *weft_stream_ref(weft_stream *stream);
/* The last weft_stream_unref waits until the stream's work is done. */
WEFT_API void weft_stream_unref(weft_stream *stream);

/* Waits until all work that is queued on the stream is done. WEFT_ERR_SYSTEM: the GPU has failed. */
WEFT_API WEFT_NODISCARD weft_status weft_stream_wait(weft_stream *stream);
/* The driver's handle of the stream (CUstream), for own CUDA code. Borrowed. */
WEFT_API void *weft_stream_cuda(const weft_stream *stream);

WEFT_END_C
#endif
