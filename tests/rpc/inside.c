/* SPDX-License-Identifier: Apache-2.0 */
/* inside.c - see inside.h. */
#include "rpc/inside.h"

#include "job/link/link.h"
#include "net/net.h"
#include "rpc/agent/agent.h"
#include "coll/group.h"
#include "rpc/refs/internal.h"
#include "rpc/batch/batch.h"
#include "rpc/client/client.h"
#include "rpc/must.h"
#include "rpc/agent/options.h"
#include "value/encode.h"
#include "rpc/refs/refs.h"
#include "rpc/server/server.h"
#include "value/decode.h"
#include "tensor/tensor.h"

#include <string.h>

#define SAME(ours, theirs) ((int)(ours) == (int)(theirs))
_Static_assert(SAME(INSIDE_CALL, WFI_RPC_CALL) && SAME(INSIDE_REPLY, WFI_RPC_REPLY) &&
                   SAME(INSIDE_DONE, WFI_RPC_DONE) && SAME(INSIDE_CANCEL, WFI_RPC_CANCEL) &&
                   SAME(INSIDE_FORK, WFI_RPC_FORK) && SAME(INSIDE_FORKED, WFI_RPC_FORKED) &&
                   SAME(INSIDE_DROP, WFI_RPC_DROP) && SAME(INSIDE_ITEM, WFI_RPC_ITEM) &&
                   SAME(INSIDE_TOOK, WFI_RPC_TOOK) && SAME(INSIDE_REFUSED, WFI_RPC_REFUSED) &&
                   SAME(INSIDE_CALL_REMOTE, WFI_CALL_REMOTE) && SAME(INSIDE_CALL_ITEMS, WFI_CALL_ITEMS) &&
                   SAME(INSIDE_REPLY_ERROR, WFI_REPLY_ERROR) && SAME(INSIDE_REPLY_NEEDS_DONE, WFI_REPLY_NEEDS_DONE) &&
                   SAME(INSIDE_ENCODING_EAGER, WFI_ENCODING_EAGER) && SAME(INSIDE_ENCODING_PULL, WFI_ENCODING_PULL) &&
                   SAME(INSIDE_ENCODING_PUSH, WFI_ENCODING_PUSH) && SAME(INSIDE_MESSAGE_MAX, WFI_MESSAGE_MAX) &&
                   SAME(INSIDE_FUNCTION_NAME_MAX, WFI_FUNCTION_NAME_MAX) &&
                   SAME(INSIDE_DEVICE_PROBLEM, WFI_DEVICE_PROBLEM) &&
                   sizeof(inside_device_map) == sizeof(wfi_device_map),
               "as docs/wire.md has it");

struct wfi_net *inside_net(const weft_agent *agent)
{
    return agent->net;
}

void inside_lock(weft_agent *agent)
{
    wfi_net_lock(agent->net);
}

bool inside_try_lock(weft_agent *agent)
{
    return wfi_mutex_trylock(wfi_net_mutex(agent->net));
}

