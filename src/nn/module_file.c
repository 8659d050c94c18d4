/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_file.c - modules in files: written as safetensors (file/safetensors.h), read from that and the older format.
 *
 * Reading puts the elements into tensors of its own and changes the module only when everything has been found right.
 */
#include "nn/nn.h"

#include "base/alloc.h"
#include "base/text/refuse.h"
#include "file/safetensors.h"
#include "tensor/print.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define NOWHERE SIZE_MAX

static size_t tensor_count(const weft_module *module)
{
    return module->parameters.count + module->buffers.count;
}

/* Parameters, then buffers. */
static weft_tensor *tensor_at(const weft_module *module, size_t i)
{
    size_t parameters = module->parameters.count;
    return i < parameters ? module->parameters.tensors[i] : module->buffers.tensors[i - parameters];
}

static const char *name_at(const weft_module *module, size_t i)
{
    size_t parameters = module->parameters.count;
    return i < parameters ? module->parameters.names[i] : module->buffers.names[i - parameters];
}

weft_status weft_module_save(const weft_module *module, const char *path, weft_error **error)
{
    WFI_CHECK_HANDLE(module);
    static const wfi_file_text texts[] = {{"format", "pt"}}; /* libraries on top of PyTorch ask for it */
    if (!module || !path)
        return wfi_refuse_null_to(error, "weft_module_save", !module ? "the module" : "path");
    if (module->status != WEFT_OK)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "the module was not built: %s", module->why);
    size_t count = tensor_count(module);
    wfi_file_tensor *items = wfi_calloc(count, sizeof(*items));
    if (!items)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while writing \"%s\"", path);
    for (size_t i = 0; i < count; i++)
        items[i] = (wfi_file_tensor){name_at(module, i), tensor_at(module, i)};
    weft_status status = wfi_safetensors_save(path, &(wfi_file_tensors){items, count, texts, 1}, error);
    free(items);
    return status;
}

/* ---- Reading ---- */

/* Index of the module's tensor with that name, either its own name or the name of a child that occurs twice. */
static size_t place_of(const weft_module *module, const char *name)
{
    const weft_tensor *alias = NULL;
    for (size_t i = 0; i < tensor_count(module); i++)
        if (strcmp(name_at(module, i), name) == 0)
            return i;
    for (size_t i = 0; i < module->aliases.count && !alias; i++)
        if (strcmp(module->aliases.names[i], name) == 0)
            alias = module->aliases.tensors[i];
    for (size_t i = 0; i < tensor_count(module) && alias; i++)
        if (tensor_at(module, i) == alias)
            return i;
    return NOWHERE;
}

/* The module has no tensor of that name, or the file does not: `name` is the first such one. */
static weft_status fail_with_name(const weft_module *module, const wfi_safetensors *file, bool in_file,
                                  const char *name, weft_error **error)
{
    char shown[WFI_SHOWN];
    return wfi_refuse_to(error, WEFT_ERR_SHAPE,
                         "\"%s\" %s \"%s\", which the module %s: it holds %zu tensors, the module has %zu", file->path,
                         in_file ? "holds" : "does not hold", wfi_shown(name, shown), in_file ? "does not have" : "has",
                         file->count, tensor_count(module));
}

static weft_status check_entry(const wfi_safetensors *file, const wfi_safetensors_entry *e, const weft_tensor *tensor,
                               weft_error **error)
{
    char name[WFI_SHOWN], its[WFI_SHAPE_TEXT], ours[WFI_SHAPE_TEXT];
    if (e->dtype != tensor->dtype)
        return wfi_refuse_to(error, WEFT_ERR_TYPE, "\"%s\": %s is %s, the module's is %s", file->path,
                             wfi_shown(e->name, name), weft_dtype_name(e->dtype), weft_dtype_name(tensor->dtype));
    if (!wfi_shape_equal(&e->shape, &tensor->shape))
        return wfi_refuse_to(error, WEFT_ERR_SHAPE, "\"%s\": %s is %s, the module's is %s", file->path,
                             wfi_shown(e->name, name), wfi_shape_text(&e->shape, its),
                             wfi_shape_text(&tensor->shape, ours));
    return WEFT_OK;
}

