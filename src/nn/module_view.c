/* SPDX-License-Identifier: Apache-2.0 */
/* module_view.c - what modules let see. */
#include "nn/nn.h"

#include <string.h>

void weft_module_train(weft_module *module, bool train)
{
    WFI_LIVE(module);
    if (module == NULL)
        return;
    atomic_store_explicit(&module->training, train, memory_order_relaxed);
    for (size_t i = 0; i < module->child_count; i++)
        weft_module_train(module->children[i], train);
}

bool weft_module_is_training(const weft_module *module)
{
    WFI_LIVE(module);
    return module != NULL && atomic_load_explicit(&module->training, memory_order_relaxed);
}

static weft_tensors lend(const weft_module *module, const wfi_named *list)
{
    /* From now on the list must stay as it is; const means the parts that a caller can see. */
    atomic_store(&((weft_module *)module)->sealed_lists, true);
    return (weft_tensors){list->tensors, list->count};
}

weft_tensors weft_module_parameters(const weft_module *module)
{
    WFI_LIVE(module);
    return module == NULL ? (weft_tensors){NULL, 0} : lend(module, &module->parameters);
}

weft_tensors weft_module_buffers(const weft_module *module)
{
    WFI_LIVE(module);
    return module == NULL ? (weft_tensors){NULL, 0} : lend(module, &module->buffers);
}

static const char *name_at(const wfi_named *list, size_t index)
{
    return index < list->count ? list->names[index] : NULL;
}

const char *weft_module_parameter_name(const weft_module *module, size_t index)
{
    WFI_LIVE(module);
    return module == NULL ? NULL : name_at(&module->parameters, index);
}

const char *weft_module_buffer_name(const weft_module *module, size_t index)
{
    WFI_LIVE(module);
    return module == NULL ? NULL : name_at(&module->buffers, index);
}

static weft_tensor *find_in(const wfi_named *list, const char *name)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->names[i], name) == 0)
            return list->tensors[i];
    return NULL;
}

weft_tensor *weft_module_find(const weft_module *module, const char *name)
{
    WFI_LIVE(module);
    if (module == NULL || name == NULL)
        return NULL;
    weft_tensor *found = find_in(&module->parameters, name);
    if (found == NULL)
        found = find_in(&module->buffers, name);
    return found != NULL ? found : find_in(&module->aliases, name);
}

int64_t weft_module_numel(const weft_module *module)
{
    WFI_LIVE(module);
    int64_t sum = 0;
    for (size_t i = 0; module != NULL && i < module->parameters.count; i++)
        sum += weft_tensor_numel(module->parameters.tensors[i]);
    return sum;
}

size_t weft_module_child_count(const weft_module *module)
{
    WFI_LIVE(module);
    return module == NULL ? 0 : module->child_count;
}

weft_module *weft_module_child(const weft_module *module, size_t index)
{
    WFI_LIVE(module);
    return module != NULL && index < module->child_count ? module->children[index] : NULL;
}

const char *weft_module_child_name(const weft_module *module, size_t index)
{
    WFI_LIVE(module);
    return module != NULL && index < module->child_count ? module->child_names[index] : NULL;
}

const char *weft_module_type_name(const weft_module *module)
{
    WFI_LIVE(module);
    return module == NULL ? "" : module->type->name;
}

void *weft_module_state(const weft_module *module)
{
    WFI_LIVE(module);
    return module == NULL ? NULL : module->state;
}
