/* SPDX-License-Identifier: Apache-2.0 */
/*
 * state.c - the state of a distributed optimizer (weft/dist_optim.h): read from all owners, set at all owners,
 * saved and loaded. It travels in pages, each one call to an owner (part_state.c); a page goes to all owners at
 * once. A new state replaces the old one at an owner only when all pages have arrived at all owners.
 */
#include "base/alloc.h"
#include "base/codec.h"
#include "base/error.h"
#include "base/text/refuse.h"
#include "base/list.h"
#include "optim/optim.h"
#include "remote/owners.h"
#include "remote/part.h"
#include "remote/remote.h"
#include "value/reference.h"

#include <stdlib.h>
#include <string.h>

#define PAGE_BYTES ((int64_t)64 << 20) /* of tensors in one call, unless a single one has more */

/* The state of one owner, as far as it has arrived. */
typedef struct owner_state {
    weft_optimizer_states states; /* numbered by the owner */
    size_t capacity;
    uint64_t changes, parameters, total;
    bool has_begun;
} owner_state;

void weft_optimizer_states_drop(weft_optimizer_states *states)
{
    if (!states)
        return;
    for (size_t i = 0; i < states->count; i++) {
        weft_tensor_unref(states->items[i].tensor);
        free((char *)states->items[i].name);
    }
    free(states->items);
    *states = (weft_optimizer_states){0};
}

static void drop_owners(owner_state *owners, size_t count)
{
    for (size_t i = 0; owners && i < count; i++)
        weft_optimizer_states_drop(&owners[i].states);
    free(owners);
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static weft_status add_item(owner_state *o, size_t parameter, const char *name, weft_tensor *tensor)
{
    weft_optimizer_state *grown = wfi_grow(o->states.items, o->states.count, &o->capacity, sizeof(*grown));
    if (!grown)
        return WEFT_ERR_MEMORY;
    o->states.items = grown;
    char *copy = strdup(name);
    if (!copy)
        return WEFT_ERR_MEMORY;
    grown[o->states.count++] = (weft_optimizer_state){parameter, copy, weft_tensor_ref(tensor)};
    return WEFT_OK;
}

/* Adds a page of an owner. Checks it, because another worker sent it. */
static weft_status add_page(owner_state *o, const weft_values *page)
{
    const void *bytes;
    size_t size;
    weft_tensors tensors;
    wfi_reader in;
    weft_status status = weft_values_get_bytes(page, 0, &bytes, &size);
    if (!status)
        status = weft_values_get_tensors(page, 1, &tensors);
    if (status)
        return status;
    wfi_reader_init(&in, bytes, size);
    uint64_t changes = wfi_read_u64(&in), parameters = wfi_read_u64(&in), total = wfi_read_u64(&in);
    if (in.failed || (o->has_begun && (parameters != o->parameters)))
        return WEFT_ERR_PROTOCOL;
    if (o->has_begun && (changes != o->changes || total != o->total))
        return WEFT_ERR_STATE;
    o->has_begun = true;
    o->changes = changes;
    o->parameters = parameters;
    o->total = total;
    for (size_t i = 0; i < tensors.count && !status; i++) {
        size_t parameter;
        char name[WEFT_OPTIMIZER_NAME + 1];
        wfi_remote_part_read_item(&in, &parameter, name);
        status =
            in.failed || parameter >= parameters ? WEFT_ERR_PROTOCOL : add_item(o, parameter, name, tensors.items[i]);
    }
    return !status && wfi_reader_left(&in) ? WEFT_ERR_PROTOCOL : status;
}

static bool is_complete(const owner_state *o)
{
    return o->has_begun && o->states.count >= o->total;
}

/* Requests the next page of each owner that has more, of `most` items. 0: only how many items there are. */
static weft_status read_pages(const weft_dist_optimizer *optimizer, owner_state *owners, int64_t most,
                              int64_t timeout_ms, weft_error **error)
{
    weft_values **pages = wfi_calloc(optimizer->count, sizeof(*pages));
    weft_args *each = wfi_calloc(optimizer->count, sizeof(*each));
    weft_value(*arguments)[2] = wfi_calloc(optimizer->count, sizeof(*arguments));
    weft_status status = pages && each && arguments ? WEFT_OK : WEFT_ERR_MEMORY;
    for (size_t i = 0; i < optimizer->count && !status; i++) {
        arguments[i][0] = weft_of_i64((int64_t)owners[i].states.count);
        arguments[i][1] = weft_of_i64(most);
        if (!is_complete(&owners[i]))
            each[i] = (weft_args){arguments[i], 2};
    }
    if (!status)
        status = wfi_owners_call(optimizer, &(wfi_owner_calls){"weft:state", {0}, each, timeout_ms}, pages, error);
    for (size_t i = 0; i < optimizer->count && !status; i++) {
        size_t before = owners[i].states.count;
        if (!pages[i])
            continue;
        status = add_page(&owners[i], pages[i]);
        if (!status && most && owners[i].states.count == before && !is_complete(&owners[i]))
            status = WEFT_ERR_PROTOCOL;
        if (status == WEFT_ERR_STATE)
            *error = weft_error_create(status, "rank %d has stepped while its state was read: read it between steps",
                                       weft_rref_owner(optimizer->parts[i]));
        else if (status)
            *error = weft_error_create(status, "the state of rank %d: %s", weft_rref_owner(optimizer->parts[i]),
                                       weft_status_text(status));
    }
    if (pages)
        wfi_owners_drop(optimizer, pages);
    free(each);
    free(arguments);
    return status;
}

/* The items of all owners in one list. Parameters are numbered over all owners. Takes the items over. */
static weft_status join(const weft_dist_optimizer *optimizer, owner_state *owners, weft_optimizer_states *out)
{
    size_t count = 0, before = 0;
    for (size_t i = 0; i < optimizer->count; i++)
        count += owners[i].states.count;
    weft_optimizer_states all = {wfi_calloc(count, sizeof(weft_optimizer_state)), 0};
    if (!all.items)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < optimizer->count; i++) {
        for (size_t k = 0; k < owners[i].states.count; k++) {
            all.items[all.count] = owners[i].states.items[k];
            all.items[all.count++].parameter += before;
        }
        owners[i].states.count = 0;
        before += owners[i].parameters;
    }
    *out = all;
    return WEFT_OK;
}

