/* SPDX-License-Identifier: Apache-2.0 */
/* net.c - opening and closing: fabric, store, threads, in this order and back. */
#include "base/alloc.h"
#include "net/net_internal.h"

#include "base/descriptors.h"
#include "base/error.h"
#include "base/guarded.h"
#include "base/text/log.h"
#include "base/socket.h"
#include "sim/sim.h"
#include "topo/share.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- Small answers --------------------------------------------------------------------------------------------- */

int64_t wfi_net_death_timeout_ms(const wfi_net *net)
{
    return net->death_timeout_ms;
}

const char *wfi_net_interface(const wfi_net *net)
{
    return net->ops->iface(net->fabric);
}

int wfi_net_rank(const wfi_net *net)
{
    return net->rank;
}

int wfi_net_world_size(const wfi_net *net)
{
    return net->world_size;
}

const wfi_member *wfi_net_member(const wfi_net *net, int rank)
{
    if (rank < 0 || rank >= net->world_size)
        return NULL;
    if (rank == net->rank)
        return net->self.incarnation ? &net->self : NULL;
    wfi_assert_held(&net->lock);
    return net->peers[rank] ? &net->peers[rank]->member : NULL;
}

int wfi_net_members_here(const wfi_net *net)
{
    int count = 1;
    wfi_assert_held(&net->lock);
    for (int rank = 0; rank < net->world_size && net->ops->same_host; rank++) {
        const wfi_peer *peer = net->peers[rank];
        count += peer && wfi_peer_status(peer) == WEFT_OK && peer->member.address_size == net->self.address_size &&
                 net->ops->same_host(peer->member.address, net->self.address, net->self.address_size);
    }
    return count;
}

void wfi_net_stats(wfi_net *net, weft_stats *out)
{
    wfi_assert_held(&net->lock);
    out->bytes_sent = net->stats.bytes_sent;
    out->bytes_received = net->stats.bytes_received;
    out->frames_sent = net->stats.frames_sent;
    out->frames_received = net->stats.frames_received;
    out->lanes_lost = net->stats.lanes_lost;
    if (net->open && !net->closing)
        wfi_rendezvous_count(net->rendezvous, &net->store_counts);
    out->strangers_refused = net->stats.strangers_refused + net->store_counts.refused;
    out->rendezvous_messages = net->store_counts.messages;
}

bool wfi_net_is_flushed(const wfi_net *net)
{
    for (const wfi_list *link = net->known.next; link != &net->known; link = link->next) {
        const wfi_peer *peer = wfi_container_of(link, const wfi_peer, link);
        bool is_empty = wfi_list_empty(&peer->urgent) && wfi_list_empty(&peer->queued) && wfi_list_empty(&peer->sent) &&
                        wfi_list_empty(&peer->works);
        if (!peer->status && !peer->unreachable && !is_empty)
            return false;
    }
    return true;
}

void wfi_net_begin_closing(wfi_net *net)
{
    if (!net->closing)
        wfi_rendezvous_closing(net->rendezvous);
}

void wfi_net_report_idle(wfi_net *net, uint64_t round, const wfi_idle_report *report)
{
    if (!net->closing)
        wfi_rendezvous_report(net->rendezvous, round, report);
}

void wfi_net_random(weft_sim *sim, void *out, size_t size)
{
    if (sim)
        wfi_sim_random_bytes(sim, out, size);
    else
        randombytes_buf(out, size);
}

/* ---- Opening --------------------------------------------------------------------------------------------------- */

static weft_status refuse(weft_error **error, weft_status code, const char *text)
{
    wfi_error_detail detail = {.code = code, .worker = -1};
    if (error)
        wfi_error_give(error, wfi_error_create(&detail, "%s", text));
    return code;
}

