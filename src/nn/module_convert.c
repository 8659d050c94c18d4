/* SPDX-License-Identifier: Apache-2.0 */
/* module_convert.c - the same module in another floating dtype. */
#include "base/alloc.h"
#include "nn/nn.h"

#include "tensor/tensor.h"

#include <stdlib.h>

/* One tensor in place of each of the list, converted if it is floating; NULL if memory is out. */
static weft_tensor **convert(const wfi_named *list, weft_dtype dtype)
{
    weft_tensor **made = wfi_calloc(list->count + 1, sizeof(weft_tensor *));
    for (size_t i = 0; made != NULL && i < list->count; i++) {
        weft_tensor *old = list->tensors[i];
        made[i] = wfi_dtype_is_float(old->dtype) ? weft_tensor_to(old, dtype) : weft_tensor_ref(old);
        if (made[i] == NULL) {
            while (i > 0)
                weft_tensor_unref(made[--i]);
            free(made);
            return NULL;
        }
        weft_tensor_set_requires_grad(made[i], weft_tensor_requires_grad(old));
    }
    return made;
}

/* A parent's list is its own entries and then those of its children in order, so one walk serves all. */
static void replace(wfi_named *list, weft_tensor *const *made)
{
    for (size_t i = 0; i < list->count; i++) {
        weft_tensor_unref(list->tensors[i]);
        list->tensors[i] = weft_tensor_ref(made[i]);
    }
}

static void replace_all(weft_module *module, weft_tensor *const *parameters, weft_tensor *const *buffers)
{
    replace(&module->parameters, parameters);
    replace(&module->buffers, buffers);
    parameters += module->parameters.own;
    buffers += module->buffers.own;
    for (size_t i = 0; i < module->child_count; i++) {
        weft_module *child = module->children[i];
        replace_all(child, parameters, buffers);
        parameters += child->parameters.count;
        buffers += child->buffers.count;
    }
}

static void drop(weft_tensor **made, size_t count)
{
    for (size_t i = 0; made != NULL && i < count; i++)
        weft_tensor_unref(made[i]);
    free(made);
}

weft_status weft_module_to(weft_module *module, weft_dtype dtype)
{
    if (module == NULL || !wfi_dtype_is_float(dtype))
        return WEFT_ERR_INVALID;
    if (module->status != WEFT_OK)
        return module->status;
    if (atomic_load(&module->adopted) || atomic_load(&module->sealed_lists))
        return WEFT_ERR_STATE;
    weft_tensor **parameters = convert(&module->parameters, dtype), **buffers = convert(&module->buffers, dtype);
    weft_status status = parameters != NULL && buffers != NULL ? WEFT_OK : WEFT_ERR_MEMORY;
    if (status == WEFT_OK)
        replace_all(module, parameters, buffers);
    drop(parameters, module->parameters.count);
    drop(buffers, module->buffers.count);
    return status;
}
