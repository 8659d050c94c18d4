/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous.c - the functions of rendezvous.h: they check the options and call session.c, post.c and events.c. */
#include "job/link/link.h"

#include "base/simulation.h"
#include "base/utf8.h"
#include "job/protocol/secret.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

weft_status wfi_link_check(const wfi_rendezvous_options *options, weft_error **error)
{
    if (options->world_size < 1 || options->world_size > WFI_STORE_WORKERS_MAX)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "the world size is outside 1..65536: %d", options->world_size);
    bool any_rank = options->elastic && options->rank == -1;
    if (!any_rank && (options->rank < 0 || options->rank >= options->world_size))
        return wfi_error_fail(error, WEFT_ERR_INVALID, "the rank is outside 0..world size - 1: %d", options->rank);
    bool unnamed = !options->name || !*options->name;
    if (unnamed ? !any_rank : !wfi_store_name_is_well_formed(options->name))
        return wfi_error_fail(error, WEFT_ERR_INVALID, "the name is not 1..127 of A-Z a-z 0-9 - _ : at rank: %d",
                              options->rank);
    if (options->secret_size > WFI_SECRET_MAX || (options->secret_size && !options->secret))
        return wfi_error_fail(error, WEFT_ERR_INVALID, "the job's secret is too long, in bytes: %d",
                              (int)options->secret_size);
    if (options->addresses_size > WFI_STORE_ADDRESSES_MAX)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "the fabrics' addresses are too long, in bytes: %d",
                              (int)options->addresses_size);
    bool wants_port = !options->sim && (options->rank != 0 || options->store_fd < 0);
    if (wants_port && (options->master_port < 1 || options->master_port > 65535))
        return wfi_error_fail(error, WEFT_ERR_INVALID, "MASTER_PORT is not set, or outside 1..65535: %d",
                              options->master_port);
    if (wants_port && (!options->master_addr || !*options->master_addr))
        return wfi_error_fail(error, WEFT_ERR_INVALID, "MASTER_ADDR is not set at rank: %d", options->rank);
    return WEFT_OK;
}

weft_status wfi_rendezvous_open(const wfi_rendezvous_options *options, wfi_rendezvous **out, weft_error **error)
{
    weft_status status = wfi_link_check(options, error);
    if (status) {
        if (options->store_fd >= 0 && !options->sim)
            close(options->store_fd);
        return status;
    }
    return options->sim ? wfi_simulation->link_open(options, out, error) : wfi_link_open_socket(options, out, error);
}

const wfi_member *wfi_rendezvous_members(const wfi_rendezvous *link)
{
    return link->world.members;
}

void wfi_rendezvous_drop_members(wfi_rendezvous *link)
{
    free(link->world.members);
    link->world.members = NULL;
}

const uint8_t *wfi_rendezvous_job_key(const wfi_rendezvous *link)
{
    return link->job_key;
}

void wfi_rendezvous_suspect(wfi_rendezvous *link, int rank, uint32_t incarnation, const char *why)
{
    wfi_store_message message = {.type = WFI_STORE_SUSPECT, .rank = rank, .incarnation = incarnation};
    snprintf(message.text, sizeof(message.text), "%s", why ? why : "");
    wfi_link_post(link, &message);
}

void wfi_rendezvous_closing(wfi_rendezvous *link)
{
    wfi_store_message message = {.type = WFI_STORE_CLOSING};
    wfi_mutex_lock(&link->lock);
    if (!link->closing) {
        link->closing = true;
        (void)wfi_link_post_locked(link, &message);
    }
    wfi_mutex_unlock(&link->lock);
}

void wfi_rendezvous_serving(wfi_rendezvous *link, uint64_t number)
{
    wfi_store_message message = {.type = WFI_STORE_SERVING, .wave = number};
    wfi_mutex_lock(&link->lock);
    link->serving = number;
    (void)wfi_link_post_locked(link, &message);
    wfi_mutex_unlock(&link->lock);
}

void wfi_rendezvous_follow(wfi_rendezvous *link)
{
    wfi_link_post(link,
                  &(wfi_store_message){.type = WFI_STORE_ENDING, .rank = link->rank, .incarnation = link->incarnation});
}

bool wfi_rendezvous_interest(wfi_rendezvous *link, int rank, uint32_t incarnation, bool on)
{
    wfi_store_message message = {.type = WFI_STORE_NEED, .rank = rank, .incarnation = incarnation, .on = on};
    if (rank < 0 || rank >= link->world_size || rank == link->rank || incarnation == 0)
        return true;
    wfi_mutex_lock(&link->lock);
    bool is_news = link->incarnations[rank] == incarnation && wfi_link_flip_interest(link, rank, on);
    bool said = !is_news || wfi_link_post_locked(link, &message);
    if (!said)
        (void)wfi_link_flip_interest(link, rank, !on);
    wfi_mutex_unlock(&link->lock);
    return said;
}

void wfi_rendezvous_report(wfi_rendezvous *link, uint64_t wave, const wfi_idle_report *report)
{
    wfi_store_message message = {.type = WFI_STORE_REPORT, .wave = wave, .report = *report};
    wfi_link_post(link, &message);
}

void wfi_rendezvous_leaving(wfi_rendezvous *link)
{
    wfi_link_post(
        link, &(wfi_store_message){.type = WFI_STORE_LEAVING, .rank = link->rank, .incarnation = link->incarnation});
}

void wfi_rendezvous_end_job(wfi_rendezvous *link, const char *why)
{
    wfi_store_message message = {.type = WFI_STORE_END};
    snprintf(message.text, sizeof(message.text), "%.*s", wfi_utf8_fit(why, sizeof(message.text) - 1), why);
    wfi_link_post(link, &message);
}

void wfi_rendezvous_await(wfi_rendezvous *link)
{
    wfi_link_post(link, &(wfi_store_message){.type = WFI_STORE_AWAIT});
}

void wfi_rendezvous_sync(wfi_rendezvous *link, uint64_t number)
{
    wfi_link_post(link, &(wfi_store_message){.type = WFI_STORE_SYNC, .wave = number});
}

void wfi_rendezvous_close(wfi_rendezvous *link)
{
    if (link)
        link->shell->close(link);
}

int wfi_rendezvous_pump(wfi_rendezvous *link, uint64_t *due_ns)
{
    return link->shell->pump(link, due_ns);
}

void wfi_rendezvous_count(const wfi_rendezvous *link, wfi_store_counts *out)
{
    link->shell->count(link, out);
}

int64_t wfi_rendezvous_death_timeout_ms(const wfi_rendezvous *link)
{
    return link->world.death_timeout_ms;
}

int wfi_rendezvous_rank(const wfi_rendezvous *link)
{
    return link->rank;
}