static weft_status read_state(const weft_dist_optimizer *optimizer, int64_t timeout_ms, weft_optimizer_states *out,
                              weft_error **error)
{
    owner_state *owners = wfi_calloc(optimizer->count, sizeof(*owners));
    weft_status status = owners ? WEFT_OK : WEFT_ERR_MEMORY;
    for (bool is_read = false; !status && !is_read;) {
        status = read_pages(optimizer, owners, WFI_REMOTE_PAGE, timeout_ms, error);
        is_read = true;
        for (size_t i = 0; i < optimizer->count; i++)
            is_read = is_read && is_complete(&owners[i]);
    }
    if (!status)
        status = join(optimizer, owners, out);
    drop_owners(owners, optimizer->count);
    return status;
}

weft_status weft_dist_optimizer_ref_state(weft_dist_optimizer *optimizer, int64_t timeout_ms,
                                          weft_optimizer_states *out, weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    weft_error *why = NULL;
    weft_status status = wfi_owners_may_wait(optimizer, __func__, &why);
    if (!status && !out) {
        why = weft_error_create(WEFT_ERR_INVALID, "%s: out is NULL", __func__);
        status = WEFT_ERR_INVALID;
    }
    if (!status)
        status = read_state(optimizer, timeout_ms, out, &why);
    return wfi_owners_end(status, __func__, why, error);
}

/* ---- Setting ----------------------------------------------------------------------------------------------------- */

/* The items that one owner gets. */
typedef struct owner_items {
    weft_optimizer_state *items; /* numbered by the owner; borrows names and tensors */
    size_t count, at;            /* those that were sent */
    bool has_begun;
} owner_items;

/* The owner that has the parameter; *parameter becomes the owner's number of it. -1: none has it. */
static int64_t owner_of(const weft_dist_optimizer *optimizer, const owner_state *owners, size_t *parameter)
{
    for (size_t i = 0; i < optimizer->count; i++) {
        if (*parameter < owners[i].parameters)
            return (int64_t)i;
        *parameter -= owners[i].parameters;
    }
    return -1;
}

