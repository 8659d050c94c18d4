/* SPDX-License-Identifier: Apache-2.0 */
/*
 * calls.c - the operations of weft/group.h: each is one request (request.h), which is started, or started and waited
 * for.
 */
#include "coll/request.h"

static weft_status start(weft_group *group, wfi_group_request request, weft_future **out)
{
    return wfi_request_start(group, &request, out);
}

static weft_status run(weft_group *group, wfi_group_request request)
{
    return wfi_request_wait(group, &request);
}

static wfi_group_request barrier(int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_barrier", .kind = WFI_BARRIER, .timeout_ms = timeout_ms};
}

weft_status weft_group_barrier(weft_group *group, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group);
    return run(group, barrier(timeout_ms));
}

weft_status weft_group_barrier_async(weft_group *group, int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(group);
    return start(group, barrier(timeout_ms), out);
}

static wfi_group_request allreduce(weft_tensor *tensor, weft_op how, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_allreduce",
                               .kind = WFI_ALLREDUCE,
                               .input = tensor,
                               .output = tensor,
                               .reduces = true,
                               .how = how,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_allreduce(weft_group *group, weft_tensor *tensor, weft_op how, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, tensor);
    return run(group, allreduce(tensor, how, timeout_ms));
}

weft_status weft_group_allreduce_async(weft_group *group, weft_tensor *tensor, weft_op how, int64_t timeout_ms,
                                       weft_future **out)
{
    WFI_CHECK_HANDLE(group, tensor);
    return start(group, allreduce(tensor, how, timeout_ms), out);
}

static wfi_group_request reduce(weft_tensor *tensor, weft_op how, size_t root, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_reduce",
                               .kind = WFI_REDUCE,
                               .input = tensor,
                               .output = tensor,
                               .reduces = true,
                               .how = how,
                               .root = root,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_reduce(weft_group *group, weft_tensor *tensor, weft_op how, size_t root, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, tensor);
    return run(group, reduce(tensor, how, root, timeout_ms));
}

weft_status weft_group_reduce_async(weft_group *group, weft_tensor *tensor, weft_op how, size_t root,
                                    int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(group, tensor);
    return start(group, reduce(tensor, how, root, timeout_ms), out);
}

static wfi_group_request broadcast(weft_tensor *tensor, size_t root, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_broadcast",
                               .kind = WFI_BROADCAST,
                               .input = tensor,
                               .output = tensor,
                               .root = root,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_broadcast(weft_group *group, weft_tensor *tensor, size_t root, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, tensor);
    return run(group, broadcast(tensor, root, timeout_ms));
}

weft_status weft_group_broadcast_async(weft_group *group, weft_tensor *tensor, size_t root, int64_t timeout_ms,
                                       weft_future **out)
{
    WFI_CHECK_HANDLE(group, tensor);
    return start(group, broadcast(tensor, root, timeout_ms), out);
}

static wfi_group_request allgather(const weft_tensor *input, weft_tensor *output, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_allgather",
                               .kind = WFI_ALLGATHER,
                               .input = input,
                               .output = output,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_allgather(weft_group *group, const weft_tensor *input, weft_tensor *output, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, input, output);
    return run(group, allgather(input, output, timeout_ms));
}

weft_status weft_group_allgather_async(weft_group *group, const weft_tensor *input, weft_tensor *output,
                                       int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(group, input, output);
    return start(group, allgather(input, output, timeout_ms), out);
}

static wfi_group_request reduce_scatter(const weft_tensor *input, weft_tensor *output, weft_op how, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_reduce_scatter",
                               .kind = WFI_REDUCE_SCATTER,
                               .input = input,
                               .output = output,
                               .reduces = true,
                               .how = how,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_reduce_scatter(weft_group *group, const weft_tensor *input, weft_tensor *output, weft_op how,
                                      int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, input, output);
    return run(group, reduce_scatter(input, output, how, timeout_ms));
}

weft_status weft_group_reduce_scatter_async(weft_group *group, const weft_tensor *input, weft_tensor *output,
                                            weft_op how, int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(group, input, output);
    return start(group, reduce_scatter(input, output, how, timeout_ms), out);
}

static wfi_group_request gather(const weft_tensor *input, weft_tensor *output, size_t root, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_gather",
                               .kind = WFI_GATHER,
                               .input = input,
                               .output = output,
                               .root = root,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_gather(weft_group *group, const weft_tensor *input, weft_tensor *output, size_t root,
                              int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, input, output);
    return run(group, gather(input, output, root, timeout_ms));
}

weft_status weft_group_gather_async(weft_group *group, const weft_tensor *input, weft_tensor *output, size_t root,
                                    int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(group, input, output);
    return start(group, gather(input, output, root, timeout_ms), out);
}

static wfi_group_request scatter(const weft_tensor *input, weft_tensor *output, size_t root, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_scatter",
                               .kind = WFI_SCATTER,
                               .input = input,
                               .output = output,
                               .root = root,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_scatter(weft_group *group, const weft_tensor *input, weft_tensor *output, size_t root,
                               int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, input, output);
    return run(group, scatter(input, output, root, timeout_ms));
}

weft_status weft_group_scatter_async(weft_group *group, const weft_tensor *input, weft_tensor *output, size_t root,
                                     int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(group, input, output);
    return start(group, scatter(input, output, root, timeout_ms), out);
}

static wfi_group_request all_to_all(const weft_tensor *input, weft_tensor *output, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_all_to_all",
                               .kind = WFI_ALL_TO_ALL,
                               .input = input,
                               .output = output,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_all_to_all(weft_group *group, const weft_tensor *input, weft_tensor *output, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, input, output);
    return run(group, all_to_all(input, output, timeout_ms));
}

weft_status weft_group_all_to_all_async(weft_group *group, const weft_tensor *input, weft_tensor *output,
                                        int64_t timeout_ms, weft_future **out)
{
    WFI_CHECK_HANDLE(group, input, output);
    return start(group, all_to_all(input, output, timeout_ms), out);
}

static wfi_group_request send_to(const weft_tensor *tensor, size_t to, int64_t timeout_ms)
{
    return (wfi_group_request){.name = "weft_group_send",
                               .kind = WFI_SENDRECV,
                               .input = tensor,
                               .root = to,
                               .sends = true,
                               .timeout_ms = timeout_ms};
}

weft_status weft_group_send(weft_group *group, const weft_tensor *tensor, size_t to, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, tensor);
    return run(group, send_to(tensor, to, timeout_ms));
}

weft_status weft_group_send_async(weft_group *group, const weft_tensor *tensor, size_t to, int64_t timeout_ms,
                                  weft_future **out)
{
    WFI_CHECK_HANDLE(group, tensor);
    return start(group, send_to(tensor, to, timeout_ms), out);
}

static wfi_group_request recv_from(weft_tensor *tensor, size_t from, int64_t timeout_ms)
{
    return (wfi_group_request){
        .name = "weft_group_recv", .kind = WFI_SENDRECV, .output = tensor, .root = from, .timeout_ms = timeout_ms};
}

weft_status weft_group_recv(weft_group *group, weft_tensor *tensor, size_t from, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(group, tensor);
    return run(group, recv_from(tensor, from, timeout_ms));
}

weft_status weft_group_recv_async(weft_group *group, weft_tensor *tensor, size_t from, int64_t timeout_ms,
                                  weft_future **out)
{
    WFI_CHECK_HANDLE(group, tensor);
    return start(group, recv_from(tensor, from, timeout_ms), out);
}
