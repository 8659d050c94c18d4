/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optimizer_file.c - the state of optimizers in safetensors files (file/safetensors.h). A tensor has the name
 * state.N.SLOT, N the number of its parameter: "state.0.exp_avg".
 */
#include "optim/optim.h"

#include "base/alloc.h"
#include "base/text/refuse.h"
#include "file/safetensors.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define KIND_KEY "weft.optimizer"
#define PREFIX "state."

typedef char state_name[64];

weft_status wfi_state_save(const char *path, const char *type, const weft_optimizer_state *items, size_t count,
                           weft_error **error)
{
    wfi_file_text texts[] = {{"format", "pt"}, {KIND_KEY, type}};
    state_name *names = wfi_calloc(count, sizeof(*names));
    wfi_file_tensor *tensors = wfi_calloc(count, sizeof(*tensors));
    weft_status status;
    for (size_t i = 0; names && tensors && i < count; i++) {
        snprintf(names[i], sizeof(names[i]), PREFIX "%zu.%s", items[i].parameter, items[i].name);
        tensors[i] = (wfi_file_tensor){names[i], items[i].tensor};
    }
    if (!names || !tensors)
        status = wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while writing \"%s\"", path);
    else
        status = wfi_safetensors_save(path, &(wfi_file_tensors){tensors, count, texts, 2}, error);
    free(tensors);
    free(names);
    return status;
}

weft_status weft_optimizer_save(const weft_optimizer *optimizer, const char *path, weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer || !path)
        return wfi_refuse_null_to(error, "weft_optimizer_save", !optimizer ? "the optimizer" : "path");
    size_t count = weft_optimizer_state_count(optimizer);
    weft_optimizer_state *items = wfi_calloc(count, sizeof(*items));
    weft_status status = items ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < count && status == WEFT_OK; i++)
        status = weft_optimizer_ref_state(optimizer, i, &items[i]);
    if (status != WEFT_OK)
        wfi_refuse_to(error, status, "out of memory while writing \"%s\"", path);
    else
        status = wfi_state_save(path, optimizer->type->name, items, count, error);
    for (size_t i = 0; items && i < count; i++)
        weft_tensor_unref(items[i].tensor);
    free(items);
    return status;
}

/* ---- Reading ---- */

/* "state.12.exp_avg": 12 and "exp_avg". False: the name is another one. */
static bool parse_name(const char *name, weft_optimizer_state *state)
{
    const char *digits = name + strlen(PREFIX), *at = digits;
    size_t number = 0;
    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return false;
    if (*at == '0' && at[1] != '.') /* one name for each */
        return false;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(number, 10, &number) || __builtin_add_overflow(number, (size_t)(*at - '0'), &number))
            return false;
    if (at == digits || *at != '.')
        return false;
    state->parameter = number;
    state->name = at + 1;
    return true;
}

/* Names the file, and takes over the error. WEFT_OK if that is NULL. */
static weft_status fail_with(const char *path, weft_error *found, weft_error **error)
{
    weft_status status = weft_error_code(found);
    if (found)
        wfi_refuse_to(error, status, "\"%s\": %s", path, weft_error_message(found));
    weft_error_unref(found);
    return status;
}

/* All that can be said before the elements are read, so that no more of them are than the optimizer's own state has. */
static weft_status check_entry(const wfi_state_sink *sink, const wfi_safetensors *file, const wfi_safetensors_entry *e,
                               weft_optimizer_state *state, weft_error **error)
{
    char name[WFI_SHOWN];
    if (!parse_name(e->name, state))
        return wfi_refuse_to(error, WEFT_ERR_NOT_FOUND,
                             "\"%s\" holds \"%s\", which is no state of an optimizer: \"" PREFIX "0.name\"", file->path,
                             wfi_shown(e->name, name));
    return !sink->check ? WEFT_OK : fail_with(file->path, sink->check(sink->arg, state, e->dtype, &e->shape), error);
}

static weft_status read_state(const wfi_state_sink *sink, wfi_safetensors *file, weft_error **error)
{
    char type[WFI_SHOWN];
    const char *text = wfi_safetensors_text(file, KIND_KEY);
    if (text && strcmp(text, sink->type) != 0)
        return wfi_refuse_to(error, WEFT_ERR_TYPE, "\"%s\" is the state of %s, the optimizer is %s", file->path,
                             wfi_shown(text, type), sink->type);
    weft_optimizer_state *states = wfi_calloc(file->count, sizeof(*states));
    if (!states)
        return wfi_refuse_to(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", file->path);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < file->count && status == WEFT_OK; i++)
        status = check_entry(sink, file, &file->entries[i], &states[i], error);
    if (status == WEFT_OK)
        status = wfi_safetensors_read(file, error);
    for (size_t i = 0; i < file->count && status == WEFT_OK; i++)
        states[i].tensor = file->entries[i].tensor;
    if (status == WEFT_OK)
        status = sink->set(sink->arg, states, file->count, error);
    free(states);
    return status;
}

weft_status wfi_state_load(const char *path, const wfi_state_sink *sink, weft_error **error)
{
    FILE *stream;
    uint8_t head[WFI_SAFETENSORS_HEAD];
    wfi_safetensors file;
    weft_status status = wfi_file_open(path, &stream, head, error);
    if (status != WEFT_OK)
        return status;
    status = wfi_safetensors_open(&file, stream, path, head, error);
    if (status == WEFT_OK)
        status = read_state(sink, &file, error);
    wfi_safetensors_fini(&file);
    fclose(stream);
    return status;
}

/* An optimizer of this process, and the file that it takes. */
typedef struct own_file {
    weft_optimizer *optimizer;
    const char *path;
} own_file;

static weft_error *check_own(void *arg, const weft_optimizer_state *item, weft_dtype dtype, const weft_shape *shape)
{
    const own_file *own = arg;
    return wfi_state_mismatch(own->optimizer, item, dtype, shape);
}

static weft_status set_own(void *arg, const weft_optimizer_state *items, size_t count, weft_error **error)
{
    const own_file *own = arg;
    weft_error *found = NULL;
    weft_status status = weft_optimizer_set_state(own->optimizer, items, count, &found);
    return status == WEFT_OK ? WEFT_OK : fail_with(own->path, found, error);
}

weft_status weft_optimizer_load(weft_optimizer *optimizer, const char *path, weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    if (!optimizer || !path)
        return wfi_refuse_null_to(error, "weft_optimizer_load", !optimizer ? "the optimizer" : "path");
    own_file own = {optimizer, path};
    const wfi_state_sink sink = {optimizer->type->name, check_own, set_own, &own};
    return wfi_state_load(path, &sink, error);
}
