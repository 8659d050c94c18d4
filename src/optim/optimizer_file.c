/* SPDX-License-Identifier: Apache-2.0 */
/* optimizer_file.c - the state of optimizers in files: safetensors (file/safetensors.h), with names such as "state.0.exp_avg". */
#include "optim/optim.h"

#include "base/alloc.h"
#include "base/error.h"
#include "file/safetensors.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define KIND_KEY "weft.optimizer"
#define PREFIX "state."

typedef char state_name[64];

static weft_status gather(const weft_optimizer *optimizer, state_name *all, wfi_file_tensor *items, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        weft_optimizer_state state;
        weft_status status = weft_optimizer_ref_state(optimizer, i, &state);
        if (status != WEFT_OK)
            return status;
        snprintf(all[i], sizeof(all[i]), PREFIX "%zu.%s", state.parameter, state.name);
        items[i] = (wfi_file_tensor){all[i], state.tensor};
    }
    return WEFT_OK;
}

weft_status weft_optimizer_save(const weft_optimizer *optimizer, const char *path, weft_error **error)
{
    if (optimizer == NULL || path == NULL)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "there is no optimizer or no path to save it to");
    size_t count = weft_optimizer_state_count(optimizer);
    wfi_file_text texts[] = {{"format", "pt"}, {KIND_KEY, optimizer->rule->name}};
    state_name *all = wfi_calloc(count + 1, sizeof(*all));
    wfi_file_tensor *items = wfi_calloc(count + 1, sizeof(*items));
    weft_status status = all != NULL && items != NULL ? gather(optimizer, all, items, count) : WEFT_ERR_MEMORY;
    if (status != WEFT_OK)
        wfi_error_fail(error, status, "out of memory while writing \"%s\"", path);
    else
        status = wfi_safetensors_save(path, &(wfi_file_tensors){items, count, texts, 2}, error);
    for (size_t i = 0; items != NULL && i < count; i++)
        weft_tensor_unref(items[i].tensor);
    free(items);
    free(all);
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
static weft_status fail_with(const wfi_safetensors *file, weft_error *found, weft_error **error)
{
    weft_status status = weft_error_code(found);
    if (found != NULL)
        wfi_error_fail(error, status, "\"%s\": %s", file->path, weft_error_message(found));
    weft_error_unref(found);
    return status;
}

/* All that can be said before the elements are read, so that no more of them are than the optimizer's own state has. */
static weft_status check_entry(const weft_optimizer *optimizer, const wfi_safetensors *file,
                               const wfi_safetensors_entry *e, weft_optimizer_state *state, weft_error **error)
{
    char name[WFI_SHOWN];
    if (!parse_name(e->name, state))
        return wfi_error_fail(error, WEFT_ERR_NOT_FOUND,
                              "\"%s\" holds \"%s\", which is no state of an optimizer: \"" PREFIX "0.name\"",
                              file->path, wfi_shown(e->name, name));
    return fail_with(file, wfi_state_fault(optimizer, state, e->dtype, &e->shape), error);
}

static weft_status read_state(weft_optimizer *optimizer, wfi_safetensors *file, weft_error **error)
{
    char kind[WFI_SHOWN];
    const char *text = wfi_safetensors_text(file, KIND_KEY);
    if (text != NULL && strcmp(text, optimizer->rule->name) != 0)
        return wfi_error_fail(error, WEFT_ERR_TYPE, "\"%s\" is the state of %s, the optimizer is %s", file->path,
                              wfi_shown(text, kind), optimizer->rule->name);
    weft_optimizer_state *states = wfi_calloc(file->count + 1, sizeof(*states));
    if (states == NULL)
        return wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory while reading \"%s\"", file->path);
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < file->count && status == WEFT_OK; i++)
        status = check_entry(optimizer, file, &file->entries[i], &states[i], error);
    if (status == WEFT_OK)
        status = wfi_safetensors_read(file, error);
    for (size_t i = 0; i < file->count && status == WEFT_OK; i++)
        states[i].tensor = file->entries[i].tensor;
    weft_error *found = NULL;
    if (status == WEFT_OK && weft_optimizer_set_state(optimizer, states, file->count, &found) != WEFT_OK)
        status = fail_with(file, found, error);
    free(states);
    return status;
}

weft_status weft_optimizer_load(weft_optimizer *optimizer, const char *path, weft_error **error)
{
    FILE *stream;
    uint8_t head[WFI_SAFETENSORS_HEAD];
    wfi_safetensors file;
    if (optimizer == NULL || path == NULL)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "there is no optimizer or no path to load it from");
    weft_status status = wfi_file_open(path, &stream, head, error);
    if (status != WEFT_OK)
        return status;
    status = wfi_safetensors_open(&file, stream, path, head, error);
    if (status == WEFT_OK)
        status = read_state(optimizer, &file, error);
    wfi_safetensors_fini(&file);
    fclose(stream);
    return status;
}
