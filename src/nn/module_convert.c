/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_convert.c - converts a module to another floating dtype, or moves it to another device. First all new tensors
 * are made, then they replace the old ones: if memory is out, the module is unchanged.
 */
#include "base/map.h"
#include "base/text/refuse.h"
#include "nn/nn.h"

#include "tensor/cell.h"

typedef struct conversion {
    const char *function; /* for messages */
    bool moves;           /* to `device`; otherwise floating tensors become `dtype` */
    weft_dtype dtype;
    weft_device device;
    wfi_map made; /* id of the old tensor -> the new one, referenced */
} conversion;

/* Makes the new tensors of a list. */
static weft_status convert(conversion *c, const wfi_named *list)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < list->count && status == WEFT_OK; i++) {
        weft_tensor *old = list->tensors[i];
        weft_tensor *tensor = c->moves                         ? wfi_tensor_to_device(old, c->device, NULL)
                              : wfi_dtype_is_float(old->dtype) ? wfi_tensor_to(old, c->dtype, NULL)
                                                               : weft_tensor_ref(old);
        if (!tensor)
            return WEFT_ERR_MEMORY;
        weft_tensor_set_requires_grad(tensor, weft_tensor_requires_grad(old));
        status = wfi_tensor_make_cell(tensor);
        if (status == WEFT_OK)
            status = wfi_map_put(&c->made, old->id, tensor);
        if (status != WEFT_OK)
            weft_tensor_unref(tensor);
    }
    return status;
}

/* Puts the new tensors into a list. A module at several places is met again: then its tensors are replaced already. */
static void replace(const conversion *c, wfi_named *list)
{
    for (size_t i = 0; i < list->count; i++) {
        weft_tensor *tensor = wfi_map_get(&c->made, list->tensors[i]->id);
        if (!tensor || tensor == list->tensors[i])
            continue;
        weft_tensor_unref(list->tensors[i]);
        list->tensors[i] = weft_tensor_ref(tensor);
    }
}

/* A module of weft_on_device_create computes where its parameters now are. */
static void replace_all(const conversion *c, weft_module *module)
{
    if (c->moves)
        module->device = c->device;
    replace(c, &module->parameters);
    replace(c, &module->buffers);
    replace(c, &module->aliases);
    for (size_t i = 0; i < module->child_count; i++)
        replace_all(c, module->children[i]);
}

/* Whether a caller holds a list of the module, or of one below it, whose tensors would be replaced. */
static bool is_lent(const weft_module *module)
{
    bool lent = atomic_load(&module->sealed_lists);
    for (size_t i = 0; i < module->child_count && !lent; i++)
        lent = is_lent(module->children[i]);
    return lent;
}

/* The module cannot be converted any longer. */
static weft_status no_longer(const conversion *c, const weft_module *module, weft_error **error)
{
    const char *why = atomic_load(&module->is_child)
                          ? "is another module's child: convert that module, or convert this one before it is a child"
                          : "has lent its parameters or buffers: call it before weft_module_parameters, and create the "
                            "optimizer afterwards";
    return wfi_refuse_to(error, WEFT_ERR_STATE, "%s: %s %s", c->function, module->type.name, why);
}

static weft_status run(conversion *c, weft_module *module, weft_error **error)
{
    if (module->status != WEFT_OK)
        return wfi_refuse_to(error, module->status, "%s: %s is incomplete: %s", c->function, module->type.name,
                             weft_status_text(module->status));
    if (atomic_load(&module->is_child) || is_lent(module))
        return no_longer(c, module, error);
    wfi_map_init(&c->made);
    weft_status status = convert(c, &module->parameters);
    if (status == WEFT_OK)
        status = convert(c, &module->buffers);
    if (status == WEFT_OK)
        replace_all(c, module);
    size_t cursor = 0;
    for (weft_tensor *made; (made = wfi_map_next(&c->made, &cursor, NULL));)
        weft_tensor_unref(made);
    wfi_map_fini(&c->made);
    return status == WEFT_OK
               ? WEFT_OK
               : wfi_refuse_to(error, status, "%s: %s: %s", c->function, module->type.name, weft_status_text(status));
}

weft_status weft_module_to(weft_module *module, weft_dtype dtype)
{
    WFI_CHECK_HANDLE(module);
    if (!module)
        return wfi_refuse_null("weft_module_to", "the module");
    if (!wfi_dtype_is_float(dtype))
        return wfi_refuse(WEFT_ERR_INVALID, "weft_module_to: dtype %d (%s) is neither float32 nor float64", (int)dtype,
                          weft_dtype_name(dtype));
    return run(&(conversion){.function = "weft_module_to", .dtype = dtype}, module, NULL);
}

weft_status wfi_module_move(weft_module *module, weft_device device, weft_error **error)
{
    weft_status status = weft_device_check(device, error);
    return status != WEFT_OK ? status
                             : run(&(conversion){.function = "weft_module_to_device", .moves = true, .device = device},
                                   module, error);
}

weft_status weft_module_to_device(weft_module *module, weft_device device)
{
    WFI_CHECK_HANDLE(module);
    if (!module)
        return wfi_refuse_null("weft_module_to_device", "the module");
    weft_error *error = NULL;
    weft_status status = weft_device_check(device, &error);
    if (status != WEFT_OK)
        (void)wfi_refuse(status, "weft_module_to_device: %s", weft_error_message(error));
    weft_error_unref(error);
    return status != WEFT_OK ? status : wfi_module_move(module, device, NULL);
}
