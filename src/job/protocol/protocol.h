/* SPDX-License-Identifier: Apache-2.0 */
/*
 * protocol.h - the messages between a worker and the store: their types, their fields, and their form as bytes.
 *
 *     uint8_t frame[WFI_STORE_SMALL_MAX];
 *     wfi_store_message suspect = {.type = WFI_STORE_SUSPECT, .rank = 3, .incarnation = 7};
 *     size_t size = wfi_store_encode(&suspect, frame);
 *     status = wfi_store_decode(frame, size, &message);      at the other side; wfi_store_frame_size finds whole frames
 *
 * A frame is a head of 8 bytes (2 magic, 1 version, 1 type, 4 length of the body) and a body. Every frame but the table
 * of members (WFI_STORE_WORLD) fits WFI_STORE_SMALL_MAX bytes, and a worker sends no larger one. The head, and the body
 * of a refusal, are the same in every version, so that programs of different versions can tell each other so.
 *
 * To add a message: a type in wfi_store_type, its fields in wfi_store_message, a row in the table of wire.c, and a case
 * where it is received: store/store.c or link/events.c. A changed form needs a new WFI_STORE_VERSION.
 *
 * Functions here keep nothing and take no lock.
 */
#ifndef WFI_PROTOCOL_H
#define WFI_PROTOCOL_H

#include "base/codec.h"
#include "job/protocol/proof.h"

#define WFI_NAME_MAX 128 /* bytes of a worker's name, the NUL included */
#define WFI_JOB_KEY_BYTES 16
#define WFI_PUBLIC_KEY_BYTES 32

#define WFI_STORE_VERSION 10
#define WFI_STORE_HEAD 8
#define WFI_STORE_TEXT_MAX 512 /* the NUL included */
#define WFI_STORE_ADDRESSES_MAX 192
#define WFI_STORE_SMALL_MAX 832 /* size of the largest frame, sealed or not, except the table */
#define WFI_STORE_TOKEN_BYTES 16
/* kept messages after which an acknowledgement is sent, if no heartbeat carries it earlier */
#define WFI_STORE_ACK_EVERY 8
#define WFI_STORE_WORKERS_MAX 65536
#define WFI_STORE_ENTRY_MAX (4 + 4 + WFI_NAME_MAX + 8 + 4 + WFI_STORE_ADDRESSES_MAX + 1 + WFI_PUBLIC_KEY_BYTES)
#define WFI_STORE_WORLD_MAX (WFI_STORE_HEAD + 96 + (size_t)WFI_STORE_WORKERS_MAX * WFI_STORE_ENTRY_MAX)

typedef struct wfi_member {
    int rank;
    uint32_t incarnation; /* > 0, numbered by the store */
    char name[WFI_NAME_MAX];
    uint64_t machine; /* members with the same number share a kernel and its network; 0: not known */
    uint8_t addresses[WFI_STORE_ADDRESSES_MAX]; /* of its fabrics: net/channel/addresses.c */
    size_t addresses_size;
    uint8_t cuda_devices;                     /* the number of GPUs that its driver shows to it, as it told the store */
    uint8_t public_key[WFI_PUBLIC_KEY_BYTES]; /* of this incarnation, as it told the store: src/net/channel/pair.c */
} wfi_member;

/* A worker's answer to a probe of the closing protocol. */
typedef struct wfi_idle_report {
    bool idle;         /* closing or serving, no call outstanding, no handler running or deferred, no task queued */
    uint64_t started;  /* calls started by it so far */
    uint64_t finished; /* of those, completed */
    uint64_t served;   /* handlers finished here so far */
} wfi_idle_report;

/*
 * (k): the sender keeps the message until it is acknowledged, and sends it again after a resume; it does not keep the
 * others. The greeting (hello, challenge) is not encrypted, nor is a refusal before the proof; all else is sealed.
 */
