/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module.c - modules: their references, how they are built (parameters, buffers, children), and their properties. One
 * thread builds a module; then any thread may read it.
 */
#include "nn/nn.h"

#include "base/alloc.h"
#include "base/text/log.h"
#include "base/text/sized.h"
#include "base/utf8.h"
#include "tensor/cell.h"

#include <stdlib.h>
#include <string.h>

weft_module *wfi_module_refuse(weft_error **error, const char *type, const char *format, ...)
{
    char why[256];
    va_list args;
    va_start(args, format);
    wfi_utf8_print_v(why, sizeof(why), format, args);
    va_end(args);
    (void)wfi_refuse_to(error, WEFT_ERR_INVALID, "%s: %s", type, why);
    return NULL;
}

weft_module *wfi_module_no_memory(weft_error **error, const char *type)
{
    (void)wfi_refuse_to(error, WEFT_ERR_MEMORY, "%s: there is no memory for it", type);
    return NULL;
}

weft_module *wfi_module_newer(weft_error **error, const char *type, const char *of)
{
    return wfi_module_refuse(error, type, WFI_NEWER, of);
}

weft_module *wfi_module_create_sized(const weft_module_type *given, size_t size, void *state, weft_error **error)
{
    weft_module_type own;
    const weft_module_type *type = given ? WFI_SIZED(given, size, &own) : NULL;
    if (given && !type) {
        if (given->drop)
            given->drop(state);
        return wfi_module_newer(error, given->name ? given->name : "module", "weft_module_type");
    }
    bool is_usable = type && (type->forward || type->call);
    weft_module *module = is_usable ? wfi_calloc(1, sizeof(*module)) : NULL;
    if (!module) {
        const char *name = type && type->name ? type->name : "module";
        if (type && type->drop)
            type->drop(state);
        return is_usable ? wfi_module_no_memory(error, name)
                         : wfi_module_refuse(error, name,
                                             !type ? "the type is NULL" : "the type has neither `forward` nor `call`");
    }
    WFI_HANDLE_INIT(module);
    atomic_init(&module->refs, 1);
    atomic_init(&module->training, true);
    module->type = *type;
    module->state = state;
    return module;
}

weft_module *weft_module_ref(weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    if (module)
        atomic_fetch_add_explicit(&module->refs, 1, memory_order_relaxed);
    return module;
}

static void free_list(wfi_named *list)
{
    for (size_t i = 0; i < list->count; i++) {
        weft_tensor_unref(list->tensors[i]);
        free(list->names[i]);
    }
    free(list->tensors);
    free(list->names);
}

void weft_module_unref(weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    if (!module)
        return;
    uint32_t before = atomic_fetch_sub_explicit(&module->refs, 1, memory_order_acq_rel);
    if (!WFI_HANDLE_IS_LAST(module, before))
        return;
    if (module->type.drop)
        module->type.drop(module->state);
    free_list(&module->parameters);
    free_list(&module->buffers);
    free_list(&module->aliases);
    for (size_t i = 0; i < module->child_count; i++) {
        weft_module_unref(module->children[i]);
        free(module->child_names[i]);
    }
    free(module->children);
    free(module->child_names);
    wfi_handle_free(module);
}

static void fail(weft_module *module, weft_status status, const char *name)
{
    const char *why = status == WEFT_ERR_STATE    ? "it is another's child, or its lists were asked for"
                      : status == WEFT_ERR_EXISTS ? "it has one of that name"
                      : status == WEFT_ERR_TYPE   ? "a parameter is of a floating dtype"
                      : status == WEFT_ERR_INVALID
                          ? "it is NULL, or has failed, or its name is empty, too long or has a dot"
                          : weft_status_text(status);
    char text[sizeof(module->why)];
    wfi_utf8_print(text, sizeof(text), "%s cannot take \"%.*s\": %s", module->type.name,
                   !name ? 0 : wfi_utf8_fit(name, 40), !name ? "" : name, why);
    wfi_log(WEFT_LOG_DEBUG, "%s", text);
    if (module->status != WEFT_OK)
        return;
    module->status = status;
    memcpy(module->why, text, sizeof(text));
}

static bool has_name(const weft_module *module, const char *name)
{
    for (size_t i = 0; i < module->child_count; i++)
        if (strcmp(module->child_names[i], name) == 0)
            return true;
    for (size_t i = 0; i < module->parameters.own; i++)
        if (strcmp(module->parameters.names[i], name) == 0)
            return true;
    for (size_t i = 0; i < module->buffers.own; i++)
        if (strcmp(module->buffers.names[i], name) == 0)
            return true;
    return false;
}