static wfi_net *net_create(const wfi_net_options *options)
{
    const weft_agent_options *agent = options->agent;
    wfi_net *net = wfi_calloc(1, sizeof(*net));
    wfi_net_keys *keys = wfi_guarded_calloc(sizeof(*keys));
    if (!net || !keys) {
        free(net);
        wfi_guarded_free(keys);
        return NULL;
    }
    net->keys = keys;
    wfi_net_keys_make(keys, options->sim);
    wfi_mutex_init(&net->lock);
    wfi_map_init(&net->conns);
    net->sim = options->sim;
    net->fibers = options->sim ? wfi_sim_fibers(options->sim) : NULL;
    net->clock = options->sim ? wfi_sim_clock(options->sim) : &wfi_clock_real;
    net->executor = options->executor;
    net->cores = options->cores;
    net->upcalls = *options->upcalls;
    net->arg = options->arg;
    net->rank = agent->rank;
    net->group = wfi_fiber_current() ? wfi_fiber_group(wfi_fiber_current()) : agent->rank;
    net->world_size = agent->world_size;
    net->no_threads = agent->no_threads;
    net->death_timeout_ms = agent->death_timeout_ms;
    net->queue_limit_bytes = agent->queue_limit_bytes;
    net->driver = (wfi_driver){.drive = wfi_drive, .clock = net->clock};
    wfi_list_init(&net->spare_frames);
    wfi_list_init(&net->spare_chunks);
    wfi_list_init(&net->done_messages);
    wfi_list_init(&net->finished);
    wfi_list_init(&net->early);
    wfi_list_init(&net->known);
    wfi_list_init(&net->leaners);
    net->lean_timer = (wfi_timer){.fire = wfi_lean_due, .reserved = true};
    net->silent_timer = (wfi_timer){.fire = wfi_silent_due, .reserved = true};
    net->turn_timer = (wfi_timer){.fire = wfi_turns_due, .reserved = true};
    wfi_list_init(&net->turns);
    wfi_list_init(&net->turns_again);
    net->starved_timer = (wfi_timer){.fire = wfi_starved_due, .reserved = true};
    for (int kind = 0; kind < 3; kind++)
        wfi_list_init(&net->deferred[kind]);
    atomic_init(&net->next_deadline_ns, WFI_NEVER);
    net->events_fd = net->token.unpark_fd = net->token.load_fd = -1;
    for (int bed = 0; bed < WFI_BEDS; bed++)
        net->token.bed_fds[bed] = -1;
    return net;
}

static weft_status make_descriptors(wfi_net *net, weft_error **error)
{
    if (net->fibers)
        return WEFT_OK;
    net->events_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (net->events_fd < 0 || wfi_token_init(net))
        return wfi_descriptors_fail("make events", error);
    return WEFT_OK;
}

/* Everybody who was there when we joined. */
static weft_status take_table(wfi_net *net, const wfi_member *table)
{
    wfi_peer *peer;
    weft_status status = WEFT_OK;
    net->self = table[net->rank];
    wfi_net_lock(net);
    status = wfi_timers_reserve(net, 4);
    for (int rank = 0; rank < net->world_size && !status; rank++) {
        if (rank != net->rank && table[rank].incarnation)
            status = wfi_peer_create(net, &table[rank], &peer);
    }
    wfi_net_unlock(net);
    return status;
}

/* As with a machine's own name where /etc/hosts has it at 127.0.1.1: workers elsewhere would look for the store on themselves. */
static void warn_of_loopback(const weft_agent_options *agent, int store_fd)
{
    wfi_endpoint where;
    bool is_unbound;
    int here =
        wfi_share_launched(&is_unbound); /* 0: nobody says, and an address that is plainly loopback is meant so */
    if (agent->world_size < 2 || here == agent->world_size || (!here && wfi_host_says_loopback(agent->master_addr)) ||
        wfi_listens_at(store_fd, &where) || !wfi_endpoint_is_loopback(&where))
        return;
    wfi_log_in(
        &(wfi_log_context){.rank = 0}, WEFT_LOG_WARN,
        "MASTER_ADDR \"%s\" is a loopback address on this machine, where rank 0 serves the store: workers of other "
        "machines cannot reach it; name an address of this machine's network, or mend /etc/hosts",
        agent->master_addr);
}

/* Rank 0 binds the store's port before the fabric takes one, whose range may have it. */
static weft_status bind_store(const wfi_net_options *options, int *store_fd, weft_error **error)
{
    const weft_agent_options *agent = options->agent;
    bool binds = agent->rank == 0 && options->store_fd < 0 && !options->sim && agent->master_addr;
    *store_fd = options->store_fd;
    if (!binds)
        return WEFT_OK;
    weft_status status = wfi_listen_at(agent->master_addr, agent->master_port, store_fd, error);
    if (!status)
        warn_of_loopback(agent, *store_fd);
    return status;
}

/* The store's descriptor is the link's from here on. */
static weft_status join(wfi_net *net, const wfi_net_options *options, int store_fd, weft_error **error)
{
    const weft_agent_options *agent = options->agent;
    uint8_t address[WFI_ADDRESS_MAX];
    wfi_rendezvous_events events = *wfi_member_events();
    events.arg = net;
    wfi_rendezvous_options how = {.rank = net->rank,
                                  .world_size = net->world_size,
                                  .elastic = agent->elastic,
                                  .secret = agent->secret,
                                  .secret_size = agent->secret_size,
                                  .name = agent->name,
                                  .address = address,
                                  .address_size = net->ops->address(net->fabric, address),
                                  .public_key = net->keys->public_key,
                                  .master_addr = agent->master_addr,
                                  .master_port = agent->master_port,
                                  .store_fd = store_fd,
                                  .children = options->children,
                                  .sim = options->sim,
                                  .no_threads = agent->no_threads,
                                  .join_timeout_ms = agent->rendezvous_timeout_ms,
                                  .death_timeout_ms = agent->death_timeout_ms,
                                  .clock = net->clock,
                                  .events = &events};
    weft_status status = wfi_rendezvous_open(&how, &net->rendezvous, error);
    if (status)
        return status;
    net->rank = wfi_rendezvous_rank(net->rendezvous);
    net->death_timeout_ms = wfi_rendezvous_death_timeout_ms(net->rendezvous);
    memcpy(net->keys->job, wfi_rendezvous_job_key(net->rendezvous), sizeof(net->keys->job));
    status = take_table(net, wfi_rendezvous_members(net->rendezvous));
    wfi_rendezvous_drop_members(net->rendezvous);
    return status ? refuse(error, WEFT_ERR_MEMORY, "out of memory") : WEFT_OK;
}

