/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fabric.c - the fabrics of a simulated worker: opening and closing, the kinds of them, and their tables of operations.
 * A worker may open one fabric of each kind. All of them use the worker's links. A fault of one of them
 * (weft_sim_fabric_fail ...) does not affect the others.
 */
#include "base/alloc.h"
#include "sim/world.h"

#include "base/error.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static weft_status fail(weft_error **error, weft_status code, const char *text)
{
    return wfi_error_fail(error, code, "%s", text);
}

static weft_status form_open(const sim_form *form, const wfi_fabric_options *options, wfi_fabric **out,
                             weft_error **error)
{
    if (!options->sim)
        return fail(error, WEFT_ERR_INVALID, "the simulated fabric needs a world (weft_agent_options.sim)");
    if (options->rank < 0 || options->rank >= SIM_RANK_MAX)
        return fail(error, WEFT_ERR_INVALID, "no such rank in a simulated world");
    sim_rank *rank = wfi_sim_rank(options->sim, options->rank);
    sim_fabric *fabric = rank ? wfi_calloc(1, sizeof(*fabric)) : NULL;
    if (!fabric)
        return fail(error, WEFT_ERR_MEMORY, "out of memory");
    if (rank->listens[form->number] || rank->failed[form->number]) {
        free(fabric);
        return fail(error, WEFT_ERR_FABRIC,
                    rank->listens[form->number] ? "this simulated worker has an open fabric already"
                                                : "this simulated fabric has failed here (weft_sim_fabric_fail)");
    }
    fabric->base.ops = form->ops;
    fabric->form = form;
    fabric->sim = options->sim;
    fabric->rank = rank;
    fabric->number = ++rank->fabrics;
    fabric->ready = options->ready;
    fabric->ready_arg = options->ready_arg;
    wfi_list_init(&fabric->ready_link);
    wfi_list_init(&fabric->ends);
    wfi_list_init(&fabric->completions);
    wfi_list_init(&fabric->notices);
    wfi_map_init(&fabric->regions);
    wfi_list_push_back(&options->sim->fabrics, &fabric->link);
    rank->listens[form->number] = fabric;
    *out = &fabric->base;
    return WEFT_OK;
}

/* No event of the fabric happens after this. Its memory stays. */
void wfi_sim_fabric_kill(sim_fabric *fabric)
{
    while (!wfi_list_empty(&fabric->ends))
        wfi_sim_end_close(wfi_container_of(fabric->ends.next, sim_end, link));
    wfi_list_init(&fabric->completions); /* the operations belong to their initiator, which may be gone */
    wfi_list_remove(&fabric->ready_link);
    if (fabric->rank->listens[fabric->form->number] == fabric)
        fabric->rank->listens[fabric->form->number] = NULL;
}

void wfi_sim_fabric_free(sim_fabric *fabric)
{
    wfi_sim_fabric_kill(fabric);
    wfi_sim_regions_free(fabric);
    wfi_list_remove(&fabric->link);
    free(fabric);
}

/*
 * Fabrics of killed workers whose registrations last. Nobody destroys the registration caches of these workers, and
 * the caches close their regions when the memory is unmapped, which may be after the end of the world.
 */
static _Atomic(sim_fabric *) graveyard;

void wfi_sim_fabric_abandon(sim_fabric *fabric)
{
    if (!fabric->form->registers) {
        wfi_sim_fabric_free(fabric);
        return;
    }
    wfi_sim_fabric_kill(fabric);
    wfi_list_remove(&fabric->link);
    fabric->next_grave = atomic_load(&graveyard);
    while (!atomic_compare_exchange_weak(&graveyard, &fabric->next_grave, fabric))
        ;
}

static void fabric_close(wfi_fabric *fabric)
{
    if (fabric)
        wfi_sim_fabric_free((sim_fabric *)fabric);
}

static const wfi_fabric_limits *fabric_limits(const wfi_fabric *fabric)
{
    return &((const sim_fabric *)fabric)->form->limits;
}

static size_t fabric_address(const wfi_fabric *base, uint8_t *out)
{
    const sim_fabric *fabric = (const sim_fabric *)base;
    int rank = fabric->rank->rank;
    sim_address address = {.rank = rank, .fabric = fabric->number, .form = fabric->form->number};
    memcpy(out, &address, sizeof(address));
    return sizeof(address);
}

static void fabric_address_text(const uint8_t *bytes, size_t size, char *out, size_t room)
{
    sim_address address = {.rank = -1};
    if (size == sizeof(address))
        memcpy(&address, bytes, sizeof(address));
    const sim_form *form = &wfi_sim_forms[address.form < SIM_FORMS ? address.form : 0];
    snprintf(out, room, "%s:%d", form->ops->name, address.rank);
}