/* Whether something may be added under that name. */
static bool may_add(weft_module *module, const char *name, const void *what)
{
    weft_status status = WEFT_OK;
    if (!what || !name || name[0] == '\0' || strchr(name, '.') || strlen(name) >= WFI_NAME_MAX)
        status = WEFT_ERR_INVALID;
    else if (atomic_load(&module->is_child) || atomic_load(&module->sealed_lists))
        status = WEFT_ERR_STATE;
    else if (has_name(module, name))
        status = WEFT_ERR_EXISTS;
    if (status != WEFT_OK)
        fail(module, status, name);
    return module->status == WEFT_OK;
}

static bool grow(void ***items, size_t count)
{
    void **larger = realloc(*items, (count + 1) * sizeof(*larger));
    if (larger)
        *items = larger;
    return larger != NULL;
}

/* Inserts `tensor` (its reference moves) at `where`; takes over `name`, which is NULL if memory was exhausted. */
static weft_status insert(wfi_named *list, size_t where, char *name, weft_tensor *tensor)
{
    if (!name || !grow((void ***)&list->tensors, list->count) || !grow((void ***)&list->names, list->count)) {
        free(name);
        weft_tensor_unref(tensor);
        return WEFT_ERR_MEMORY;
    }
    size_t behind = list->count - where;
    memmove(list->tensors + where + 1, list->tensors + where, behind * sizeof(weft_tensor *));
    memmove(list->names + where + 1, list->names + where, behind * sizeof(char *));
    list->tensors[where] = tensor;
    list->names[where] = name;
    list->count++;
    return WEFT_OK;
}

static void add_own(weft_module *module, wfi_named *list, const char *name, weft_tensor *tensor)
{
    if (!may_add(module, name, tensor)) {
        weft_tensor_unref(tensor);
        return;
    }
    weft_status status = wfi_tensor_make_cell(tensor);
    if (status == WEFT_OK)
        status = insert(list, list->own, strdup(name), tensor);
    else
        weft_tensor_unref(tensor);
    if (status == WEFT_OK)
        list->own++;
    else
        fail(module, status, name);
}

void weft_module_add_parameter(weft_module *module, const char *name, weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(module, tensor);
    bool floating = !tensor || wfi_dtype_class_of(tensor->dtype) == WFI_CLASS_FLOAT;
    if (tensor && floating)
        weft_tensor_set_requires_grad(tensor, true);
    if (module && !floating)
        fail(module, WEFT_ERR_TYPE, name);
    if (module && floating)
        add_own(module, &module->parameters, name, tensor);
    else
        weft_tensor_unref(tensor);
}

void weft_module_add_buffer(weft_module *module, const char *name, weft_tensor *tensor)
{
    WFI_CHECK_HANDLE(module, tensor);
    if (module)
        add_own(module, &module->buffers, name, tensor);
    else
        weft_tensor_unref(tensor);
}

static char *full_name(const char *prefix, const char *name)
{
    size_t size = strlen(prefix) + strlen(name) + 2;
    char *full = malloc(size);
    if (full)
        snprintf(full, size, "%s.%s", prefix, name);
    return full;
}

static bool has_tensor(const wfi_named *list, const weft_tensor *tensor)
{
    for (size_t i = 0; i < list->count; i++)
        if (list->tensors[i] == tensor)
            return true;
    return false;
}

/* Appends a child's list to the parent's `list`; a tensor that is already there gets one more name. */
static weft_status append_all(weft_module *module, wfi_named *list, const char *prefix, const wfi_named *from)
{
    weft_status status = WEFT_OK;
    for (size_t i = 0; i < from->count && status == WEFT_OK; i++) {
        if (strlen(prefix) + strlen(from->names[i]) + 2 > WFI_NAME_MAX)
            return WEFT_ERR_TOO_LARGE;
        wfi_named *to = has_tensor(list, from->tensors[i]) ? &module->aliases : list;
        status = insert(to, to->count, full_name(prefix, from->names[i]), weft_tensor_ref(from->tensors[i]));
    }
    return status;
}

