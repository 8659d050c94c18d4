/* SPDX-License-Identifier: Apache-2.0 */
/* net.c - opens the fabrics, the link to the store, and the threads, in this order; closes them in reverse order. */
#include "base/alloc.h"
#include "net/net.h"

#include "base/descriptors.h"
#include "base/error.h"
#include "base/guarded.h"
#include "base/text/log.h"
#include "base/socket.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "mem/cuda.h"
#include "topo/machine.h"
#include "topo/quota.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- Queries --------------------------------------------------------------------------------------------------- */

const wfi_member *wfi_net_member(const wfi_net *net, int rank)
{
    if (rank < 0 || rank >= net->transport.world_size)
        return NULL;
    if (rank == net->transport.rank)
        return net->transport.self.incarnation ? &net->transport.self : NULL;
    wfi_assert_held(&net->progress.lock);
    return net->transport.peers[rank] ? &net->transport.peers[rank]->member : NULL;
}

bool wfi_net_same_host(const wfi_net *net, int a, int b)
{
    const wfi_member *one = wfi_net_member(net, a), *other = wfi_net_member(net, b);
    return a == b || (one && other && one->machine && one->machine == other->machine);
}

bool wfi_net_can_pass(const wfi_net *net, int rank)
{
    const wfi_member *member = wfi_net_member(net, rank);
    return member && wfi_addresses_pass(member);
}

int wfi_net_members_here(const wfi_net *net)
{
    int count = 1;
    wfi_assert_held(&net->progress.lock);
    for (int rank = 0; rank < net->transport.world_size; rank++) {
        const wfi_peer *peer = net->transport.peers[rank];
        count += peer && wfi_peer_status(peer) == WEFT_OK && wfi_net_same_host(net, rank, net->transport.rank);
    }
    return count;
}

void wfi_net_stats(wfi_net *net, weft_stats *out)
{
    wfi_assert_held(&net->progress.lock);
    out->bytes_sent = net->transport.stats.bytes_sent;
    out->bytes_received = net->transport.stats.bytes_received;
    out->frames_sent = net->transport.stats.frames_sent;
    out->frames_received = net->transport.stats.frames_received;
    out->connections_lost = net->transport.stats.connections_lost;
    if (net->open && !net->transport.closing)
        wfi_rendezvous_count(net->rendezvous, &net->store_counts);
    out->unauthenticated_refused = net->transport.stats.unauthenticated_refused + net->store_counts.refused;
    out->rendezvous_messages = net->store_counts.messages;
}

bool wfi_net_is_flushed(const wfi_net *net)
{
    WFI_FOR_LIST (const wfi_peer, peer, &net->transport.known, link) {
        bool is_empty = !wfi_peer_has_to_send(peer) && wfi_list_empty(&wfi_peer_bulk(peer)->transfers);
        if (!peer->status && !peer->unreachable && !is_empty)
            return false;
    }
    return true;
}

void wfi_net_untake(wfi_net *net)
{
    wfi_assert_held(&net->progress.lock);
    net->transport.untaken = true;
}

uint64_t wfi_net_sync(wfi_net *net)
{
    wfi_assert_held(&net->progress.lock);
    net->sync_wanted = net->sync_sent + 1; /* a sync in flight may have reached the store too early */
    wfi_member_sync(net);
    return net->sync_wanted;
}

void wfi_net_leave(wfi_net *net)
{
    if (!net->transport.closing)
        wfi_rendezvous_leaving(net->rendezvous);
}

void wfi_net_end_job(wfi_net *net, const char *why)
{
    if (!net->transport.closing)
        wfi_rendezvous_end_job(net->rendezvous, why);
}

void wfi_net_await(wfi_net *net)
{
    if (!net->transport.closing)
        wfi_rendezvous_await(net->rendezvous);
}

void wfi_net_begin_closing(wfi_net *net)
{
    if (!net->transport.closing)
        wfi_rendezvous_closing(net->rendezvous);
}

void wfi_net_serve(wfi_net *net, uint64_t number)
{
    if (!net->transport.closing)
        wfi_rendezvous_serving(net->rendezvous, number);
}

void wfi_net_follow_ending(wfi_net *net)
{
    if (!net->transport.closing && !net->follows_ending)
        wfi_rendezvous_follow(net->rendezvous);
    net->follows_ending = true;
}

