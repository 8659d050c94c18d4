/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inside.h - what tests do to an agent, or ask of it, that the public API does not offer. inside.c alone includes
 * headers of rpc and of net: where these move or change, no test has to.
 */
#ifndef TESTS_RPC_INSIDE_H
#define TESTS_RPC_INSIDE_H

#include "base/codec.h"
#include "mem/rma.h"

#include <weft/weft.h>

#include <stdatomic.h>

struct wfi_net;
struct wfi_net *inside_net(const weft_agent *agent); /* for tests/net/inside.h */

/* While it is locked nothing happens in the agent, but for what the locker does. */
void inside_lock(weft_agent *agent);
bool inside_try_lock(weft_agent *agent); /* then it has to be unlocked */
void inside_unlock(weft_agent *agent);

/* ---- Messages between agents, as docs/wire.md has them ----------------------------------------------------------- */

enum {
    INSIDE_CALL = 1,
    INSIDE_REPLY = 2,
    INSIDE_DONE = 3,
    INSIDE_CANCEL = 4,
    INSIDE_FORK = 5,
    INSIDE_FORKED = 6,
    INSIDE_DROP = 7,
    INSIDE_ITEM = 8,
    INSIDE_TOOK = 9,
    INSIDE_REFUSED = 10,
};
enum { INSIDE_CALL_REMOTE = 1, INSIDE_CALL_ITEMS = 2 };       /* flags of a call */
enum { INSIDE_REPLY_ERROR = 1, INSIDE_REPLY_NEEDS_DONE = 2 }; /* flags of a reply */
/* Of a tensor; what follows: its bytes; memory, its bytes being behind the metadata; memory; the number of a place. */
enum { INSIDE_ENCODING_INLINE, INSIDE_ENCODING_EAGER, INSIDE_ENCODING_PULL, INSIDE_ENCODING_PUSH };
enum { INSIDE_MESSAGE_MAX = 3968, INSIDE_FUNCTION_NAME_MAX = 127 }; /* bytes */

/* Sends it behind the agent's back. Whether the peer has it is counted: inside_unsent are those that it did not get. */
weft_status inside_send(weft_agent *agent, int to, uint8_t type, bool urgent, const void *bytes, size_t size);
extern atomic_int inside_unsent;
/* As if `from` had sent it to this agent. */
void inside_arrive(weft_agent *agent, int from, uint8_t type, const void *bytes, size_t size);

/* What comes for this agent goes to `hear` instead, until NULL is given; false: it does not take the message, which
 * comes again later. One agent of the process at a time. */
typedef bool inside_hear_fn(uint8_t type, const uint8_t *bytes, size_t size);
void inside_divert(weft_agent *agent, inside_hear_fn *hear);

/* The body of a call or a reply: the values, and no places to land in but `place`, if that is not NULL. */
void inside_write_body(wfi_writer *writer, weft_args values, const weft_tensor *place);
void inside_write_tensor_type(wfi_writer *writer, weft_dtype dtype, weft_shape shape);
/* A tensor of the device `from` that shall be on the device `to` (rpc/agent/devices.h has their codes), up to what
 * follows its encoding. */
void inside_write_placed(wfi_writer *writer, weft_shape shape, uint8_t from, uint8_t to, uint8_t encoding);
/* Sends a call of `function` without a time limit and without a trace. */
weft_status inside_send_call(weft_agent *agent, int to, uint64_t id, const char *function, weft_args values);
/* Decodes values, and behind them places to land in, of a message's bytes; `tail` has what is said to follow. */
weft_status inside_decode(const wfi_writer *values, size_t tail, size_t landed);

/* The name of a remote reference. */
typedef struct inside_name {
    uint32_t owner, owner_incarnation, creator, creator_incarnation;
    uint64_t number;
} inside_name;
inside_name inside_name_of(const weft_rref *rref);
uint64_t inside_fork_of(const weft_rref *rref);
void inside_write_name(wfi_writer *writer, const inside_name *name);
uint64_t inside_next_call_id(weft_agent *agent); /* the last ones that it has given */
uint64_t inside_next_fork(weft_agent *agent);

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

