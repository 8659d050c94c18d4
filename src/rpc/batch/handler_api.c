/* SPDX-License-Identifier: Apache-2.0 */
/* batch/handler_api.c - the handler's functions of a batch, and the statistics of batched functions. */
#include "rpc/batch/batch.h"

#include "base/error.h"
#include "base/utf8.h"
#include "base/text/sized.h"
#include "tensor/tensor.h"

size_t weft_batch_count(const weft_batch *batch)
{
    WFI_CHECK_HANDLE(batch);
    return batch ? batch->count : 0;
}

weft_tensor *weft_batch_tensor(const weft_batch *batch, size_t index)
{
    WFI_CHECK_HANDLE(batch);
    const weft_type *takes = batch ? batch->batcher->function->takes : NULL;
    size_t before = 0;
    for (size_t i = 0; takes && i < WEFT_MAX_SIGNATURE && takes[i] != WEFT_TYPE_NONE; i++) {
        if (i == index)
            return takes[i] == WEFT_TYPE_TENSOR ? batch->seen[before] : NULL;
        before += takes[i] == WEFT_TYPE_TENSOR;
    }
    return NULL;
}

weft_call *weft_batch_call(const weft_batch *batch, size_t row)
{
    WFI_CHECK_HANDLE(batch);
    return batch && row < batch->count ? batch->calls[row] : NULL;
}

weft_agent *weft_batch_agent(const weft_batch *batch)
{
    WFI_CHECK_HANDLE(batch);
    return batch ? batch->agent : NULL;
}

void weft_batch_fail(weft_batch *batch, weft_status code, const char *format, ...)
{
    WFI_CHECK_HANDLE(batch);
    if (!batch || batch->error)
        return;
    wfi_error_detail detail = {.code = WEFT_ERR_REMOTE,
                               .remote_code = code < 0 ? code : WEFT_ERR_INVALID,
                               .function = batch->batcher->function->name,
                               .worker = wfi_agent_rank(batch->agent)};
    va_list args;
    va_start(args, format);
    batch->error = wfi_error_create_v(&detail, format, args);
    va_end(args);
}

/* Describes the fault of `rows` as result `index`. NULL: it has none. */
static const char *problem_with(const weft_batch *batch, size_t index, const weft_tensor *rows)
{
    const weft_type *gives = batch->batcher->function->gives;
    size_t count = 0;
    while (gives[count] != WEFT_TYPE_NONE)
        count++;
    weft_type type = index < count ? gives[index] : WEFT_TYPE_NONE;
    bool scalar = type == WEFT_TYPE_I64 || type == WEFT_TYPE_F64 || type == WEFT_TYPE_BOOL;
    if (!scalar && type != WEFT_TYPE_TENSOR && type != WEFT_TYPE_ANY)
        return "is none that `gives` says rows can be: TENSOR, ANY, I64, F64, BOOL";
    if (!rows)
        return "is NULL";
    if (weft_tensor_ndim(rows) < 1 || weft_tensor_size(rows, 0) != (int64_t)batch->count)
        return "has not a row for each call";
    if (scalar && weft_tensor_numel(rows) != (int64_t)batch->count)
        return "has rows of more than one element where `gives` says a scalar";
    wfi_dtype_class class = wfi_dtype_class_of(rows->dtype);
    if ((type == WEFT_TYPE_I64 && class != WFI_CLASS_INTEGER) || (type == WEFT_TYPE_F64 && class != WFI_CLASS_FLOAT))
        return "has a dtype that is not what `gives` says";
    return NULL;
}

void weft_batch_give(weft_batch *batch, size_t index, weft_tensor *rows)
{
    WFI_CHECK_HANDLE(batch, rows);
    if (!batch)
        return;
    const char *problem = problem_with(batch, index, rows);
    if (!problem) {
        weft_tensor *before = batch->given[index];
        batch->given[index] = weft_tensor_ref(rows);
        weft_tensor_unref(before);
        return;
    }
    weft_error *kept = rows || !batch->slot.error ? NULL : batch->slot.error(batch->slot.value);
    weft_error_unref(kept);
    if (kept)
        return; /* the tape has recorded why it is NULL; its error is used at the end */
    char text[WFI_TENSOR_TEXT] = "";
    if (rows)
        wfi_value_tensor_type_text(text, rows->dtype, rows->shape);
    weft_batch_fail(batch, rows ? WEFT_ERR_SHAPE : WEFT_ERR_INVALID, "result %zu of a batch of %zu%s%s %s", index,
                    batch->count, rows ? ", " : "", text, problem);
}

weft_batch *weft_batch_defer(weft_batch *batch)
{
    WFI_CHECK_HANDLE(batch);
    if (batch)
        batch->deferred = true;
    return batch;
}

weft_status weft_batch_stats_read_sized(const weft_agent *const_agent, const char *function, weft_batch_stats *out,
                                        size_t size)
{
    WFI_CHECK_HANDLE(const_agent);
    weft_agent *agent = (weft_agent *)const_agent; /* changes only its locks */
    weft_batch_stats stats = {0};
    if (out)
        wfi_sized_give(out, size, &stats, sizeof(stats));
    if (!agent || !function || !out)
        return wfi_refuse_null("weft_batch_stats_read", !agent     ? "the agent"
                                                        : function ? "out"
                                                                   : "the function's name");
    if (agent->forked)
        return WEFT_ERR_STATE;
    const wfi_batcher *batcher = wfi_batcher_of(wfi_function_find(agent, function));
    if (!batcher)
        return wfi_refuse(WEFT_ERR_NOT_FOUND,
                          "weft_batch_stats_read: \"%.*s\" is no registered function with run_batch",
                          wfi_utf8_fit(function, 140), function);
    wfi_net_lock(agent->net);
    stats = batcher->stats;
    stats.waiting = batcher->queued;
    stats.running = batcher->running;
    stats.mean_size = stats.batches ? (double)stats.calls / (double)stats.batches : 0;
    stats.size_max = batcher->sizes.max;
    wfi_net_unlock(agent->net);
    wfi_sized_give(out, size, &stats, sizeof(stats));
    return WEFT_OK;
}
