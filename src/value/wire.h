/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wire.h - the messages of calls, as bytes. docs/wire.md has the whole format.
 *
 * CALL    id u64, flags u8, timeout_ns u64, function (u8 length, bytes), context blob,
 *         [trace u64, span u64, sent_ns u64 (time of day; 0: unknown)], [rref name, fork u64], body
 *         (rref name: owner u32, its incarnation u32, creator u32, its incarnation u32, number u64)
 * REPLY   id u64, flags u8, items u32 (how many the callee sent), [context blob], error or body
 * ITEM    id u64, number u32 (from 0), flags u8, [first linked tensor u64], body    an item of the results
 * TOOK    id u64, number u32     the caller's on_item has returned from that item
 * DONE    id u64                 the caller has pulled the results (and confirmed the references in them)
 * REFUSED first id u64, last id u64, no memory u8    the caller's calls with ids from first to last did not run, and
 * will not CANCEL  id u64, late u8        the caller gave up; late 1: its time ran out
 * FORK    rref name, fork u64    the sender holds a handle now; the owner is to confirm it
 * FORKED  rref name, fork u64, status u32    the owner confirms (0), or says why not: NOT_FOUND, MEMORY
 * DROP    rref name, fork u64, gave_up u8    the sender's last handle is gone; 1: it is the value's creator, and the
 * call
 *                                            that was to make the value failed or will never come
 * FETCH is a call of the reserved function "weft:fetch".
 *
 * A body is either here (u8 0, u32 size, meta; then the bytes of the tensors marked EAGER) or elsewhere (u8 1, memory,
 * size u64 of meta to be pulled). Memory is address u64, key u64, fabric u8 (mem/rma.h). Meta: values, then the
 * caller's landing places.
 */
#ifndef WFI_RPC_WIRE_H
#define WFI_RPC_WIRE_H

#include "base/codec.h"
#include "base/map.h"
#include "mem/cuda.h"
#include "mem/rma.h"

#include <weft/value.h>

enum wfi_rpc_message {
    WFI_RPC_CALL = 1,
    WFI_RPC_REPLY = 2,
    WFI_RPC_DONE = 3,
    WFI_RPC_CANCEL = 4,
    WFI_RPC_FORK = 5,
    WFI_RPC_FORKED = 6,
    WFI_RPC_DROP = 7,
    WFI_RPC_ITEM = 8,
    WFI_RPC_TOOK = 9,
    WFI_RPC_REFUSED = 10,
    WFI_RPC_GROUP = 11, /* of src/coll */
};

enum wfi_call_flags {
    WFI_CALL_REMOTE = 1, /* the result stays with the callee, under an rref name */
    WFI_CALL_ITEMS = 2,  /* the caller takes items */
    WFI_CALL_TRACED = 4, /* trace, span and time follow */
};

enum wfi_reply_flags {
    WFI_REPLY_ERROR = 1,
    WFI_REPLY_NEEDS_DONE = 2, /* the callee keeps something until DONE */
    WFI_REPLY_LINKED = 4,     /* the callee takes part in the call's distributed context: its blob follows */
};

enum wfi_item_flags {
    WFI_ITEM_LINKED = 1, /* the number of the first linked tensor follows */
};

/* Where a tensor's bytes are. */
enum wfi_tensor_encoding {
    WFI_ENCODING_INLINE = 0, /* right here in meta */
    WFI_ENCODING_EAGER = 1,  /* behind meta, in order; here: memory without a meaning (outbound.c) */
    WFI_ENCODING_PULL = 2,   /* to be pulled: memory */
    WFI_ENCODING_PUSH = 3,   /* were pushed into landing place number u32 */
};

#define WFI_EAGER_LONG (32u << 10)   /* payload that is copied behind the metadata, in a long message, */
#define WFI_EAGER_LARGE (128u << 10) /* and in a large one */