static const char *fabric_iface(const wfi_fabric *fabric)
{
    (void)fabric;
    return "sim";
}

/* The simulated network has no error texts of its own. */
static const char *fabric_connect_error(const wfi_fabric *fabric)
{
    (void)fabric;
    return NULL;
}

/* ---- The kinds ------------------------------------------------------------------------------------------------- */

#define OPEN_AS(name, number)                                                                                          \
    static weft_status name(const wfi_fabric_options *options, wfi_fabric **out, weft_error **error)                   \
    {                                                                                                                  \
        return form_open(&wfi_sim_forms[number], options, out, error);                                                 \
    }

enum { FORM_PLAIN, FORM_VERBS, FORM_READS, FORM_RDM };

OPEN_AS(plain_open, FORM_PLAIN)
OPEN_AS(verbs_open, FORM_VERBS)
OPEN_AS(reads_open, FORM_READS)
OPEN_AS(rdm_open, FORM_RDM)

#define OPS(its_name, its_number, its_open, its_write)                                                                 \
    {                                                                                                                  \
        .name = its_name, .number = its_number, .open = its_open, .close = fabric_close, .limits = fabric_limits,      \
        .address = fabric_address, .address_text = fabric_address_text, .iface = fabric_iface,                         \
        .lane_open = wfi_sim_lane_open, .lane_take = wfi_sim_lane_take, .connect = wfi_sim_connect,                    \
        .connect_error = fabric_connect_error, .reject = wfi_sim_reject, .lane_close = wfi_sim_lane_close,             \
        .post_recv = wfi_sim_post_recv, .send = wfi_sim_send, .read = wfi_sim_read, .write = its_write,                \
        .pass = wfi_sim_pass, .wake = wfi_sim_wake, .region_open = wfi_sim_region_open,                                \
        .region_close = wfi_sim_region_close, .poll = wfi_sim_poll, .poll_events = wfi_sim_poll_events,                \
        .events_arm = wfi_sim_events_arm, .events_fd = wfi_sim_no_fd, .wait_fd = wfi_sim_no_fd,                        \
        .may_sleep = wfi_sim_may_sleep,                                                                                \
    }

const wfi_fabric_ops wfi_fabric_sim = OPS("sim", 64, plain_open, wfi_sim_write);
const wfi_fabric_ops wfi_fabric_sim_verbs = OPS("sim-verbs", 65, verbs_open, wfi_sim_write);
const wfi_fabric_ops wfi_fabric_sim_reads = OPS("sim-reads", 66, reads_open, NULL);
const wfi_fabric_ops wfi_fabric_sim_rdm = OPS("sim-rdm", 67, rdm_open, wfi_sim_write);

#define LIMITS .message_max = SIM_MESSAGE_MAX, .rma_max = SIM_RMA_MAX

const sim_form wfi_sim_forms[SIM_FORMS] = {
    [FORM_PLAIN] = {.ops = &wfi_fabric_sim,
                    .number = FORM_PLAIN,
                    .limits = {LIMITS, .long_pays = true, .writes = true, .keys_per_transfer = true},
                    .key_mask = UINT64_MAX},
    /* Keys are few, so that a closed region's key soon belongs to another region. */
    [FORM_VERBS] = {.ops = &wfi_fabric_sim_verbs,
                    .number = FORM_VERBS,
                    .limits = {LIMITS, .writes = true, .needs_local_regions = true, .open_blocks = true},
                    .registers = true,
                    .regions_max = 16384,
                    .key_mask = 0xffff,
                    .quiet = true,
                    .unheard_ns = 400000000},
    [FORM_READS] = {.ops = &wfi_fabric_sim_reads,
                    .number = FORM_READS,
                    .limits = {LIMITS, .keys_per_transfer = true},
                    .key_mask = UINT64_MAX},
    [FORM_RDM] = {.ops = &wfi_fabric_sim_rdm,
                  .number = FORM_RDM,
                  .limits = {LIMITS, .writes = true, .keys_per_transfer = true},
                  .key_mask = UINT64_MAX,
                  .quiet = true,
                  .closes_quietly = true,
                  .unheard_ns = 2000000000,
                  .read_delay_ns = 500000},
};

const sim_form *wfi_sim_form_find(const char *name)
{
    for (size_t i = 0; name && i < SIM_FORMS; i++)
        if (strcmp(wfi_sim_forms[i].ops->name, name) == 0)
            return &wfi_sim_forms[i];
    return NULL;
}