static weft_status append_child(weft_module *module, const char *name, weft_module *child)
{
    char *copy = strdup(name);
    if (!copy || !grow((void ***)&module->children, module->child_count) ||
        !grow((void ***)&module->child_names, module->child_count)) {
        free(copy);
        return WEFT_ERR_MEMORY;
    }
    module->children[module->child_count] = weft_module_ref(child);
    module->child_names[module->child_count++] = copy;
    weft_status status = append_all(module, &module->parameters, name, &child->parameters);
    if (status == WEFT_OK)
        status = append_all(module, &module->buffers, name, &child->buffers);
    return status != WEFT_OK ? status : append_all(module, &module->aliases, name, &child->aliases);
}

void weft_module_add_child(weft_module *module, const char *name, weft_module *child)
{
    WFI_CHECK_HANDLE(module, child);
    if (module && may_add(module, name, child)) {
        weft_status status = child->status;
        if (child == module)
            status = WEFT_ERR_STATE;
        else
            atomic_store(&child->is_child, true);
        if (status == WEFT_OK)
            status = append_child(module, name, child);
        if (status != WEFT_OK)
            fail(module, status, name);
    }
    weft_module_unref(child);
}

weft_status weft_module_status(const weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    return !module ? WEFT_ERR_MEMORY : module->status;
}

weft_module *wfi_module_finish(weft_module *module, weft_error **error)
{
    if (!module || module->status == WEFT_OK)
        return module;
    if (module->status == WEFT_ERR_INVALID) /* a parameter or a child is NULL */
        (void)wfi_module_no_memory(error, module->type.name);
    else
        (void)wfi_refuse_to(error, module->status, "%s: %s", module->type.name, weft_status_text(module->status));
    weft_module_unref(module);
    return NULL;
}

/* ---- Properties -------------------------------------------------------------------------------------------------- */

void weft_module_train(weft_module *module, bool train)
{
    WFI_CHECK_HANDLE(module);
    if (!module)
        return;
    atomic_store_explicit(&module->training, train, memory_order_relaxed);
    for (size_t i = 0; i < module->child_count; i++)
        weft_module_train(module->children[i], train);
}

bool weft_module_is_training(const weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    return module && atomic_load_explicit(&module->training, memory_order_relaxed);
}

static weft_tensors lend(const weft_module *module, const wfi_named *list)
{
    /* From now on the list must stay as it is; const means the parts that a caller can see. */
    atomic_store(&((weft_module *)module)->sealed_lists, true);
    return (weft_tensors){list->tensors, list->count};
}

weft_tensors weft_module_parameters(const weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    return !module ? (weft_tensors){NULL, 0} : lend(module, &module->parameters);
}

weft_tensors weft_module_buffers(const weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    return !module ? (weft_tensors){NULL, 0} : lend(module, &module->buffers);
}

static const char *name_at(const wfi_named *list, size_t index)
{
    return index < list->count ? list->names[index] : NULL;
}

const char *weft_module_parameter_name(const weft_module *module, size_t index)
{
    WFI_CHECK_HANDLE(module);
    return !module ? NULL : name_at(&module->parameters, index);
}

const char *weft_module_buffer_name(const weft_module *module, size_t index)
{
    WFI_CHECK_HANDLE(module);
    return !module ? NULL : name_at(&module->buffers, index);
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
    WFI_CHECK_HANDLE(module);
    if (!module || !name)
        return NULL;
    weft_tensor *found = find_in(&module->parameters, name);
    if (!found)
        found = find_in(&module->buffers, name);
    return found ? found : find_in(&module->aliases, name);
}

int64_t weft_module_numel(const weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    int64_t sum = 0;
    for (size_t i = 0; module && i < module->parameters.count; i++)
        sum += weft_tensor_numel(module->parameters.tensors[i]);
    return sum;
}

size_t weft_module_child_count(const weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    return !module ? 0 : module->child_count;
}

weft_module *weft_module_child(const weft_module *module, size_t index)
{
    WFI_CHECK_HANDLE(module);
    return module && index < module->child_count ? module->children[index] : NULL;
}

const char *weft_module_child_name(const weft_module *module, size_t index)
{
    WFI_CHECK_HANDLE(module);
    return module && index < module->child_count ? module->child_names[index] : NULL;
}

const char *weft_module_type_name(const weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    return !module ? "" : module->type.name;
}

void *weft_module_state(const weft_module *module)
{
    WFI_CHECK_HANDLE(module);
    return !module ? NULL : module->state;
}