void wfi_net_report_idle(wfi_net *net, uint64_t wave, const wfi_idle_report *report)
{
    if (!net->transport.closing)
        wfi_rendezvous_report(net->rendezvous, wave, report);
}

/* ---- The link as a source of progress -------------------------------------------------------------------------- */

static size_t link_none(wfi_source *source) /* it has neither completions nor outstanding operations */
{
    (void)source;
    return 0;
}

static void link_take(wfi_source *source)
{
    (void)source; /* link_events handles everything */
}

static size_t link_events(wfi_source *source)
{
    wfi_net *net = wfi_container_of(source, wfi_net, link_source);
    net->link_due_ns = WFI_NEVER;
    net->link_fd = wfi_rendezvous_pump(net->rendezvous, &net->link_due_ns);
    return 0;
}

static bool link_events_arm(wfi_source *source, uint64_t *due_ns)
{
    const wfi_net *net = wfi_container_of(source, wfi_net, link_source);
    *due_ns = net->link_due_ns < *due_ns ? net->link_due_ns : *due_ns;
    return true;
}

static int link_events_fd(wfi_source *source)
{
    return wfi_container_of(source, wfi_net, link_source)->link_fd;
}

static int link_wait_fd(wfi_source *source)
{
    (void)source;
    return -1;
}

static wfi_expects link_expects(wfi_source *source)
{
    (void)source;
    return WFI_EXPECTS_NOTHING;
}

static bool link_may_sleep(wfi_source *source)
{
    (void)source;
    return true;
}

/* Used without threads; otherwise the link has its own thread or fiber. */
static const wfi_source_ops link_source = {.poll = link_none,
                                           .take = link_take,
                                           .events = link_events,
                                           .events_arm = link_events_arm,
                                           .events_fd = link_events_fd,
                                           .wait_fd = link_wait_fd,
                                           .may_sleep = link_may_sleep,
                                           .expects = link_expects,
                                           .outstanding = link_none};

/* ---- Opening --------------------------------------------------------------------------------------------------- */

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
    wfi_progress_options progress = {.clock = wfi_clock_of(options->sim),
                                     .executor = options->executor,
                                     .cores = options->cores,
                                     .fibers = options->sim ? wfi_simulation->fibers(options->sim) : NULL,
                                     .group = wfi_fiber_current() ? wfi_fiber_current()->group : agent->rank,
                                     .no_threads = agent->no_threads};
    wfi_progress_init(&net->progress, &progress);
    wfi_transport_init(&net->transport, &net->progress, agent, options->sim);
    net->transport.keys = keys;
    net->transport.suspect = wfi_peer_suspect;
    wfi_net_keys_make(keys, options->sim);
    wfi_net_client *clients = net->transport.clients;
    clients[0] = (wfi_net_client){0, WFI_CLIENT_TYPES_END - 1, options->upcalls, options->arg};
    clients[1] = (wfi_net_client){WFI_CONTROL_PING, WFI_CONTROL_PING, &wfi_detector_upcalls, NULL};
    clients[2] = (wfi_net_client){WFI_CONTROL_REVALIDATE, WFI_CONTROL_DIAL, &wfi_bulk_upcalls, NULL};
    clients[3] = (wfi_net_client){WFI_CONTROL_LONG, WFI_CONTROL_LONG_READY, &wfi_long_upcalls, NULL};
    net->transport.client_count = 4;
    net->link_source.ops = &link_source;
    net->link_fd = -1;
    net->link_due_ns = WFI_NEVER;
    wfi_list_init(&net->early);
    wfi_list_init(&net->interest_changed);
    net->interest_timer = (wfi_timer){.fire = wfi_interest_due, .reserved = true};
    return net;
}

/* Creates the peers that were in the job when this worker joined. */
static weft_status take_table(wfi_net *net, const wfi_member *table)
{
    weft_status status = WEFT_OK;
    net->transport.self = table[net->transport.rank];
    wfi_progress_lock(&net->progress);
    status = wfi_timers_reserve(&net->progress, WFI_TRANSPORT_TIMERS + 1);
    for (int rank = 0; rank < net->transport.world_size && !status; rank++) {
        if (rank != net->transport.rank && table[rank].incarnation)
            status = wfi_peer_create(net, &table[rank]);
    }
    wfi_progress_unlock(&net->progress);
    return status;
}

/* Warns if MASTER_ADDR is a loopback address, for example because /etc/hosts maps the machine's name to 127.0.1.1:
 * workers on other machines would then look for the store on their own machine. */
