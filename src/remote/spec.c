/* SPDX-License-Identifier: Apache-2.0 */
/* spec.c - the options of an optimizer in a message, and the types that a worker knows: weft's, and registered ones. */
#include "base/alloc.h"
#include "base/codec.h"
#include "base/error.h"
#include "base/text/refuse.h"
#include "optim/rules.h"
#include "remote/remote.h"

#include <weft/dist_optim.h>

#include <stdlib.h>
#include <string.h>

enum { MAXIMIZE = 1, AVERAGE = 2, ERROR_IF_NONFINITE = 4, ALL_FLAGS = 7 };

/* A type of the user's, in the agent's list. */
typedef struct known_type {
    struct known_type *next;
    const weft_optimizer_type *type;
} known_type;

static const weft_optimizer_type *find_locked(const weft_agent *agent, const char *name)
{
    const weft_optimizer_type *type = wfi_type_find(name);
    for (const known_type *k = agent->state[WFI_STATE_OPTIMIZERS]; k && !type; k = k->next)
        if (!strcmp(k->type->name, name))
            type = k->type;
    return type;
}

weft_status weft_agent_register_optimizer(weft_agent *agent, const weft_optimizer_type *type)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent || !type)
        return wfi_refuse_null("weft_agent_register_optimizer", agent ? "the type" : "the agent");
    weft_error *wrong = wfi_type_check(type);
    if (wrong) {
        wfi_agent_log(agent, WEFT_LOG_ERROR, 0, "%s", weft_error_message(wrong));
        weft_error_unref(wrong);
        return WEFT_ERR_INVALID;
    }
    known_type *known = wfi_calloc(1, sizeof(*known));
    if (!known)
        return WEFT_ERR_MEMORY;
    known->type = type;
    wfi_net_lock(agent->net);
    bool exists = find_locked(agent, type->name);
    if (!exists) {
        known->next = agent->state[WFI_STATE_OPTIMIZERS];
        agent->state[WFI_STATE_OPTIMIZERS] = known;
    }
    wfi_net_unlock(agent->net);
    if (exists)
        free(known);
    return exists ? wfi_refuse(WEFT_ERR_EXISTS,
                               "weft_agent_register_optimizer: \"%s\" is a kind of weft's, or registered already",
                               type->name)
                  : WEFT_OK;
}

void wfi_remote_optimizers_close(weft_agent *agent)
{
    for (known_type *k = agent->state[WFI_STATE_OPTIMIZERS], *next; k; k = next) {
        next = k->next;
        free(k);
    }
    agent->state[WFI_STATE_OPTIMIZERS] = NULL;
}

void wfi_remote_spec_write(const weft_optimizer_spec *spec, wfi_writer *out)
{
    double options[WEFT_OPTIMIZER_OPTIONS];
    wfi_optimizer_spec_get_options(spec, options);
    int count = wfi_type_option_count(spec->type);
    wfi_write_string(out, spec->type->name);
    wfi_write_f64(out, spec->lr);
    wfi_write_f64(out, spec->max_norm);
    wfi_write_i64(out, spec->pin_timeout_ms);
    wfi_write_u8(out, (uint8_t)spec->update);
    wfi_write_u8(out, (uint8_t)((spec->maximize ? MAXIMIZE : 0) | (spec->average ? AVERAGE : 0) |
                                (spec->error_if_nonfinite ? ERROR_IF_NONFINITE : 0)));
    wfi_write_u8(out, (uint8_t)count);
    for (int i = 0; i < count; i++) {
        wfi_write_string(out, spec->type->options[i].name);
        wfi_write_f64(out, options[i]);
    }
}

/* The options, by their names: the caller's type may have others than the one of that name here. */
static weft_error *read_options(wfi_reader *in, int rank, weft_optimizer_spec *spec)
{
    char name[WEFT_OPTIMIZER_NAME + 1];
    double options[WEFT_OPTIMIZER_OPTIONS] = {0};
    for (int left = wfi_read_u8(in); left > 0 && !in->failed; left--) {
        wfi_read_string(in, name, sizeof(name));
        double value = wfi_read_f64(in);
        int index = in->failed ? -1 : wfi_type_option_index(spec->type, name);
        if (index >= 0)
            options[index] = value;
        else if (!in->failed)
            return weft_error_create(WEFT_ERR_INVALID,
                                     "optimizer type %s of rank %d has no option %.40s: register the same type there",
                                     spec->type->name, rank, name);
    }
    wfi_optimizer_spec_set_options(spec, options);
    return NULL;
}

weft_error *wfi_remote_spec_read(const weft_agent *agent, const void *bytes, size_t size, weft_optimizer_spec *out)
{
    wfi_reader in;
    char name[WEFT_OPTIMIZER_NAME + 1];
    int rank = wfi_agent_rank(agent);
    weft_optimizer_spec spec = {.has_lr = true};
    wfi_reader_init(&in, bytes, size);
    wfi_read_string(&in, name, sizeof(name));
    spec.lr = wfi_read_f64(&in);
    spec.max_norm = wfi_read_f64(&in);
    spec.pin_timeout_ms = wfi_read_i64(&in);
    spec.update = wfi_read_u8(&in);
    uint8_t flags = wfi_read_u8(&in);
    spec.maximize = flags & MAXIMIZE;
    spec.average = flags & AVERAGE;
    spec.error_if_nonfinite = flags & ERROR_IF_NONFINITE;
    if (in.failed || flags > ALL_FLAGS)
        return weft_error_create(WEFT_ERR_PROTOCOL, "the options of an optimizer are malformed");
    wfi_net_lock(agent->net);
    spec.type = find_locked(agent, name);
    wfi_net_unlock(agent->net);
    if (!spec.type)
        return weft_error_create(WEFT_ERR_NOT_FOUND,
                                 "rank %d has no optimizer type \"%.40s\": register it there with "
                                 "weft_agent_register_optimizer",
                                 rank, name);
    weft_error *error = read_options(&in, rank, &spec);
    if (!error && (in.failed || wfi_reader_left(&in)))
        error = weft_error_create(WEFT_ERR_PROTOCOL, "the options of an optimizer are malformed");
    if (!error)
        *out = spec;
    return error;
}