/* That names, dtypes and shapes are the module's: before any tensor is made. places[i]: where entry i belongs. */
static weft_status match(const weft_module *module, const wfi_safetensors *file, size_t *places, bool *found,
                         weft_error **error)
{
    size_t count = tensor_count(module);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < file->count && status == WEFT_OK; i++) {
        const wfi_safetensors_entry *e = &file->entries[i];
        places[i] = place_of(module, e->name);
        if (places[i] == NOWHERE)
            return fail_with_name(module, file, true, e->name, error);
        status = check_entry(file, e, tensor_at(module, places[i]), error);
        found[places[i]] = true;
    }
    for (size_t i = 0; i < count && status == WEFT_OK; i++)
        if (!found[i])
            status = fail_with_name(module, file, false, name_at(module, i), error);
    return status;
}

/* A tensor with two names must be the same under both. */
static weft_status hand_over(const wfi_safetensors *file, const size_t *places, weft_tensor **loaded,
                             weft_error **error)
{
    char name[WFI_SHOWN];
    for (size_t i = 0; places && i < file->count; i++) {
        const wfi_safetensors_entry *e = &file->entries[i];
        weft_tensor **into = &loaded[places[i]];
        if (!*into)
            *into = weft_tensor_ref(e->tensor);
        else if (e->size > 0 && memcmp(weft_tensor_data(*into), weft_tensor_data(e->tensor), e->size) != 0)
            return wfi_refuse_to(error, WEFT_ERR_SHAPE, "\"%s\": %s differs from what the module has it in common with",
                                 file->path, wfi_shown(e->name, name));
    }
    return WEFT_OK;
}

static weft_status read_matching(const weft_module *module, wfi_safetensors *file, weft_tensor **loaded,
                                 weft_error **error)
{
    size_t count = tensor_count(module);
    size_t *places = wfi_calloc(file->count, sizeof(*places));
    bool *found = wfi_calloc(count, sizeof(*found));
    weft_status status = places && found
                             ? match(module, file, places, found, error)
                             : wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", file->path);
    if (status == WEFT_OK)
        status = wfi_safetensors_read(file, error);
    if (status == WEFT_OK)
        status = hand_over(file, places, loaded, error);
    free(places);
    free(found);
    return status;
}

/* One reference to each tensor into loaded[], also on failure. */
static weft_status read_tensors(const weft_module *module, const char *path, weft_tensor **loaded, weft_error **error)
{
    FILE *stream;
    uint8_t head[WFI_SAFETENSORS_HEAD];
    weft_status status = wfi_file_open(path, &stream, head, error);
    if (status != WEFT_OK)
        return status;
    wfi_safetensors file;
    status = wfi_safetensors_open(&file, stream, path, head, error);
    if (status == WEFT_OK)
        status = read_matching(module, &file, loaded, error);
    wfi_safetensors_fini(&file);
    fclose(stream);
    return status;
}

weft_status weft_module_load(weft_module *module, const char *path, weft_error **error)
{
    WFI_CHECK_HANDLE(module);
    if (!module || !path)
        return wfi_refuse_null_to(error, "weft_module_load", !module ? "the module" : "path");
    if (module->status != WEFT_OK)
        return wfi_refuse_to(error, WEFT_ERR_INVALID, "the module was not built: %s", module->why);
    size_t count = tensor_count(module);
    weft_tensor **loaded = wfi_calloc(count, sizeof(weft_tensor *));
    if (!loaded)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", path);
    weft_status status = read_tensors(module, path, loaded, error);
    for (size_t i = 0; i < count && status == WEFT_OK; i++) { /* shapes and dtypes have been checked */
        status = weft_tensor_assign(tensor_at(module, i), loaded[i]);
        if (status != WEFT_OK)
            wfi_refuse_to(error, status, "cannot change %s: %s", name_at(module, i), weft_status_text(status));
    }
    for (size_t i = 0; i < count; i++)
        weft_tensor_unref(loaded[i]);
    free(loaded);
    return status;
}