static void warn_of_loopback(const weft_agent_options *agent, int store_fd)
{
    wfi_endpoint where;
    bool is_unbound;
    int here = wfi_quota_launched(&is_unbound); /* 0: unknown; then an explicit loopback address is taken as intended */
    if (agent->world_size < 2 || here == agent->world_size ||
        (!here && wfi_hostname_says_loopback(agent->master_addr)) || wfi_listens_at(store_fd, &where) ||
        !wfi_endpoint_is_loopback(&where))
        return;
    wfi_log_in(
        &(wfi_log_context){.rank = 0}, WEFT_LOG_WARN,
        "MASTER_ADDR \"%s\" is a loopback address on this machine, where rank 0 serves the store: workers of other "
        "machines cannot reach it; use an address of this machine's network, or correct /etc/hosts",
        agent->master_addr);
}

/* Rank 0 binds the store's port before the fabric binds one, because the fabric's range may contain it. */
static weft_status bind_store_port(const wfi_net_options *options, int *store_fd, weft_error **error)
{
    const weft_agent_options *agent = options->agent;
    bool binds = agent->rank == 0 && options->store_fd < 0 && !options->sim && agent->master_addr;
    *store_fd = options->store_fd;
    if (!binds && options->store_fd >= 0 && !agent->job && agent->master_addr) /* a free port was bound before */
        warn_of_loopback(agent, *store_fd);
    if (!binds)
        return WEFT_OK;
    weft_status status = wfi_listen_at(agent->master_addr, agent->master_port, store_fd, error);
    if (!status)
        warn_of_loopback(agent, *store_fd);
    return status;
}

/* Takes over store_fd. */
static weft_status join_job(wfi_net *net, const wfi_net_options *options, int store_fd, weft_error **error)
{
    const weft_agent_options *agent = options->agent;
    uint8_t address[WFI_ADDRESS_MAX];
    wfi_member self = {0};
    for (size_t i = 0; i < net->transport.fabric_count; i++) {
        const wfi_net_fabric *fabric = &net->transport.fabrics[i];
        size_t size = fabric->ops->address(fabric->fabric, address);
        bool added = wfi_addresses_add(&self, fabric->ops->number, address, size);
        assert(added);
        (void)added;
    }
    wfi_rendezvous_events events = wfi_member_events;
    events.arg = net;
    wfi_rendezvous_options how = {.rank = net->transport.rank,
                                  .world_size = net->transport.world_size,
                                  .elastic = agent->elastic,
                                  .secret = agent->secret,
                                  .secret_size = agent->secret_size,
                                  .name = agent->name,
                                  .machine = options->sim ? wfi_simulation->machine(options->sim, net->progress.group)
                                                          : wfi_machine(),
                                  .addresses = self.addresses,
                                  .addresses_size = self.addresses_size,
                                  .cuda_devices = (uint8_t)wfi_cuda_count(),
                                  .public_key = net->transport.keys->public_key,
                                  .master_addr = agent->master_addr,
                                  .master_port = agent->master_port,
                                  .port_count = options->port_count,
                                  .store_fd = store_fd,
                                  .processes = options->processes,
                                  .is_spawned = options->is_spawned,
                                  .sim = options->sim,
                                  .no_threads = agent->no_threads,
                                  .join_timeout_ms = agent->rendezvous_timeout_ms,
                                  .death_timeout_ms = agent->death_timeout_ms,
                                  .clock = net->progress.clock,
                                  .events = &events};
    weft_status status = wfi_rendezvous_open(&how, &net->rendezvous, error);
    if (status)
        return status;
    net->transport.rank = wfi_rendezvous_rank(net->rendezvous);
    net->transport.death_timeout_ms = wfi_rendezvous_death_timeout_ms(net->rendezvous);
    memcpy(net->transport.keys->job, wfi_rendezvous_job_key(net->rendezvous), sizeof(net->transport.keys->job));
    status = take_table(net, wfi_rendezvous_members(net->rendezvous));
    wfi_rendezvous_drop_members(net->rendezvous);
    return status ? wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory") : WEFT_OK;
}

/* Rank 0 has the store's port, and cannot join. Tells the other workers why: otherwise they would think that another
 * program has the port. */