/* Set in a tensor's dtype byte: it was recorded under the distributed context of its call (src/dist). */
#define WFI_LINKED 0x80u
/* Set there too: two bytes follow the sizes, the tensor's device at the sender, and the device at the receiver where it
 * shall be. Without it both are the CPU. */
#define WFI_NAMES_DEVICES 0x40u
/* Bytes of a tensor in page-locked memory that several share: each begins at a multiple of 64. */
static inline size_t wfi_staged_bytes(uint64_t nbytes)
{
    return (size_t)nbytes / 64 * 64 + 64;
}
/* A device as a byte, its code. 0: the CPU; n + 1: cuda:n. */
#define WFI_DEVICE_CODES (1 + WFI_CUDA_DEVICES_MAX)
static inline uint8_t wfi_device_code(weft_device device)
{
    return device.kind == WEFT_DEVICE_CUDA ? (uint8_t)(device.index + 1) : 0;
}
static inline weft_device wfi_device_of_code(uint8_t code)
{
    return code ? (weft_device){WEFT_DEVICE_CUDA, code - 1} : (weft_device){WEFT_DEVICE_CPU, 0};
}

#define WFI_INLINE_LIMIT 2048 /* payload that is part of the metadata; a larger one is EAGER, PULL or PUSH */
#define WFI_BODY_INLINE 3456  /* bytes of metadata, inline payload included, that fit a message for sure */
#define WFI_BODY_MARGIN 64    /* bytes of a message kept for what stands between its header and metadata, and behind */
#define WFI_TINY_TENSOR 256   /* a tensor of a larger call that is in the metadata nevertheless: a read costs more */
#define WFI_FUNCTION_NAME_MAX 127
#define WFI_META_MAX WEFT_MAX_CALL_BYTES /* bytes of meta that a peer may ask us to pull */
#define WFI_TIMEOUT_NEVER UINT64_MAX

/* The bytes that a copy of a tensor adds to weft_stats.bytes_copied. Called at every place where this folder copies
 * payload. */
static inline uint64_t wfi_copied(uint64_t nbytes)
{
    return nbytes > WFI_INLINE_LIMIT ? nbytes : 0;
}

/* A remote reference's name: unique in a job. */
typedef struct wfi_rref_name {
    uint32_t owner, creator;
    uint32_t owner_incarnation, creator_incarnation;
    uint64_t number; /* counted by the creator */
} wfi_rref_name;

void wfi_reference_write_name(wfi_writer *writer, const wfi_rref_name *name);
wfi_rref_name wfi_reference_read_name(wfi_reader *reader);
uint64_t wfi_reference_name_hash(const wfi_hash_key *hash_key, const wfi_rref_name *name);

/* A place at the caller that a result may be pushed to. */
typedef struct wfi_landing {
    weft_dtype dtype;
    weft_shape shape;
    wfi_rma_address remote;
    uint64_t size;
} wfi_landing;

typedef struct wfi_tensor_type {
    weft_dtype dtype;
    weft_shape shape;
    uint8_t from, to; /* devices: at the sender, and where it shall be at the receiver */
} wfi_tensor_type;

/* A tensor's dtype and shape. Reading fails on unknown dtypes, too many dimensions, sizes that overflow, and codes of
 * devices that cannot be. It also fails on WFI_LINKED if the dtype is not floating; and on WFI_LINKED and
 * WFI_NAMES_DEVICES if `linked` is NULL: of landing places. */
void wfi_value_write_tensor_type(wfi_writer *writer, weft_dtype dtype, weft_shape shape);
bool wfi_value_read_tensor_type(wfi_reader *reader, wfi_tensor_type *type, uint64_t *nbytes, bool *linked);
/* "float32 [2, 3]", for messages; returns `text`. */
#define WFI_TENSOR_TEXT 96
const char *wfi_value_tensor_type_text(char text[WFI_TENSOR_TEXT], weft_dtype dtype, weft_shape shape);

#endif
