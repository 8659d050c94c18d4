/* SPDX-License-Identifier: Apache-2.0 */
/* named_tensors.c - saves and loads files of named tensors for the program: weft_tensors_save and weft_tensors_load. */
#include "file/safetensors.h"

#include "base/alloc.h"
#include "base/text/refuse.h"
#include "tensor/tensor.h"

#include <weft/nn.h>

#include <stdlib.h>
#include <string.h>

/* ---- Saving ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const wfi_file_tensor *)a)->name, ((const wfi_file_tensor *)b)->name);
}

/* Fails if two of the names are the same. Sorts `items`. */
static weft_status check_unique(const char *path, wfi_file_tensor *items, size_t count, weft_error **error)
{
    char name[WFI_SHOWN];
    qsort(items, count, sizeof(*items), by_name);
    for (size_t i = 1; i < count; i++)
        if (strcmp(items[i - 1].name, items[i].name) == 0)
            return wfi_refuse_to(error, WEFT_ERR_INVALID,
                                 "cannot write \"%s\": two tensors are called \"%s\": give each another name", path,
                                 wfi_shown(items[i].name, name));
    return WEFT_OK;
}

weft_status weft_tensors_save(const char *path, const char *const *names, weft_tensors tensors, weft_error **error)
{
    if (!path || (tensors.count > 0 && (!names || !tensors.items)))
        return wfi_refuse_null_to(error, "weft_tensors_save", !path ? "path" : !names ? "names" : "tensors.items");
    wfi_file_tensor *items = wfi_calloc(tensors.count, 2 * sizeof(*items)); /* as given, and sorted */
    weft_status status =
        items ? WEFT_OK : wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while writing \"%s\"", path);
    for (size_t i = 0; i < tensors.count && status == WEFT_OK; i++) {
        WFI_CHECK_HANDLE(tensors.items[i]);
        if (!names[i] || names[i][0] == '\0' || !tensors.items[i])
            status = wfi_refuse_to(error, WEFT_ERR_INVALID, "cannot write \"%s\": %s %zu is %s", path,
                                   !tensors.items[i] ? "tensor" : "the name of tensor", i,
                                   !tensors.items[i] || !names[i] ? "NULL" : "empty");
        items[i] = items[tensors.count + i] = (wfi_file_tensor){names[i], tensors.items[i]};
    }
    if (status == WEFT_OK)
        status = check_unique(path, items + tensors.count, tensors.count, error);
    if (status == WEFT_OK)
        status = wfi_safetensors_save(path, &(wfi_file_tensors){.items = items, .count = tensors.count}, error);
    free(items);
    return status;
}

/* ---- Loading ---- */

/* The result, its lists and the names, in one block. NULL: no memory. Takes over the tensors of `file`. */
static weft_named_tensors *make_result(wfi_safetensors *file)
{
    size_t text = 0;
    for (size_t i = 0; i < file->count; i++)
        text += strlen(file->entries[i].name) + 1;
    weft_named_tensors *loaded =
        wfi_calloc(1, sizeof(*loaded) + file->count * (sizeof(weft_tensor *) + sizeof(char *)) + text);
    if (!loaded)
        return NULL;
    weft_tensor **tensors = (weft_tensor **)(loaded + 1);
    char **names = (char **)(tensors + file->count);
    char *at = (char *)(names + file->count);
    for (size_t i = 0; i < file->count; i++) {
        names[i] = at;
        at = stpcpy(at, file->entries[i].name) + 1;
        tensors[i] = file->entries[i].tensor;
        file->entries[i].tensor = NULL;
    }
    loaded->names = (const char *const *)names;
    loaded->tensors = (weft_tensors){tensors, file->count};
    return loaded;
}

weft_status weft_tensors_load(const char *path, weft_named_tensors **out, weft_error **error)
{
    FILE *stream;
    uint8_t head[WFI_SAFETENSORS_HEAD];
    wfi_safetensors file;
    if (out)
        *out = NULL;
    if (!path || !out)
        return wfi_refuse_null_to(error, "weft_tensors_load", !path ? "path" : "out");
    weft_status status = wfi_file_open(path, &stream, head, error);
    if (status != WEFT_OK)
        return status;
    status = wfi_safetensors_open(&file, stream, path, head, error);
    if (status == WEFT_OK)
        status = wfi_safetensors_read(&file, error);
    if (status == WEFT_OK && !(*out = make_result(&file)))
        status = wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", path);
    wfi_safetensors_fini(&file);
    fclose(stream);
    return status;
}

weft_tensor *weft_tensors_find(const weft_named_tensors *loaded, const char *name)
{
    for (size_t i = 0; loaded && name && i < loaded->tensors.count; i++)
        if (strcmp(loaded->names[i], name) == 0)
            return loaded->tensors.items[i];
    return NULL;
}

void weft_tensors_free(weft_named_tensors *loaded)
{
    for (size_t i = 0; loaded && i < loaded->tensors.count; i++)
        weft_tensor_unref(loaded->tensors.items[i]);
    free(loaded);
}
