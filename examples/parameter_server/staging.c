/* SPDX-License-Identifier: Apache-2.0 */
/* staging.c - parameters and gradients in page-locked memory. */
#include "staging.h"

#include <stdlib.h>

weft_status staging_open(staging *out, weft_module *model, weft_device device)
{
    *out = (staging){.model = model};
    weft_status st = weft_module_to_device(model, device);
    if (st)
        return st;
    out->parameters = weft_module_parameters(model);
    if (device.kind == WEFT_DEVICE_CPU)
        return WEFT_OK;
    weft_tensors there = out->parameters;
    out->own = calloc(2 * there.count + 1, sizeof(weft_tensor *));
    for (size_t i = 0; i < 2 * there.count && out->own; i++) {
        const weft_tensor *like = there.items[i % there.count];
        out->own[i] = weft_tensor_empty_pinned(device, weft_tensor_shape(like), weft_tensor_dtype(like));
        if (!out->own[i])
            st = WEFT_ERR_MEMORY;
    }
    if (st || !out->own)
        return WEFT_ERR_MEMORY;
    out->parameters = (weft_tensors){out->own, there.count};
    out->gradients = (weft_tensors){out->own + there.count, there.count};
    return WEFT_OK;
}

void staging_close(staging *s)
{
    size_t count = s->own ? 2 * weft_module_parameters(s->model).count : 0;
    for (size_t i = 0; i < count; i++)
        weft_tensor_unref(s->own[i]);
    free(s->own);
    *s = (staging){0};
}

weft_status staging_load(const staging *s)
{
    weft_tensors there = weft_module_parameters(s->model);
    weft_status st = WEFT_OK;
    for (size_t i = 0; i < there.count && s->own && !st; i++)
        st = weft_tensor_assign(there.items[i], s->parameters.items[i]);
    return st;
}

weft_status staging_gradients(const staging *s, weft_tape *tape, weft_tensors *out)
{
    weft_tensors there = weft_tape_grads(tape, weft_module_parameters(s->model));
    weft_status st = weft_tape_status(tape);
    for (size_t i = 0; i < there.count && s->own && !st; i++)
        st = weft_tensor_assign(s->gradients.items[i], there.items[i]);
    *out = s->own ? s->gradients : there;
    return st;
}