void inside_unlock(weft_agent *agent)
{
    wfi_net_unlock(agent->net);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

typedef struct posted {
    wfi_message message;
    uint8_t bytes[INSIDE_MESSAGE_MAX];
} posted;

atomic_int inside_unsent;

static void posted_done(wfi_message *message, weft_status status)
{
    atomic_fetch_add(&inside_unsent, status != WEFT_OK);
    free(wfi_container_of(message, posted, message));
}

weft_status inside_send(weft_agent *agent, int to, uint8_t type, bool urgent, const void *bytes, size_t size)
{
    posted *one = calloc(1, sizeof(*one));
    MUST(one && size <= sizeof(one->bytes));
    memcpy(one->bytes, bytes, size);
    one->message =
        (wfi_message){.type = type, .urgent = urgent, .head = one->bytes, .head_size = size, .done = posted_done};
    wfi_net_lock(agent->net);
    weft_status status = wfi_peer_send(wfi_net_peer(agent->net, to), &one->message);
    wfi_net_unlock(agent->net);
    if (status)
        free(one);
    return status;
}

void inside_arrive(weft_agent *agent, int from, uint8_t type, const void *bytes, size_t size)
{
    wfi_net_lock(agent->net);
    agent->net->transport.clients[0].upcalls->message(agent, wfi_net_peer(agent->net, from), type, bytes, size);
    wfi_net_unlock(agent->net);
}

static inside_hear_fn *hearer;

static void hear_it(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    weft_agent *agent = arg;
    if (!hearer(type, bytes, size))
        wfi_net_untake(agent->net);
}

void inside_divert(weft_agent *agent, inside_hear_fn *hear)
{
    static const wfi_upcalls *before;
    static wfi_upcalls diverted;
    wfi_net_client *client = &agent->net->transport.clients[0];
    wfi_net_lock(agent->net);
    if (!hearer)
        before = client->upcalls;
    diverted = *before;
    diverted.message = hear_it;
    client->upcalls = hear ? &diverted : before;
    hearer = hear;
    wfi_net_unlock(agent->net);
}

void inside_write_body(wfi_writer *writer, weft_args values, const weft_tensor *place)
{
    wfi_encoded body;
    MUST_OK(wfi_encode(&body, values, &(wfi_encode_options){0}));
    wfi_encode_landing_count(&body, place != NULL);
    if (place)
        wfi_encode_landing(&body, place, &(wfi_rma_address){0});
    wfi_write_u8(writer, 0);
    wfi_write_blob(writer, body.meta.data, body.meta.size);
    wfi_encoded_fini(&body);
}

void inside_write_tensor_type(wfi_writer *writer, weft_dtype dtype, weft_shape shape)
{
    wfi_value_write_tensor_type(writer, dtype, shape);
}

void inside_write_placed(wfi_writer *writer, weft_shape shape, uint8_t from, uint8_t to, uint8_t encoding)
{
    wfi_write_u8(writer, WEFT_DTYPE_FLOAT32 | WFI_NAMES_DEVICES);
    wfi_write_u8(writer, (uint8_t)shape.ndim);
    for (int i = 0; i < shape.ndim; i++)
        wfi_write_i64(writer, shape.dims[i]);
    wfi_write_u8(writer, from);
    wfi_write_u8(writer, to);
    wfi_write_u8(writer, encoding);
}

weft_status inside_send_call(weft_agent *agent, int to, uint64_t id, const char *function, weft_args values)
{
    uint8_t bytes[INSIDE_MESSAGE_MAX];
    wfi_writer w;
    wfi_writer_init(&w, bytes, sizeof(bytes));
    wfi_write_u64(&w, id);
    wfi_write_u8(&w, 0);
    wfi_write_u64(&w, WFI_TIMEOUT_NEVER);
    wfi_write_u8(&w, (uint8_t)strlen(function));
    wfi_write_bytes(&w, function, strlen(function));
    wfi_write_blob(&w, NULL, 0);
    inside_write_body(&w, values, NULL);
    MUST(!w.failed);
    return inside_send(agent, to, WFI_RPC_CALL, false, bytes, w.size);
}

weft_status inside_decode(const wfi_writer *values, size_t tail_size, size_t landed)
{
    wfi_reader meta, tail;
    wfi_decoded decoded;
    wfi_landing *landing;
    size_t count;
    uint64_t bytes;
    wfi_decode_options options = {.landed_count = landed};
    wfi_reader_init(&meta, values->data, values->size);
    wfi_reader_init(&tail, values->data, tail_size);
    weft_status status = wfi_decode(&decoded, &meta, &tail, &options);
    /* What is measured first, before memory is taken, lets nothing good fail. */
    MUST(status || !wfi_decode_measure(&decoded, values->data, values->size, &bytes, NULL));
    if (status)
        return status;
    if (wfi_decode_landing(&meta, &landing, &count) == WEFT_OK)
        free(landing);
    wfi_decoded_fini(&decoded);
    return WEFT_OK;
}

inside_name inside_name_of(const weft_rref *rref)
{
    const wfi_rref_name *name = &rref->name;
    return (inside_name){.owner = name->owner,
                         .owner_incarnation = name->owner_incarnation,
                         .creator = name->creator,
                         .creator_incarnation = name->creator_incarnation,
                         .number = name->number};
}

uint64_t inside_fork_of(const weft_rref *rref)
{
    return rref->fork;
}

void inside_write_name(wfi_writer *writer, const inside_name *name)
{
    wfi_reference_write_name(writer, &(wfi_rref_name){.owner = name->owner,
                                                      .owner_incarnation = name->owner_incarnation,
                                                      .creator = name->creator,
                                                      .creator_incarnation = name->creator_incarnation,
                                                      .number = name->number});
}

uint64_t inside_next_call_id(weft_agent *agent)
{
    return agent->next_call_id;
}

uint64_t inside_next_fork(weft_agent *agent)
{
    return wfi_refs_of(agent)->next_fork;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

uint64_t inside_call_id(const weft_call *call)
{
    return call->id;
}

void inside_fail_call(weft_call *call, weft_status code)
{
    MUST(!call->error);
    call->error = wfi_call_error(call, code, "refused by the test");
}

bool inside_given_up(weft_agent *agent)
{
    size_t cursor = 0;
    uint64_t id;
    wfi_net_lock(agent->net);
    const wfi_request *call = wfi_map_next(&agent->calls, &cursor, &id);
    bool so = call && call->failure && call->results.state == WFI_INBOUND_NEW;
    wfi_net_unlock(agent->net);
    return so;
}

void inside_replace(weft_agent *agent, const char *function, weft_status (*run)(weft_call *call, void *user))
{
    ((weft_function *)wfi_function_find(agent, function))->run = run;
}

inside_range inside_landing(const weft_call *call)
{
    MUST(call->arguments->landing_count == 1);
    const wfi_landing *landing = &call->arguments->landing[0];
    return (inside_range){.remote = landing->remote, .size = landing->size};
}

inside_range inside_argument(const weft_call *call)
{
    const wfi_segment *segment = &call->arguments->decoded.segments[0];
    return (inside_range){.remote = segment->remote, .size = segment->size};
}

struct inside_raid inside_raid;

static struct {
    weft_agent *agent;
    wfi_peer *victim;
    wfi_segment segment;
    wfi_transfer transfer; /* under the agent's lock */
} raid;

static void raid_again(wfi_transfer *transfer, weft_status status)
{
    atomic_fetch_add(status ? &inside_raid.failed : &inside_raid.succeeded, 1);
    if (atomic_load(&inside_raid.stop) || wfi_peer_transfer(raid.victim, transfer))
        atomic_store(&inside_raid.running, false);
}

static const wfi_transfer_ops raid_again_ops = {.chunk = wfi_transfer_ignore_chunk, .done = raid_again};

void inside_raid_begin(weft_call *call, inside_range there, weft_tensor *here, bool write)
{
    raid.agent = call->agent;
    raid.victim = call->peer;
    raid.segment = (wfi_segment){
        .local = weft_tensor_data(here), .storage = here->storage, .size = there.size, .remote = there.remote};
    raid.transfer = (wfi_transfer){
        .kind = write ? WFI_PUSH : WFI_PULL, .segments = &raid.segment, .segment_count = 1, .ops = &raid_again_ops};
    inside_raid = (struct inside_raid){.running = true};
    wfi_net_lock(raid.agent->net);
    if (wfi_peer_transfer(raid.victim, &raid.transfer))
        atomic_store(&inside_raid.running, false);
    wfi_net_unlock(raid.agent->net);
}

/* ---- Members ----------------------------------------------------------------------------------------------------- */

void inside_tell_member(weft_agent *agent, weft_member_event event, int rank, const char *why)
{
    wfi_membership_notify(agent, event, rank, why);
}

void inside_joined(weft_agent *agent, int rank, uint32_t incarnation, const char *name)
{
    wfi_member member = {.rank = rank, .incarnation = incarnation};
    const wfi_net_fabric *fabric = &agent->net->transport.fabrics[0];
    uint8_t address[WFI_ADDRESS_MAX]; /* this worker's own, where nobody answers for that rank */
    MUST(wfi_addresses_add(&member, fabric->ops->number, address, fabric->ops->address(fabric->fabric, address)));
    snprintf(member.name, sizeof(member.name), "%s", name);
    wfi_member_events.joined(agent->net, &member);
}

void inside_died(weft_agent *agent, int rank, uint32_t incarnation)
{
    wfi_member_events.died(agent->net, rank, incarnation, "said by the test");
}

/* ---- What an agent keeps ----------------------------------------------------------------------------------------- */

inside_tally inside_count(weft_agent *agent)
{
    inside_tally t = {0};
    wfi_net_lock(agent->net);
    for (wfi_list *link = agent->net->transport.known.next; link != &agent->net->transport.known; link = link->next)
        t.peers++;
    for (wfi_list *link = wfi_refs_of(agent)->references.next; link != &wfi_refs_of(agent)->references;
         link = link->next)
        t.references++;
    t.names = agent->given_names.count;
    t.timers = agent->net->progress.heap_reserved;
    t.calls = agent->calls.count;
    t.unconfirmed = wfi_refs_of(agent)->forks.count;
    wfi_net_unlock(agent->net);
    return t;
}

size_t inside_promise_notifications(weft_agent *agent)
{
    wfi_net_lock(agent->net);
    size_t count = agent->spare_notification_count - agent->promised_notifications;
    agent->promised_notifications += count;
    wfi_net_unlock(agent->net);
    return count;
}

void inside_keep_notifications(weft_agent *agent, size_t count)
{
    wfi_net_lock(agent->net);
    agent->promised_notifications -= count;
    wfi_net_unlock(agent->net);
}

static inside_table look_at(weft_agent *agent, const wfi_map *map)
{
    size_t cursor = 0;
    uint64_t key;
    wfi_net_lock(agent->net);
    inside_table table = {.count = map->count};
    while (wfi_map_next(map, &cursor, &key)) {
        size_t probes = wfi_map_probes(map, key);
        table.probes = probes > table.probes ? probes : table.probes;
    }
    wfi_net_unlock(agent->net);
    return table;
}

inside_table inside_calls_served(weft_agent *agent, int caller)
{
    return look_at(agent, &agent->peers[caller].serving);
}

inside_table inside_values(weft_agent *agent)
{
    return look_at(agent, &wfi_refs_of(agent)->owned);
}

inside_table inside_forks(weft_agent *agent)
{
    return look_at(agent, &wfi_refs_of(agent)->fork_index);
}

inside_table inside_shapes(weft_agent *agent, const char *batched_function)
{
    return look_at(agent, &wfi_batcher_of(wfi_function_find(agent, batched_function))->class_by_hash);
}

size_t inside_keys(weft_agent *agent, int other, inside_key *keys, size_t room)
{
    const wfi_net *net = agent->net;
    const wfi_rendezvous *link = net->rendezvous;
    wfi_peer *peer = wfi_net_peer(agent->net, other);
    const inside_key ours[] = {
        {"the job's key", net->transport.keys->job, sizeof(net->transport.keys->job)},
        {"our private key", net->transport.keys->private_key, sizeof(net->transport.keys->private_key)},
        {"the pair's key", wfi_peer_pair_key(peer), WFI_PAIR_KEY_BYTES},
        {"the link's key to the store", link->wires[WFI_CURRENT].seal.send_key, 32},
        {"the link's key from the store", link->wires[WFI_CURRENT].seal.receive_key, 32},
    };
    size_t count = 0;
    MUST(room >= sizeof(ours) / sizeof(*ours) + 4);
    for (; count < sizeof(ours) / sizeof(*ours); count++)
        keys[count] = ours[count];
    for (int kind = WFI_CONTROL; kind <= WFI_BULK; kind++) {
        const wfi_conn *conn = peer->channels[kind]->conn;
        MUST(conn && conn->up);
        keys[count++] = (inside_key){"a connection's key", conn->keys->out, sizeof(conn->keys->out)};
        keys[count++] = (inside_key){"a connection's other key", conn->keys->in, sizeof(conn->keys->in)};
    }
    return count;
}

/* ---- Devices ----------------------------------------------------------------------------------------------------- */

weft_status inside_read_devices(const weft_agent_options *given, size_t *count, inside_device_map *last,
                                weft_error **error)
{
    wfi_devices devices = {0};
    weft_status status = wfi_devices_init(given, &devices, error);
    *count = devices.map_count;
    if (devices.map_count)
        memcpy(last, &devices.maps[devices.map_count - 1], sizeof(*last));
    wfi_devices_fini(&devices);
    return status;
}

weft_status inside_device(weft_agent *agent, int rank, bool back, uint8_t from, uint8_t *to,
                          char problem[INSIDE_DEVICE_PROBLEM])
{
    inside_lock(agent);
    weft_status status = back ? wfi_device_here(agent, rank, from, to, problem, INSIDE_DEVICE_PROBLEM)
                              : wfi_device_there(agent, rank, from, to, problem, INSIDE_DEVICE_PROBLEM);
    inside_unlock(agent);
    return status;
}

bool inside_maps_cpu(const weft_agent *agent)
{
    return wfi_devices_map_cpu(agent);
}

/* ---- Options ----------------------------------------------------------------------------------------------------- */

static wfi_options resolved;

const weft_agent_options *inside_resolve(const weft_agent_options *given, weft_status *status, weft_error **error)
{
    weft_error *why = NULL;
    inside_wipe();
    weft_status resolves = wfi_options_resolve(given, &resolved, &why);
    if (status)
        *status = resolves;
    else if (resolves)
        weft_error_print(why, stderr);
    if (error)
        *error = why;
    else
        weft_error_unref(why);
    MUST(status || !resolves);
    return resolves ? NULL : &resolved.values;
}

void inside_set_identity(int rank, const char *name)
{
    wfi_options_set_identity(&resolved, rank, name);
}

void inside_share(int agents)
{
    wfi_options_share(&resolved, agents);
}

void inside_wipe(void)
{
    wfi_options_wipe(&resolved);
}
