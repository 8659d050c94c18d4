/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous.c - a worker's link to the store: its life, its upcalls, its interface. Its wires: session.c. */
#include "job/link/link.h"

#include "base/guarded.h"
#include "base/log.h"
#include "job/protocol/secret.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NS_PER_MS 1000000ull
#define GRACE_MS 2000 /* where the bound is switched off */
#define RESERVE 64    /* letters: that we close, and our reports */
#define RESERVED_BYTES 64

static weft_status refuse_options(weft_error **error, const char *what, int value)
{
    wfi_error_detail detail = {.code = WEFT_ERR_INVALID, .worker = -1};
    wfi_error_give(error, wfi_error_create(&detail, "%s: %d", what, value));
    return detail.code;
}

weft_status wfi_link_check(const wfi_rendezvous_options *options, weft_error **error)
{
    if (options->world_size < 1 || options->world_size > WFI_STORE_WORKERS_MAX)
        return refuse_options(error, "the world size is outside 1..65536", options->world_size);
    bool any_rank = options->elastic && options->rank == -1;
    if (!any_rank && (options->rank < 0 || options->rank >= options->world_size))
        return refuse_options(error, "the rank is outside 0..world size - 1", options->rank);
    bool unnamed = !options->name || !*options->name;
    if (unnamed ? !any_rank : !wfi_store_name_is_well_formed(options->name))
        return refuse_options(error, "the name is not 1..127 of A-Z a-z 0-9 - _ : at rank", options->rank);
    if (options->secret_size > WFI_SECRET_MAX || (options->secret_size && !options->secret))
        return refuse_options(error, "the job's secret is too long, in bytes", (int)options->secret_size);
    if (options->address_size > WFI_STORE_ADDRESS_MAX)
        return refuse_options(error, "the fabric's address is too long, in bytes", (int)options->address_size);
    bool wants_port = !options->sim && (options->rank != 0 || options->store_fd < 0);
    if (wants_port && (options->master_port < 1 || options->master_port > 65535))
        return refuse_options(error, "MASTER_PORT is not set, or outside 1..65535", options->master_port);
    if (wants_port && (!options->master_addr || !*options->master_addr))
        return refuse_options(error, "MASTER_ADDR is not set at rank", options->rank);
    return WEFT_OK;
}

static void free_secrets(wfi_rendezvous *link)
{
    wfi_guarded_free(link->secret);
    wfi_guarded_free(link->wires);
    wfi_guarded_free(link->job_key);
}

static bool make_secrets(wfi_rendezvous *link, const wfi_rendezvous_options *options)
{
    link->secret = wfi_guarded_calloc(options->secret_size);
    link->wires = wfi_guarded_calloc(2 * sizeof *link->wires);
    link->job_key = wfi_guarded_calloc(WFI_JOB_KEY_BYTES);
    if (!link->secret || !link->wires || !link->job_key) {
        free_secrets(link);
        return false;
    }
    if (options->secret_size)
        memcpy(link->secret, options->secret, options->secret_size);
    link->secret_size = options->secret_size;
    return true;
}

static void plan_join(wfi_rendezvous *link, const wfi_rendezvous_options *options)
{
    wfi_store_message *join = &link->join;
    *join = (wfi_store_message){.type = WFI_STORE_JOIN,
                                .rank = options->rank,
                                .world_size = options->world_size,
                                .elastic = options->elastic,
                                .address_size = options->address_size};
    snprintf(join->text, sizeof join->text, "%s", options->name ? options->name : "");
    if (options->address_size)
        memcpy(join->address, options->address, options->address_size);
    if (options->public_key)
        memcpy(join->public_key, options->public_key, sizeof join->public_key);
    link->patience_ns = wfi_deadline(link->clock, options->join_timeout_ms);
}