static void refuse_all(const wfi_net_options *options, int store_fd, weft_status status, const weft_error *error)
{
    char why[WFI_STORE_TEXT_MAX];
    const weft_agent_options *agent = options->agent;
    const wfi_rendezvous_options how = {.world_size = agent->world_size,
                                        .elastic = agent->elastic,
                                        .secret = agent->secret,
                                        .secret_size = agent->secret_size,
                                        .processes = options->processes,
                                        .store_fd = store_fd};
    wfi_utf8_print(why, sizeof(why), "rank 0 could not join its own job: %s",
                   error ? weft_error_message(error) : weft_status_text(status));
    wfi_rendezvous_refuse(&how, why);
}

weft_status wfi_net_open(const wfi_net_options *options, wfi_net **out, weft_error **error)
{
    int store_fd;
    weft_status status = bind_store_port(options, &store_fd, error);
    if (status)
        return status;
    wfi_net *net = sodium_init() < 0 ? NULL : net_create(options);
    if (!net) {
        status = wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory");
        goto close_store;
    }
    status = wfi_progress_open(&net->progress) ? wfi_descriptors_fail("make events", error) : WEFT_OK;
    if (!status)
        status = wfi_transport_open(&net->transport, options->agent, error);
    if (status)
        goto close_store;
    status = join_job(net, options, store_fd, error);
    store_fd = -1;
    if (status)
        goto close_net;
    *out = net;
    if (options->upcalls->joined)
        options->upcalls->joined(options->arg);
    for (size_t i = 0; i < net->transport.fabric_count; i++)
        wfi_progress_add(&net->progress, &net->transport.fabrics[i].source);
    if (net->progress.no_threads && !net->progress.fibers)
        wfi_progress_add(&net->progress, &net->link_source);
    if (!net->progress.fibers && !net->progress.no_threads)
        wfi_executor_set_idle(net->progress.executor, wfi_idle_lead, &net->progress, wfi_idle_wake);
    wfi_progress_lock(&net->progress);
    net->open = true;
    wfi_member_catch_up(net);
    wfi_progress_unlock(&net->progress);
    status = wfi_progress_start_threads(&net->progress);
    if (!status)
        return WEFT_OK;
    char why[WFI_THREAD_STRERROR];
    (void)wfi_error_fail(error, status, "no thread could be started: %s",
                         wfi_thread_strerror(net->progress.thread_errnum, why));
    *out = NULL;
    goto close_net;
close_store:
    if (store_fd >= 0)
        refuse_all(options, store_fd, status, error ? *error : NULL);
close_net:
    wfi_net_close(net);
    return status;
}

/* ---- Closing --------------------------------------------------------------------------------------------------- */

static void fail_peers(wfi_net *net)
{
    wfi_progress_lock(&net->progress);
    for (int rank = 0; rank < net->transport.world_size; rank++) {
        if (net->transport.peers[rank] && wfi_peer_control(net->transport.peers[rank])->owes_ack)
            wfi_peer_send_ack(net->transport.peers[rank]);
    }
    wfi_transport_begin_closing(&net->transport);
    for (int rank = 0; rank < net->transport.world_size; rank++) {
        if (net->transport.peers[rank])
            wfi_peer_fail(net->transport.peers[rank], WEFT_ERR_CLOSED);
    }
    wfi_timer_clear(&net->progress, &net->interest_timer);
    wfi_progress_unlock(&net->progress);
}

void wfi_net_forked(wfi_net *net)
{
    wfi_progress_forked(&net->progress);
}

void wfi_net_stop(wfi_net *net)
{
    if (net->stopped)
        return;
    if (net->transport.peers)
        fail_peers(net);
    wfi_progress_remove(&net->progress, &net->link_source);
    if (net->rendezvous)
        wfi_rendezvous_close(net->rendezvous);
    size_t left = net->open ? wfi_progress_stop_threads(&net->progress) : 0;
    if (left)
        wfi_log_net(&net->transport, WEFT_LOG_ERROR, "%zu closed connections have operations that were never reported",
                    left);
    wfi_registrations_await(&net->transport);
    atomic_store(&net->progress.stop, true);
    net->stopped = true;
}

void wfi_net_close(wfi_net *net)
{
    if (!net)
        return;
    wfi_net_stop(net);
    net->transport.closing = true;
    wfi_frames_free_spares(&net->transport);
    wfi_chunks_free_spares(&net->transport);
    wfi_transport_fini(&net->transport);
    wfi_member_forget(net);
    wfi_guarded_free(net->transport.keys);
    wfi_progress_fini(&net->progress);
    free(net);
}