uint64_t inside_call_id(const weft_call *call);
/* The call ends with this code, as where the callee's own machinery finds fault with it: not with WEFT_ERR_REMOTE. */
void inside_fail_call(weft_call *call, weft_status code);
/* The agent's one outstanding call has been given up, and nothing of its answer has been taken. */
bool inside_given_up(weft_agent *agent);
/* A function of the library's own does this from now on. */
void inside_replace(weft_agent *agent, const char *function, weft_status (*run)(weft_call *call, void *user));

/* A range of memory at a call's caller: where its only result is to land, or where its first tensor lies. */
typedef struct inside_range {
    wfi_rma_address remote;
    uint64_t size;
} inside_range;
inside_range inside_landing(const weft_call *call);
inside_range inside_argument(const weft_call *call);

/* Reads the range again and again, or writes there, until `stop`; what fails is begun again all the same. One at a
 * time. */
extern struct inside_raid {
    atomic_bool stop, running;
    atomic_int succeeded, failed;
} inside_raid;
void inside_raid_begin(weft_call *call, inside_range there, weft_tensor *here, bool write);

/* ---- Members ----------------------------------------------------------------------------------------------------- */

/* The agent's on_membership is told so. Locked. */
void inside_tell_member(weft_agent *agent, weft_member_event event, int rank, const char *why);
/* As if the job's store had said so. Whoever joins has an address that leads nowhere. */
void inside_joined(weft_agent *agent, int rank, uint32_t incarnation, const char *name);
void inside_died(weft_agent *agent, int rank, uint32_t incarnation);

/* ---- What an agent keeps ----------------------------------------------------------------------------------------- */

typedef struct inside_tally {
    size_t peers, names, timers, references, calls, unconfirmed;
} inside_tally;
inside_tally inside_count(weft_agent *agent);

/* As if all notifications that the agent has spare were promised to others already: how many. They are given back
 * so. */
size_t inside_promise_notifications(weft_agent *agent);
void inside_keep_notifications(weft_agent *agent, size_t count);

/* A table by hash: how many it has, and of how many entries the longest look-up passes. */
typedef struct inside_table {
    size_t count, probes;
} inside_table;
inside_table inside_calls_served(weft_agent *agent, int caller);
inside_table inside_values(weft_agent *agent);
inside_table inside_forks(weft_agent *agent);
inside_table inside_shapes(weft_agent *agent, const char *batched_function);

/* Every secret that an agent has while it is connected to `other`, where it lies. How many; locked. */
typedef struct inside_key {
    const char *name;
    const uint8_t *bytes;
    size_t size;
} inside_key;
size_t inside_keys(weft_agent *agent, int other, inside_key *keys, size_t room);

/* ---- Devices: rpc/agent/devices.h has their codes ---------------------------------------------------------------- */

typedef struct inside_device_map {
    char worker[128];
    uint8_t here, there;
} inside_device_map;
enum { INSIDE_DEVICE_PROBLEM = 768 };

/* What weft_agent_open reads of device maps and WEFT_GPU_TRANSPORT: *count entries, and the last one. */
weft_status inside_read_devices(const weft_agent_options *given, size_t *count, inside_device_map *last,
                                weft_error **error);
/* Where a tensor goes at that worker, or (`back`) comes to here. Locks. */
weft_status inside_device(weft_agent *agent, int rank, bool back, uint8_t from, uint8_t *to,
                          char problem[INSIDE_DEVICE_PROBLEM]);
bool inside_maps_cpu(const weft_agent *agent);

/* ---- Options ----------------------------------------------------------------------------------------------------- */

/* As weft_agent_open makes them of what is given and the environment. NULL: refused, with its status and error. Good
 * until the next one; `status` and `error` may be NULL where it must not fail. */
const weft_agent_options *inside_resolve(const weft_agent_options *given, weft_status *status, weft_error **error);
void inside_set_identity(int rank, const char *name); /* changes the resolved ones: when the store has given both */
void inside_share(int agents);                        /* the same: when it is known how many agents the process has */
void inside_wipe(void);                               /* the same: when the secret is not needed any more */

#endif