typedef enum wfi_store_type {
    /*
     * worker: rank (-1: any), world_size, elastic, timeout_ms, text (its name), machine, addresses, CUDA devices,
     * public key, token (of this join: a repeated JOIN with the same token gets the same answer)
     */
    WFI_STORE_JOIN = 1,
    WFI_STORE_WORLD = 2,       /* store: the table; see wfi_store_encode_world */
    WFI_STORE_REFUSE = 3,      /* status, text; worker: it found the store's proof wrong */
    WFI_STORE_HEARTBEAT = 4,   /* worker: heartbeat; store: its answer. received */
    WFI_STORE_SPEAK = 5,       /* store: send a heartbeat now */
    WFI_STORE_SUSPECT = 6,     /* worker (k): rank, incarnation, text */
    WFI_STORE_DIED = 7,        /* store (k): rank, incarnation, text */
    WFI_STORE_LEFT = 8,        /* store (k): rank, incarnation */
    WFI_STORE_EVICTED = 9,     /* store: text */
    WFI_STORE_CLOSING = 10,    /* worker (k) */
    WFI_STORE_PROBE = 11,      /* store (k): wave */
    WFI_STORE_REPORT = 12,     /* worker (k): wave, report */
    WFI_STORE_TERMINATED = 13, /* store (k) */
    WFI_STORE_GOODBYE = 14,    /* worker */
    /* store (k): rank, incarnation, text (the name), machine, addresses, CUDA devices, public key */
    WFI_STORE_JOINED = 15,
    WFI_STORE_HELLO = 16,     /* worker: on (it has a secret), nonce */
    WFI_STORE_CHALLENGE = 17, /* store: counter, nonce, timeout_ms (its bound), proof */
    WFI_STORE_RESUME = 18,    /* worker, on a new connection: rank, incarnation, token, received */
    /* store: received, acknowledged (number of its own kept messages that it does not send again) */
    WFI_STORE_RESUMED = 19,
    WFI_STORE_ACK = 20,    /* either: received */
    WFI_STORE_NEED = 21,   /* worker (k): rank, incarnation, on */
    WFI_STORE_BEAT = 22,   /* store (k): on: send heartbeats, because a member depends on you */
    WFI_STORE_DIAL = 23,   /* store: rank, incarnation: that worker cannot connect to you, so connect to it */
    WFI_STORE_SYNC = 24,   /* worker (k): wave. Answered by `synced`, which arrives after all earlier messages */
    WFI_STORE_SYNCED = 25, /* store (k): wave, that of the `sync` */
    /* worker (k): it leaves an elastic job soon; store (k): rank, incarnation of the worker that leaves */
    WFI_STORE_LEAVING = 26,
    WFI_STORE_END = 27,   /* rank 0 (k): text. The job ends; store (k), to all: the same text */
    WFI_STORE_AWAIT = 28, /* worker: asks which members the end of the job waits for; store: text, the answer */
    /* worker (k): wave, the number of its weft_agent_serve, or 0 when that has ended; store (k): the same number, when
     * all members serve or close and nothing is outstanding */
    WFI_STORE_SERVING = 29,
    /* worker (k): wants to be told which members serve or close; store (k): rank, incarnation, on: that member does,
     * or no longer does */
    WFI_STORE_ENDING = 30,
} wfi_store_type;

/* One message. The comment of its type lists the fields that count. */
typedef struct wfi_store_message {
    wfi_store_type type;
    int32_t rank, world_size;
    bool elastic, on;
    uint32_t incarnation;
    int64_t timeout_ms; /* join: how long the worker will still wait; < 0: without limit */
    weft_status status;
    uint64_t wave; /* its number */
    uint64_t acknowledged;
    uint64_t received; /* number of kept messages received since the join */
    uint64_t counter;
    wfi_idle_report report;
    char text[WFI_STORE_TEXT_MAX]; /* from the network: printable ASCII only, others became '?' */
    uint64_t machine;
    uint8_t addresses[WFI_STORE_ADDRESSES_MAX];
    size_t addresses_size;
    uint8_t cuda_devices;
    uint8_t public_key[WFI_PUBLIC_KEY_BYTES];
    uint8_t nonce[WFI_NONCE_BYTES], proof[WFI_PROOF_BYTES], token[WFI_STORE_TOKEN_BYTES];
} wfi_store_message;

bool wfi_store_type_is_kept(wfi_store_type type);

/* The table. An empty slot, or one whose worker is gone, has incarnation 0. */
typedef struct wfi_store_world {
    int rank;                             /* rank of the receiver */
    uint8_t token[WFI_STORE_TOKEN_BYTES]; /* the receiver shows it when it resumes; no other worker has it */
    uint8_t job_key[WFI_JOB_KEY_BYTES];
    int64_t death_timeout_ms; /* the store's bound: it applies to the whole job */
    int world_size;
    wfi_member *members; /* by rank */
} wfi_store_world;

/* Encodes any message except `world`: writes one frame to out[WFI_STORE_SMALL_MAX] and returns its size. */
size_t wfi_store_encode(const wfi_store_message *message, uint8_t *out);
void wfi_store_encode_world(wfi_writer *writer, const wfi_store_world *world);
/* Fills in the fields of an encoded table that depend on the receiver, and those that only members may know. */
void wfi_store_world_address(uint8_t *frame, int rank, const uint8_t token[WFI_STORE_TOKEN_BYTES],
                             const uint8_t job_key[WFI_JOB_KEY_BYTES]);
/* A member's entry, to and from a message (`joined`). */
void wfi_store_message_of_member(wfi_store_message *message, const wfi_member *member);
void wfi_store_member_of_message(wfi_member *member, const wfi_store_message *message);

/*
 * Sets *size to the size of the frame that begins at data; to 0 if more bytes are needed. WEFT_ERR_PROTOCOL if the
 * bytes are malformed or the frame is larger than `limit`.
 */
weft_status wfi_store_frame_size(const uint8_t *data, size_t have, size_t limit, size_t *size);
uint8_t wfi_store_frame_type(const uint8_t *frame); /* of a whole frame */

/* WEFT_ERR_PROTOCOL: malformed; WEFT_ERR_UNSUPPORTED: another version (a `refuse` is read in any version). */
weft_status wfi_store_decode(const uint8_t *frame, size_t size, wfi_store_message *out);
/*
 * out->members is allocated; the caller frees it. Also WEFT_ERR_MEMORY. After a failure *out has nothing to free, but
 * may hold the key: wipe it.
 */
weft_status wfi_store_decode_world(const uint8_t *frame, size_t size, wfi_store_world *out);

/* 1..127 bytes of [A-Za-z0-9-_:]. */
bool wfi_store_name_is_well_formed(const char *name);

#endif
