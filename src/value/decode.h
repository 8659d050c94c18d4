/* SPDX-License-Identifier: Apache-2.0 */
/*
 * decode.h - decodes metadata to owned values. It is checked, and each tensor gets memory. For tensors whose contents
 * are still at the peer there is a list of segments, which are read directly into that memory.
 *
 * All data come from the network: lengths, types, shapes and depths are checked before memory is allocated.
 */
#ifndef WFI_DECODE_H
#define WFI_DECODE_H

#include "mem/copies.h"
#include "value/wire.h"

#include <weft/rpc.h>

/* A place for tensor `index`: contiguous, of that dtype and shape, with a reference; NULL: take a slab. */
typedef weft_tensor *(*wfi_place_fn)(void *arg, size_t index, weft_dtype dtype, weft_shape shape);

/* How many tensors a call has, and the dtypes and shapes of the first ones. */
typedef struct wfi_tensor_types {
    size_t count; /* of all */
    wfi_tensor_type items[WEFT_MAX_SIGNATURE];
} wfi_tensor_types;

typedef struct wfi_decode_options {
    wfi_place_fn place; /* NULL: always slabs */
    void *place_arg;
    /* Called with place_arg and all tensors, before the first call of `place`; NULL: no. Not if `place` is user
     * code. */
    void (*expect)(void *arg, const wfi_tensor_types *types);
    /* Called before a slab is taken, for a tensor that got no place of `place`. A failure ends the decoding with that
     * status, and with what was written to `problem`. */
    weft_status (*admit)(void *arg, uint64_t bytes, char *problem, size_t room);
    void *admit_arg;
    bool checks_places;  /* whether the memory of a place can be written */
    size_t landed_count; /* number of landing places that this side offered; a PUSH beyond is a protocol error */
    bool takes_linked;   /* the values belong to a call under a distributed context; if not, WFI_LINKED is malformed */
    /* An answer: its receiver chooses the devices (wfi_decoded_move.device), by those where the tensors were. */
    bool is_answer;
    bool moves_cpu; /* an answer: tensors that were on the CPU may go to a device */
} wfi_decode_options;

/* A reference named in the values; its value slot is filled once the reference has been imported. */
typedef struct wfi_decoded_rref {
    weft_value *slot;
    wfi_rref_name name;
} wfi_decoded_rref;

/*
 * A tensor that goes to the memory of a device. Its value is NULL until wfi_decoded_to_devices. First its bytes are in
 * memory of the host.
 */
typedef struct wfi_decoded_move {
    size_t index; /* of all tensors */
    wfi_tensor_type type;
    uint64_t nbytes;
    uint8_t device;     /* as a byte; of an answer at first the one at the sender, until the owner has replaced it */
    weft_tensor *place; /* on the device, with a reference. NULL: it goes to the CPU, or wfi_decoded_stage makes it */
    weft_tensor *host;  /* its bytes, if they came with the message; NULL: they are pulled */
    size_t segment;     /* of `segments`, if they are pulled */
    size_t staged_at;   /* offset of its bytes in `staged` */
    uint64_t copied;    /* bytes for which wfi_decoded_copy has queued a copy */
} wfi_decoded_move;

typedef struct wfi_decoded_moves {
    size_t count, capacity;
    uint64_t nbytes;         /* of all */
    wfi_storage *staged;     /* page-locked memory, from wfi_decoded_stage on; NULL: none is needed */
    wfi_decoded_move *items; /* by index, growing */
} wfi_decoded_moves;

/* A tensor that came with WFI_LINKED. */
typedef struct wfi_decoded_link {
    size_t index;   /* of all tensors */
    uint8_t device; /* where it was at the sender, as a byte */
} wfi_decoded_link;

typedef struct wfi_decoded {
    weft_values *values;
    wfi_segment *segments; /* to pull; the tensors are held by `values` */
    size_t segment_count, segment_capacity;
    wfi_decoded_rref *rrefs;
    size_t rref_count, rref_capacity;
    wfi_decoded_link *linked; /* by index, growing */
    size_t linked_count, linked_capacity;
    struct wfi_decoded_moves *moves; /* NULL: none goes to a device */
    uint64_t landed_bytes;           /* pushed by the peer into landing places: net has not counted them */
    uint64_t copied_bytes;           /* see wfi_copied */
    char problem[160];               /* what was wrong, for the error's message */
} wfi_decoded;

/*
 * Decodes `meta`, taking the bytes of EAGER tensors from `tail`. On failure nothing is held.
 * WEFT_ERR_PROTOCOL (malformed), WEFT_ERR_TOO_LARGE, WEFT_ERR_SHAPE (a place does not fit), WEFT_ERR_MEMORY.
 */
weft_status wfi_decode(wfi_decoded *decoded, wfi_reader *meta, wfi_reader *tail, const wfi_decode_options *options);
void wfi_decoded_fini(wfi_decoded *decoded);

/* The next three are called in this order, once each `device` is final, and without the agent's lock, because they call
 * the driver. If one fails, `problem` may say why. */
/* Takes the memory of devices, and page-locked memory, to which it sets the segments. WEFT_ERR_MEMORY,
 * WEFT_ERR_UNSUPPORTED. */
weft_status wfi_decoded_stage(wfi_decoded *decoded);
/* May be called for bytes that have been pulled: queues their copy to the device of their tensor. No-op if the
 * segment goes to the CPU. */
weft_status wfi_decoded_copy(wfi_decoded *decoded, size_t segment, uint64_t offset, uint64_t size, wfi_copies *copies);
/* Once everything was pulled: queues the copies of all tensors that wfi_decoded_copy has not copied as a whole, and
 * puts the tensors into `values`. Then call wfi_copies_end, even after a failure. */
weft_status wfi_decoded_to_devices(wfi_decoded *decoded, weft_values *values, wfi_copies *copies);

/*
 * Sets *bytes to about the memory that the values in `meta` would take, and *types (may be NULL) to their tensors.
 * Reads the metadata like wfi_decode, but creates nothing. WEFT_ERR_PROTOCOL, WEFT_ERR_TOO_LARGE: `decoded->problem`
 * says why.
 */
weft_status wfi_decode_measure(wfi_decoded *decoded, const uint8_t *meta, size_t size, uint64_t *bytes,
                               wfi_tensor_types *types);

/*
 * Metadata read without creating values, so that they can be checked before memory is allocated. A value is bytes, or a
 * list of tensors, whose types wfi_peek_tensor reads one by one from `tensors`.
 */
typedef struct wfi_peeked {
    weft_type type;
    const uint8_t *bytes; /* in the metadata */
    size_t size;
    wfi_reader tensors;
    uint32_t tensor_count;
} wfi_peeked;

/* Reads the `count` values of `meta`, which wfi_decode_measure has found well-formed. False: there are more or fewer,
 * or one of another type. */
bool wfi_peek_values(const uint8_t *meta, size_t size, wfi_peeked *values, size_t count);
bool wfi_peek_tensor(wfi_reader *tensors, wfi_tensor_type *out); /* false: malformed */

/* Reads the caller's landing places, which follow the values: a malloc'ed array, NULL if none. */
weft_status wfi_decode_landing(wfi_reader *meta, wfi_landing **out, size_t *count);

#endif