weft_status wfi_net_open(const wfi_net_options *options, wfi_net **out, weft_error **error)
{
    int store_fd;
    weft_status status = bind_store(options, &store_fd, error);
    if (status)
        return status;
    wfi_net *net = sodium_init() < 0 ? NULL : net_create(options);
    if (!net) {
        status = refuse(error, WEFT_ERR_MEMORY, "out of memory");
        goto close_store;
    }
    status = make_descriptors(net, error);
    if (!status)
        status = wfi_transport_open(net, options, error);
    if (!status && (wfi_peers_create(net) || wfi_cache_create(net)))
        status = refuse(error, WEFT_ERR_MEMORY, "out of memory");
    if (status)
        goto close_store;
    status = join(net, options, store_fd, error);
    store_fd = -1;
    if (status)
        goto close_net;
    *out = net;
    if (options->upcalls->joined)
        options->upcalls->joined(options->arg);
    if (!net->fibers && !net->no_threads)
        wfi_executor_set_idle(net->executor, wfi_idle_lead, net, wfi_idle_nudge);
    wfi_net_lock(net);
    net->open = true;
    wfi_member_catch_up(net);
    wfi_net_unlock(net);
    status = wfi_threads_start(net);
    if (!status)
        return WEFT_OK;
    (void)refuse(error, status, "a thread could not be started");
    *out = NULL;
    goto close_net;
close_store:
    if (store_fd >= 0)
        close(store_fd);
close_net:
    wfi_net_close(net);
    return status;
}

/* ---- Closing --------------------------------------------------------------------------------------------------- */

static void fail_everything(wfi_net *net)
{
    wfi_net_lock(net);
    for (int rank = 0; rank < net->world_size; rank++) {
        if (net->peers[rank] && net->peers[rank]->owes_ack)
            wfi_peer_send_ack(net->peers[rank]);
    }
    net->closing = true;
    for (int rank = 0; rank < net->world_size; rank++) {
        if (net->peers[rank])
            wfi_peer_fail(net->peers[rank], WEFT_ERR_CLOSED);
    }
    wfi_net_timer_clear(net, &net->lean_timer);
    wfi_net_timer_clear(net, &net->starved_timer);
    wfi_net_timer_clear(net, &net->turn_timer);
    wfi_net_timer_clear(net, &net->silent_timer);
    wfi_net_unlock(net);
}

void wfi_net_forked(wfi_net *net)
{
    wfi_mutex_init(&net->lock);
    net->forked = true;
}

void wfi_net_stop(wfi_net *net)
{
    if (net->stopped)
        return;
    if (net->peers)
        fail_everything(net);
    if (net->rendezvous)
        wfi_rendezvous_close(net->rendezvous);
    if (net->open)
        wfi_threads_stop(net);
    atomic_store(&net->stop, true);
    net->stopped = true;
}

static void free_spares(wfi_net *net)
{
    wfi_list *node;
    while ((node = wfi_list_pop_front(&net->spare_frames)))
        wfi_tx_recycle(net, wfi_container_of(wfi_container_of(node, wfi_flight, link), wfi_tx, flight));
    while ((node = wfi_list_pop_front(&net->spare_chunks)))
        free(wfi_container_of(wfi_container_of(node, wfi_flight, link), wfi_chunk, flight));
}

void wfi_net_close(wfi_net *net)
{
    if (!net)
        return;
    wfi_net_stop(net);
    net->closing = true;
    free_spares(net);
    if (net->cache)
        wfi_reg_cache_destroy(net->cache);
    if (net->fabric)
        net->ops->close(net->fabric);
    wfi_peers_destroy(net);
    wfi_member_forget(net);
    if (net->events_fd >= 0)
        close(net->events_fd);
    wfi_token_fini(net);
    wfi_map_fini(&net->conns);
    free(net->heap);
    wfi_guarded_free(net->keys);
    wfi_mutex_fini(&net->lock);
    free(net);
}
