/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous.c - a worker's link to the store: joining, heartbeats, upcalls; without its transport. */
#include "net/rendezvous_link.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NS_PER_MS 1000000ull
#define GRACE_MS 2000 /* where the bound is switched off */

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
    if (options->address_size > WFI_STORE_ADDRESS_MAX)
        return refuse_options(error, "the fabric's address is too long, in bytes", (int)options->address_size);
    bool wants_port = !options->sim && (options->rank != 0 || options->store_fd < 0);
    if (wants_port && (options->master_port < 1 || options->master_port > 65535))
        return refuse_options(error, "MASTER_PORT is not set, or outside 1..65535", options->master_port);
    if (wants_port && (!options->master_addr || !*options->master_addr))
        return refuse_options(error, "MASTER_ADDR is not set at rank", options->rank);
    return WEFT_OK;
}

void wfi_link_init(wfi_rendezvous *link, const wfi_rendezvous_options *options, const wfi_link_shell *shell)
{
    link->shell = shell;
    link->clock = options->clock;
    link->events = *options->events;
    link->rank = options->rank;
    link->world_size = options->world_size;
    link->state = WFI_LINK_JOINING;
    wfi_mutex_init(&link->lock);
}

void wfi_link_fini(wfi_rendezvous *link)
{
    free(link->world.members);
    wfi_mutex_fini(&link->lock);
}

/* ---- Joining --------------------------------------------------------------------------------------------------- */

size_t wfi_link_join_frame(const wfi_rendezvous_options *options, int64_t patience_ms, uint8_t *out)
{
    wfi_store_message join = {.type = WFI_STORE_JOIN,
                              .rank = options->rank,
                              .world_size = options->world_size,
                              .elastic = options->elastic,
                              .timeout_ms = patience_ms,
                              .address_size = options->address_size};
    snprintf(join.text, sizeof join.text, "%s", options->name ? options->name : "");
    if (options->address_size)
        memcpy(join.address, options->address, options->address_size);
    return wfi_store_encode(&join, out);
}

static bool refused(wfi_rendezvous *link, weft_status status, const char *text)
{
    link->refusal = status;
    snprintf(link->refusal_text, sizeof link->refusal_text, "%s", text);
    return true;
}

static bool take_world(wfi_rendezvous *link, const uint8_t *frame, size_t size)
{
    wfi_store_world world;
    weft_status status = wfi_store_decode_world(frame, size, &world);
    if (status)
        return refused(link, status, "the store's table could not be read");
    if (world.world_size != link->world_size) {
        free(world.members);
        return refused(link, WEFT_ERR_PROTOCOL, "the store's table is not of our size");
    }
    if (link->rank >= 0 && link->rank != world.rank) {
        free(world.members);
        return refused(link, WEFT_ERR_PROTOCOL, "the store gave us another rank than ours");
    }
    link->world = world;
    link->rank = world.rank;
    link->heard_ns = link->ticked_ns = link->beat_ns = wfi_now(link->clock);
    wfi_mutex_lock(&link->lock);
    link->state = WFI_LINK_MEMBER;
    wfi_mutex_unlock(&link->lock);
    return true;
}

bool wfi_link_join_answered(wfi_rendezvous *link, const uint8_t *frame, size_t size)
{
    wfi_store_message message;
    if (size >= WFI_STORE_HEAD && wfi_store_frame_type(frame) == WFI_STORE_WORLD)
        return take_world(link, frame, size);
    weft_status status = wfi_store_decode(frame, size, &message);
    if (status || message.type != WFI_STORE_REFUSE)
        return refused(link, WEFT_ERR_PROTOCOL,
                       "what answers at MASTER_PORT does not speak as a store of this version");
    return refused(link, message.status, message.text);
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

/* True for the one who ends the link: only that one makes the last upcall. */
static bool go_out(wfi_rendezvous *link)
{
    wfi_mutex_lock(&link->lock);
    bool was_member = link->state == WFI_LINK_MEMBER;
    link->state = WFI_LINK_OUT;
    wfi_mutex_unlock(&link->lock);
    return was_member;
}

static void send_message(wfi_rendezvous *link, const wfi_store_message *message)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    size_t size = wfi_store_encode(message, frame);
    wfi_mutex_lock(&link->lock);
    if (link->state == WFI_LINK_MEMBER)
        link->shell->send(link, frame, size);
    wfi_mutex_unlock(&link->lock);
}

static void send_heartbeat(wfi_rendezvous *link)
{
    wfi_store_message heartbeat = {.type = WFI_STORE_HEARTBEAT};
    send_message(link, &heartbeat);
}

void wfi_link_lost(wfi_rendezvous *link, const char *why)
{
    if (!go_out(link))
        return;
    wfi_log_in(&(wfi_log_context){.rank = link->rank, .clock = link->clock}, WEFT_LOG_INFO, "the store is lost: %s",
               why);
    link->events.store_lost(link->events.arg, why);
}