weft_status wfi_link_init(wfi_rendezvous *link, const wfi_rendezvous_options *options, const wfi_link_shell *shell)
{
    if (sodium_init() < 0 || !make_secrets(link, options))
        return WEFT_ERR_MEMORY;
    if (wfi_mail_reserve_init(&link->reserve, RESERVE, RESERVED_BYTES)) {
        free_secrets(link);
        return WEFT_ERR_MEMORY;
    }
    link->shell = shell;
    link->clock = options->clock;
    link->events = *options->events;
    link->rank = options->rank;
    link->world_size = options->world_size;
    link->world.death_timeout_ms = -1;
    link->state = WFI_LINK_JOINING;
    wfi_mail_init(&link->mail, &link->reserve);
    wfi_mutex_init(&link->lock);
    plan_join(link, options);
    return WEFT_OK;
}

void wfi_link_fini(wfi_rendezvous *link)
{
    free_secrets(link);
    sodium_memzero(link->world.token, sizeof link->world.token);
    free(link->world.members);
    free(link->incarnations);
    free(link->needs);
    wfi_mail_fini(&link->mail);
    wfi_mail_reserve_fini(&link->reserve);
    wfi_mutex_fini(&link->lock);
}

int64_t wfi_link_patience_ms(const wfi_rendezvous *link)
{
    uint64_t now_ns = wfi_now(link->clock);
    if (link->patience_ns == WFI_NEVER)
        return -1;
    return link->patience_ns > now_ns ? (int64_t)((link->patience_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS) : 0;
}

weft_status wfi_link_refused(const wfi_rendezvous *link, weft_error **error)
{
    wfi_error_detail detail = {.code = link->refusal, .worker = -1};
    wfi_error_give(error, wfi_error_create(&detail, "%s", link->refusal_text));
    return detail.code;
}

/* ---- A member's life ------------------------------------------------------------------------------------------- */

bool wfi_link_is_out(wfi_rendezvous *link)
{
    wfi_mutex_lock(&link->lock);
    bool out = link->state == WFI_LINK_OUT;
    wfi_mutex_unlock(&link->lock);
    return out;
}

bool wfi_link_is_steady(const wfi_rendezvous *link)
{
    return link->wires[WFI_CURRENT].stage == WFI_WIRE_LIVE && link->wires[WFI_NEXT].stage == WFI_WIRE_NONE;
}

/* True for the one who ends the link: only that one makes the last upcall. */
static bool go_out(wfi_rendezvous *link)
{
    wfi_mutex_lock(&link->lock);
    bool was_member = link->state == WFI_LINK_MEMBER;
    link->state = WFI_LINK_OUT;
    wfi_mutex_unlock(&link->lock);
    return was_member;
}

void wfi_link_lost(wfi_rendezvous *link, const char *why)
{
    if (!go_out(link))
        return;
    wfi_log_in(&(wfi_log_context){.rank = link->rank, .clock = link->clock}, WEFT_LOG_INFO, "the store is lost: %s",
               why);
    link->events.store_lost(link->events.arg, why);
}

void wfi_link_evicted(wfi_rendezvous *link, const char *why)
{
    if (!go_out(link))
        return;
    wfi_log_in(&(wfi_log_context){.rank = link->rank, .clock = link->clock}, WEFT_LOG_INFO, "evicted: %s", why);
    link->events.evicted(link->events.arg, why);
}

/* News of a rank that does not exist, or of ourselves, would be the store's nonsense. */
static bool names_another(const wfi_rendezvous *link, const wfi_store_message *message)
{
    return message->rank >= 0 && message->rank < link->world_size && message->rank != link->rank;
}

static void joined(wfi_rendezvous *link, const wfi_store_message *message)
{
    wfi_member member;
    if (!names_another(link, message))
        return;
    wfi_store_member_of_message(&member, message);
    wfi_mutex_lock(&link->lock);
    link->incarnations[member.rank] = member.incarnation;
    wfi_mutex_unlock(&link->lock);
    if (link->events.joined)
        link->events.joined(link->events.arg, &member);
}

static bool flip_need(wfi_rendezvous *link, int rank, bool needed)
{
    uint8_t bit = (uint8_t)(1u << (rank % 8));
    if (needed == ((link->needs[rank / 8] & bit) != 0))
        return false;
    link->needs[rank / 8] ^= bit;
    link->need_count += needed ? 1 : -1;
    return true;
}

/* Somebody is gone, and so is our need of it. False: of whom the store tells is nobody we know. */
static bool forget(wfi_rendezvous *link, const wfi_store_message *message)
{
    if (!names_another(link, message))
        return false;
    wfi_mutex_lock(&link->lock);
    link->incarnations[message->rank] = 0;
    (void)flip_need(link, message->rank, false);
    wfi_mutex_unlock(&link->lock);
    return true;
}

void wfi_link_dispatch(wfi_rendezvous *link, const wfi_store_message *message)
{
    const wfi_rendezvous_events *events = &link->events;
    switch (message->type) {
    case WFI_STORE_SPEAK:
        wfi_link_post(link, &(wfi_store_message){.type = WFI_STORE_HEARTBEAT, .received = link->received});
        break;
    case WFI_STORE_BEAT:
        link->told_to_beat = message->on;
        break;
    case WFI_STORE_JOINED:
        joined(link, message);
        break;
    case WFI_STORE_DIED:
        if (forget(link, message))
            events->died(events->arg, message->rank, message->incarnation, message->text);
        break;
    case WFI_STORE_LEFT:
        if (forget(link, message))
            events->left(events->arg, message->rank, message->incarnation);
        break;
    case WFI_STORE_DIAL:
        events->dial(events->arg, message->rank, message->incarnation);
        break;
    case WFI_STORE_EVICTED:
        wfi_link_evicted(link, message->text);
        break;
    case WFI_STORE_PROBE:
        events->probe(events->arg, message->round);
        break;
    case WFI_STORE_TERMINATED:
        events->terminated(events->arg);
        break;
    default: /* what makes no sense now: its coming is all it says */
        break;
    }
}

bool wfi_link_say_goodbye(wfi_rendezvous *link)
{
    wfi_store_message message = {.type = WFI_STORE_GOODBYE};
    wfi_mutex_lock(&link->lock);
    bool is_connected = link->state == WFI_LINK_MEMBER && link->wires[WFI_CURRENT].stage == WFI_WIRE_LIVE;
    (void)wfi_link_post_locked(link, &message);
    link->state = WFI_LINK_OUT; /* in one go: the store closes the connection at that word, which is no loss of it */
    wfi_mutex_unlock(&link->lock);
    return is_connected;
}

int64_t wfi_link_grace_ms(const wfi_rendezvous *link)
{
    int64_t bound_ms = link->world.death_timeout_ms;
    return bound_ms < 0 || bound_ms > GRACE_MS ? GRACE_MS : bound_ms;
}

/* ---- The interface --------------------------------------------------------------------------------------------- */

weft_status wfi_rendezvous_open(const wfi_rendezvous_options *options, wfi_rendezvous **out, weft_error **error)
{
    weft_status status = wfi_link_check(options, error);
    if (status) {
        if (options->store_fd >= 0 && !options->sim)
            close(options->store_fd);
        return status;
    }
    return options->sim ? wfi_link_open_sim(options, out, error) : wfi_link_open_socket(options, out, error);
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
    snprintf(message.text, sizeof message.text, "%s", why ? why : "");
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

bool wfi_rendezvous_need(wfi_rendezvous *link, int rank, uint32_t incarnation, bool needed)
{
    wfi_store_message message = {.type = WFI_STORE_NEED, .rank = rank, .incarnation = incarnation, .on = needed};
    if (rank < 0 || rank >= link->world_size || rank == link->rank || incarnation == 0)
        return true;
    wfi_mutex_lock(&link->lock);
    bool is_news = link->incarnations[rank] == incarnation && flip_need(link, rank, needed);
    bool said = !is_news || wfi_link_post_locked(link, &message);
    if (!said)
        (void)flip_need(link, rank, !needed);
    wfi_mutex_unlock(&link->lock);
    return said;
}

void wfi_rendezvous_report(wfi_rendezvous *link, uint64_t round, const wfi_idle_report *report)
{
    wfi_store_message message = {.type = WFI_STORE_REPORT, .round = round, .report = *report};
    wfi_link_post(link, &message);
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
