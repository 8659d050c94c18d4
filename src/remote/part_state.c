/* SPDX-License-Identifier: Apache-2.0 */
/* part_state.c - the state of the part of a distributed optimizer, sent and received in pages. */
#include "base/alloc.h"
#include "base/codec.h"
#include "base/error.h"
#include "remote/part.h"
#include "remote/remote.h"
#include "tensor/check.h"

#include <stdlib.h>

#define PAGE_BYTES ((int64_t)64 << 20) /* of tensors in an answer, unless a single one has more */

void wfi_remote_part_drop(void *object)
{
    wfi_remote_part *p = object;
    if (p->incoming)
        wfi_state_drop(p->optimizer, p->incoming);
    weft_optimizer_unref(p->optimizer);
    wfi_mutex_fini(&p->lock);
    free(p);
}

const weft_object_type wfi_remote_part_type = {.name = "optimizer", .drop = wfi_remote_part_drop};

weft_status wfi_remote_part_of(weft_call *call, wfi_remote_part **out)
{
    void *object;
    weft_status status = weft_rref_local_typed(weft_call_rref(call, 0), &wfi_remote_part_type, WEFT_FOREVER, &object);
    *out = status ? NULL : object;
    return status;
}

void wfi_remote_part_write_item(wfi_writer *out, size_t parameter, const char *name)
{
    wfi_write_u32(out, (uint32_t)parameter);
    wfi_write_string(out, name);
}

void wfi_remote_part_read_item(wfi_reader *in, size_t *parameter, char name[WEFT_OPTIMIZER_NAME + 1])
{
    *parameter = wfi_read_u32(in);
    wfi_read_string(in, name, WEFT_OPTIMIZER_NAME + 1);
}

/* Copies items from `first` on, at most `most`, because the next step overwrites the optimizer's own. *count: 0 before;
 * how many tensors were copied, also on failure. */
static weft_status copy_items(wfi_remote_part *p, size_t first, size_t most, wfi_writer *out, weft_tensor **tensors,
                              size_t *count)
{
    const weft_device cpu = {WEFT_DEVICE_CPU, 0}; /* the caller may have no GPU */
    weft_status status = WEFT_OK;
    size_t total = weft_optimizer_state_count(p->optimizer);
    int64_t bytes = 0;
    wfi_write_u64(out, p->changes);
    wfi_write_u64(out, weft_optimizer_parameters(p->optimizer).count);
    wfi_write_u64(out, total);
    for (size_t i = first; i < total && *count < most && !status; i++) {
        weft_optimizer_state item;
        status = weft_optimizer_ref_state(p->optimizer, i, &item);
        if (status)
            break;
        bytes += (int64_t)weft_tensor_nbytes(item.tensor);
        if (*count > 0 && bytes > PAGE_BYTES) {
            weft_tensor_unref(item.tensor);
            break;
        }
        tensors[*count] = wfi_tensor_is_on_gpu(item.tensor) ? wfi_tensor_to_device(item.tensor, cpu, NULL)
                                                            : wfi_tensor_clone(item.tensor, NULL);
        weft_tensor_unref(item.tensor);
        if (!tensors[*count])
            return WEFT_ERR_MEMORY;
        wfi_remote_part_write_item(out, item.parameter, item.name);
        ++*count;
    }
    return status ? status : out->failed ? WEFT_ERR_MEMORY : WEFT_OK;
}

/*
 * "weft:state" (part, number of the first item, how many at most) -> (changes u64, parameters u64, items in all
 * u64, the items), their tensors
 */
weft_status wfi_remote_part_run_state(weft_call *call, void *user)
{
    (void)user;
    wfi_remote_part *p;
    weft_tensor *tensors[WFI_REMOTE_PAGE];
    size_t count = 0;
    int64_t first = weft_call_i64(call, 1), most = weft_call_i64(call, 2);
    weft_status status = wfi_remote_part_of(call, &p);
    if (!status && (first < 0 || most < 0))
        status = WEFT_ERR_PROTOCOL;
    if (status)
        return status;
    wfi_writer out;
    wfi_writer_init_growing(&out);
    wfi_mutex_lock(&p->lock);
    status =
        copy_items(p, (size_t)first, most < WFI_REMOTE_PAGE ? (size_t)most : WFI_REMOTE_PAGE, &out, tensors, &count);
    wfi_mutex_unlock(&p->lock);
    if (!status)
        weft_call_give(call,
                       WEFT_VALUES(weft_of_bytes(out.data, out.size), weft_of_tensors((weft_tensors){tensors, count})));
    for (size_t i = 0; i < count; i++)
        weft_tensor_unref(tensors[i]);
    wfi_writer_fini(&out);
    return status;
}