static void evicted(wfi_rendezvous *link, const char *why)
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
    if (!names_another(link, message) || !link->events.joined)
        return;
    wfi_store_member_of_message(&member, message);
    link->events.joined(link->events.arg, &member);
}

static void dispatch(wfi_rendezvous *link, const wfi_store_message *message)
{
    const wfi_rendezvous_events *events = &link->events;
    switch (message->type) {
    case WFI_STORE_SPEAK:
        send_heartbeat(link);
        break;
    case WFI_STORE_JOINED:
        joined(link, message);
        break;
    case WFI_STORE_DIED:
        if (names_another(link, message))
            events->died(events->arg, message->rank, message->incarnation, message->text);
        break;
    case WFI_STORE_LEFT:
        if (names_another(link, message))
            events->left(events->arg, message->rank, message->incarnation);
        break;
    case WFI_STORE_EVICTED:
        evicted(link, message->text);
        break;
    case WFI_STORE_PROBE:
        events->probe(events->arg, message->round);
        break;
    case WFI_STORE_TERMINATED:
        events->terminated(events->arg);
        break;
    default: /* a heartbeat: its coming is all it says */
        break;
    }
}

void wfi_link_received(wfi_rendezvous *link, const uint8_t *frame, size_t size)
{
    wfi_store_message message;
    if (wfi_link_is_out(link))
        return;
    if (wfi_store_decode(frame, size, &message)) {
        wfi_link_lost(link, "the store sent malformed bytes");
        return;
    }
    link->heard_ns = wfi_now(link->clock);
    dispatch(link, &message);
}

uint64_t wfi_link_tick(wfi_rendezvous *link)
{
    int64_t bound_ms = link->world.death_timeout_ms;
    if (bound_ms < 0 || wfi_link_is_out(link))
        return WFI_NEVER;
    uint64_t now_ns = wfi_now(link->clock), bound_ns = (uint64_t)bound_ms * NS_PER_MS;
    /* We were stopped, or got no processor: what the store sent meanwhile (an eviction, say) is yet to be read. */
    if (now_ns - link->ticked_ns > bound_ns / 2)
        link->heard_ns = now_ns;
    link->ticked_ns = now_ns;
    if (now_ns - link->heard_ns >= bound_ns && now_ns > link->heard_ns) {
        wfi_link_lost(link, "the store is silent");
        return WFI_NEVER;
    }
    if (now_ns >= link->beat_ns) {
        link->beat_ns = now_ns + bound_ns / 4 + 1;
        send_heartbeat(link);
    }
    uint64_t silent_ns = link->heard_ns + bound_ns;
    return silent_ns < link->beat_ns ? silent_ns : link->beat_ns;
}

bool wfi_link_say_goodbye(wfi_rendezvous *link)
{
    wfi_store_message message = {.type = WFI_STORE_GOODBYE};
    uint8_t frame[WFI_STORE_SMALL_MAX];
    size_t size = wfi_store_encode(&message, frame);
    wfi_mutex_lock(&link->lock);
    bool was_member = link->state == WFI_LINK_MEMBER;
    if (was_member)
        link->shell->send(link, frame, size);
    link->state = WFI_LINK_OUT; /* in one go: the store closes the connection at that word, which is no loss of it */
    wfi_mutex_unlock(&link->lock);
    return was_member;
}

int64_t wfi_link_grace_ms(const wfi_rendezvous *link)
{
    return link->world.death_timeout_ms < 0 ? GRACE_MS : link->world.death_timeout_ms;
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

const uint8_t *wfi_rendezvous_job_key(const wfi_rendezvous *link)
{
    return link->world.job_key;
}

void wfi_rendezvous_suspect(wfi_rendezvous *link, int rank, uint32_t incarnation, const char *why)
{
    wfi_store_message message = {.type = WFI_STORE_SUSPECT, .rank = rank, .incarnation = incarnation};
    snprintf(message.text, sizeof message.text, "%s", why ? why : "");
    send_message(link, &message);
}

void wfi_rendezvous_closing(wfi_rendezvous *link)
{
    wfi_store_message message = {.type = WFI_STORE_CLOSING};
    send_message(link, &message);
}

void wfi_rendezvous_report(wfi_rendezvous *link, uint64_t round, const wfi_idle_report *report)
{
    wfi_store_message message = {.type = WFI_STORE_REPORT, .round = round, .report = *report};
    send_message(link, &message);
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

int wfi_rendezvous_rank(const wfi_rendezvous *link)
{
    return link->rank;
}

void wfi_rendezvous_need(wfi_rendezvous *link, int rank, uint32_t incarnation, bool needed)
{
    (void)link, (void)rank, (void)incarnation, (void)needed;
}