/* Adds an item to those of its owner. */
static weft_error *sort_item(const weft_dist_optimizer *optimizer, const owner_state *owners, owner_items *outgoing,
                             const weft_optimizer_state *item, size_t count)
{
    size_t parameter = item->parameter, parameters = 0;
    if (!item->name || !item->tensor)
        return weft_error_create(WEFT_ERR_INVALID, "a name or a tensor of the state is NULL");
    if (strlen(item->name) > WEFT_OPTIMIZER_NAME)
        return weft_error_create(WEFT_ERR_NOT_FOUND, "parameter %zu: %s keeps no \"%.40s...\"", parameter,
                                 optimizer->type->name, item->name);
    int64_t owner = owner_of(optimizer, owners, &parameter);
    for (size_t i = 0; i < optimizer->count; i++)
        parameters += owners[i].parameters;
    if (owner < 0)
        return weft_error_create(WEFT_ERR_NOT_FOUND, "%s of parameter %zu: there are %zu parameters", item->name,
                                 item->parameter, parameters);
    owner_items *s = &outgoing[owner];
    if (!s->items)
        s->items = wfi_calloc(count, sizeof(*s->items));
    if (!s->items)
        return weft_error_create(WEFT_ERR_MEMORY, "no memory for the state of an optimizer");
    s->items[s->count++] = (weft_optimizer_state){parameter, item->name, item->tensor};
    return NULL;
}

/* The arguments of a call of "weft:state_in": one page. */
typedef struct page_call {
    weft_value arguments[3];
    wfi_writer bytes;
    weft_tensor **tensors; /* borrowed */
} page_call;

/* Packs the next page for one owner. */
static weft_status pack(owner_items *s, uint64_t number, page_call *out)
{
    size_t from = s->at;
    int64_t bytes = 0;
    while (s->at < s->count && s->at - from < WFI_REMOTE_PAGE) {
        bytes += (int64_t)weft_tensor_nbytes(s->items[s->at].tensor);
        if (s->at > from && bytes > PAGE_BYTES)
            break;
        s->at++;
    }
    size_t count = s->at - from;
    out->tensors = wfi_calloc(count, sizeof(*out->tensors));
    if (!out->tensors)
        return WEFT_ERR_MEMORY;
    wfi_write_u8(&out->bytes, (uint8_t)((s->has_begun ? 0 : WFI_PAGE_FIRST) | (s->at == s->count ? WFI_PAGE_LAST : 0)));
    for (size_t i = 0; i < count; i++) {
        wfi_remote_part_write_item(&out->bytes, s->items[from + i].parameter, s->items[from + i].name);
        out->tensors[i] = s->items[from + i].tensor;
    }
    s->has_begun = true;
    out->arguments[0] = weft_of_i64((int64_t)number);
    out->arguments[1] = weft_of_bytes(out->bytes.data, out->bytes.size);
    out->arguments[2] = weft_of_tensors((weft_tensors){out->tensors, count});
    return out->bytes.failed ? WEFT_ERR_MEMORY : WEFT_OK;
}

/* Sends a page to each owner that still lacks some. *sent: there was one. */
static weft_status send_pages(const weft_dist_optimizer *optimizer, owner_items *outgoing, uint64_t number,
                              int64_t timeout_ms, bool *sent, weft_error **error)
{
    page_call *pages = wfi_calloc(optimizer->count, sizeof(*pages));
    weft_args *each = wfi_calloc(optimizer->count, sizeof(*each));
    weft_status status = pages && each ? WEFT_OK : WEFT_ERR_MEMORY;
    *sent = false;
    for (size_t i = 0; pages && i < optimizer->count; i++)
        wfi_writer_init_growing(&pages[i].bytes);
    for (size_t i = 0; i < optimizer->count && !status; i++) {
        if (outgoing[i].has_begun && outgoing[i].at == outgoing[i].count)
            continue;
        *sent = true;
        status = pack(&outgoing[i], number, &pages[i]);
        each[i] = (weft_args){pages[i].arguments, 3};
    }
    if (!status && *sent)
        status = wfi_owners_call(optimizer, &(wfi_owner_calls){"weft:state_in", {0}, each, timeout_ms}, NULL, error);
    for (size_t i = 0; pages && i < optimizer->count; i++) {
        wfi_writer_fini(&pages[i].bytes);
        free(pages[i].tensors);
    }
    free(pages);
    free(each);
    return status;
}