/* Drops the state that is being received. */
static void forget(wfi_remote_part *p)
{
    if (p->incoming)
        wfi_state_drop(p->optimizer, p->incoming);
    p->incoming = NULL;
    p->is_whole = false;
}

static weft_error *add_page(wfi_remote_part *p, wfi_reader *in, weft_tensors tensors)
{
    weft_error *found = NULL;
    for (size_t i = 0; i < tensors.count && !found; i++) {
        char name[WEFT_OPTIMIZER_NAME + 1];
        weft_optimizer_state item = {.name = name, .tensor = tensors.items[i]};
        wfi_remote_part_read_item(in, &item.parameter, name);
        found = in->failed ? weft_error_create(WEFT_ERR_PROTOCOL, "a page of state is malformed")
                           : wfi_state_add(p->optimizer, p->incoming, &item);
    }
    if (!found && wfi_reader_left(in))
        found = weft_error_create(WEFT_ERR_PROTOCOL, "a page of state is malformed");
    return found;
}

/* Adds one page to the new state. If it is the last one, checks that no part is missing. */
static weft_error *receive(wfi_remote_part *p, uint64_t number, wfi_reader *in, weft_tensors tensors)
{
    uint8_t which = wfi_read_u8(in);
    if (which & WFI_PAGE_FIRST) {
        forget(p);
        p->incoming = wfi_state_begin(p->optimizer);
        p->incoming_number = number;
        if (!p->incoming)
            return weft_error_create(WEFT_ERR_MEMORY, "no memory for the state of an optimizer");
    }
    if (!p->incoming || p->incoming_number != number || p->is_whole)
        return weft_error_create(WEFT_ERR_STATE, "another thread has begun to set the state of this optimizer");
    weft_error *found = add_page(p, in, tensors);
    if (!found && which & WFI_PAGE_LAST)
        found = wfi_state_missing(p->optimizer, p->incoming);
    p->is_whole = !found && which & WFI_PAGE_LAST;
    if (found)
        forget(p);
    return found;
}

/* "weft:state_in" (part, number of the whole, (1: first | 2: last page u8, the items), their tensors) */
weft_status wfi_remote_part_run_receive(weft_call *call, void *user)
{
    (void)user;
    wfi_remote_part *p;
    size_t size;
    wfi_reader in;
    const void *bytes = weft_call_bytes(call, 2, &size);
    weft_status status = wfi_remote_part_of(call, &p);
    if (status)
        return status;
    wfi_reader_init(&in, bytes, size);
    wfi_mutex_lock(&p->lock);
    weft_error *found = receive(p, (uint64_t)weft_call_i64(call, 1), &in, weft_call_tensors(call, 3));
    wfi_mutex_unlock(&p->lock);
    status = weft_error_code(found);
    if (found)
        weft_call_fail(call, status, "%s", weft_error_message(found));
    weft_error_unref(found);
    return status;
}

/* "weft:state_set" (part, number of the whole): it becomes the state. */
weft_status wfi_remote_part_run_exchange(weft_call *call, void *user)
{
    (void)user;
    wfi_remote_part *p;
    weft_status status = wfi_remote_part_of(call, &p);
    if (status)
        return status;
    wfi_mutex_lock(&p->lock);
    bool is_there = p->incoming && p->is_whole && p->incoming_number == (uint64_t)weft_call_i64(call, 1);
    if (is_there) {
        wfi_state_put(p->optimizer, p->incoming);
        forget(p);
        p->changes++;
    }
    wfi_mutex_unlock(&p->lock);
    if (!is_there)
        weft_call_fail(call, WEFT_ERR_STATE, "another thread has begun to set the state of this optimizer");
    return is_there ? WEFT_OK : WEFT_ERR_STATE;
}