static weft_status set_state(weft_dist_optimizer *optimizer, const weft_optimizer_state *items, size_t count,
                             int64_t timeout_ms, weft_error **error)
{
    owner_state *owners = wfi_calloc(optimizer->count, sizeof(*owners));
    owner_items *outgoing = wfi_calloc(optimizer->count, sizeof(*outgoing));
    weft_status status = owners && outgoing ? WEFT_OK : WEFT_ERR_MEMORY;
    uint64_t number = atomic_fetch_add(&optimizer->sets, 1) + 1;
    bool sent = true;
    if (!status)
        status = read_pages(optimizer, owners, 0, timeout_ms, error);
    for (size_t i = 0; i < count && !status; i++) {
        *error = sort_item(optimizer, owners, outgoing, &items[i], count);
        status = weft_error_code(*error);
    }
    while (!status && sent)
        status = send_pages(optimizer, outgoing, number, timeout_ms, &sent, error);
    if (!status)
        status = wfi_owners_call(
            optimizer,
            &(wfi_owner_calls){"weft:state_set", WEFT_VALUES(weft_of_i64((int64_t)number)), NULL, timeout_ms}, NULL,
            error);
    for (size_t i = 0; outgoing && i < optimizer->count; i++)
        free(outgoing[i].items);
    free(outgoing);
    drop_owners(owners, optimizer->count);
    return status;
}

weft_status weft_dist_optimizer_set_state(weft_dist_optimizer *optimizer, const weft_optimizer_state *items,
                                          size_t count, int64_t timeout_ms, weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    weft_error *why = NULL;
    weft_status status = wfi_owners_may_wait(optimizer, __func__, &why);
    if (!status && !items && count) {
        why = weft_error_create(WEFT_ERR_INVALID, "%s: the state is NULL", __func__);
        status = WEFT_ERR_INVALID;
    }
    if (!status)
        status = set_state(optimizer, items, count, timeout_ms, &why);
    return wfi_owners_end(status, __func__, why, error);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static weft_status may_use_file(const weft_dist_optimizer *optimizer, const char *path, const char *what,
                                weft_error **error)
{
    weft_status status = wfi_owners_may_wait(optimizer, what, error);
    return status || path ? status : wfi_refuse_null_to(error, what, "path");
}

weft_status weft_dist_optimizer_save(weft_dist_optimizer *optimizer, const char *path, int64_t timeout_ms,
                                     weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    weft_error *why = NULL;
    weft_optimizer_states states = {0};
    weft_status status = may_use_file(optimizer, path, __func__, &why);
    if (!status)
        status = read_state(optimizer, timeout_ms, &states, &why);
    if (!status)
        status = wfi_state_save(path, optimizer->type->name, states.items, states.count, &why);
    weft_optimizer_states_drop(&states);
    return wfi_owners_end(status, __func__, why, error);
}

typedef struct loading {
    weft_dist_optimizer *optimizer;
    int64_t timeout_ms;
} loading;

static weft_status set_loaded(void *arg, const weft_optimizer_state *items, size_t count, weft_error **error)
{
    const loading *l = arg;
    return set_state(l->optimizer, items, count, l->timeout_ms, error);
}

weft_status weft_dist_optimizer_load(weft_dist_optimizer *optimizer, const char *path, int64_t timeout_ms,
                                     weft_error **error)
{
    WFI_CHECK_HANDLE(optimizer);
    weft_error *why = NULL;
    weft_status status = may_use_file(optimizer, path, __func__, &why);
    if (!status) {
        loading l = {optimizer, timeout_ms};
        status = wfi_state_load(path, &(wfi_state_sink){optimizer->type->name, NULL, set_loaded, &l}, &why);
    }
    return wfi_owners_end(status, __func__, why, error);
}
