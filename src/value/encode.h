/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.h - encodes values to metadata. The contents of large tensors are not part of it: they stay in their memory.
 *
 * Encoding takes references to the tensors, and copies those that are not contiguous. It decides how the contents of
 * each travel (wfi_tensor_encoding in wire.h): in the metadata if all tensors together are small, or if this one is
 * tiny; otherwise the peer pulls them, or they are pushed into a landing place of the peer. Those to be pulled may be
 * made to follow the metadata later (wfi_encode_eager). Not thread-safe.
 */
#ifndef WFI_ENCODE_H
#define WFI_ENCODE_H

#include "mem/copies.h"
#include "value/wire.h"

#include <weft/value.h>

typedef struct wfi_encoded_tensor { /* one whose contents are not in the metadata */
    weft_tensor *tensor;
    size_t patch; /* offset in meta of its address and key; WFI_NO_PATCH: it is written to place `landing` */
    size_t landing;
} wfi_encoded_tensor;
#define WFI_NO_PATCH SIZE_MAX

/* A tensor in the memory of a device, which is sent from a copy in page-locked memory. */
typedef struct wfi_encoded_copy {
    weft_tensor *tensor; /* contiguous */
    size_t offset;       /* of the copy in `staged` */
    size_t patch;        /* offset in meta of its bytes; WFI_NO_PATCH: they are not there */
} wfi_encoded_copy;

#define WFI_META_ROOM 256 /* a few numbers, or one small tensor and its landing place */

typedef struct wfi_encoded_devices {
    size_t *offsets; /* in meta of the two device bytes of the tensors that have them (WFI_NAMES_DEVICES) */
    size_t offset_count, offset_capacity;
    /* Page-locked memory for the tensors of devices: those in `remote` are views of it. NULL: there are none. Its
     * bytes, and those in meta, are there after wfi_encode_copy, the end of the copies, and wfi_encode_copied. */
    wfi_storage *staged;
    size_t staged_bytes; /* that are taken */
    wfi_encoded_copy *copies;
    size_t copy_count, copy_capacity;
} wfi_encoded_devices;

typedef struct wfi_encoded {
    wfi_writer meta;
    wfi_encoded_tensor *remote;
    size_t remote_count, remote_capacity;
    size_t tensor_count;
    weft_rref **rrefs; /* held until the receiver has confirmed its own references to the owner */
    size_t rref_count, rref_capacity;
    weft_tensor **linked; /* held: the tensors for which `is_linked` is true, in order */
    size_t linked_count, linked_capacity;
    struct wfi_encoded_devices *devices; /* NULL: no tensor is marked WFI_NAMES_DEVICES */
    uint64_t remote_bytes;               /* of the tensors in `remote` */
    uint64_t packed_bytes;               /* of non-contiguous tensors, copied to be sent */
    uint64_t copied_bytes;               /* of tensors over the inline limit that were copied anyway: see wfi_copied */
} wfi_encoded;

typedef struct wfi_encode_options {
    const wfi_landing *landing; /* results: the caller's landing places */
    size_t landing_count;
    bool never_pushes; /* results: the peer pulls them into its landing places */
    size_t eager;      /* results: a payload that is not larger follows the metadata, and is not pushed */
    uint8_t *room;     /* for metadata of up to WFI_META_ROOM bytes; must outlive the encoded values. NULL: none */
    char *problem;     /* which tensor does not fit its landing place; NULL: not wanted */
    size_t problem_room;
    bool names_devices; /* tensors of the CPU are marked WFI_NAMES_DEVICES too: maps of devices name the CPU */
    bool (*is_linked)(const void *context, const weft_tensor *tensor); /* which tensors get WFI_LINKED; NULL: none */
    const void *context;
    /* Gives the name that the receiver of a message will use; the reference keeps that name. WEFT_OK, or why it cannot
     * be passed on. NULL: the values have no references. */
    weft_status (*pass)(weft_rref *rref, wfi_rref_name *name);
} wfi_encode_options;

/*
 * Whether these values fit in one call, as arguments or as results: checks the limits that apply to all lists
 * together. wfi_args_are_readable must hold. WEFT_ERR_TOO_LARGE: `problem` names the value that is too large, and the
 * limit.
 */
weft_status wfi_encode_fits(weft_args values, char *problem, size_t room);
/* Encodes values, of which wfi_args_are_readable holds. WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE, WEFT_ERR_SHAPE (a result
 * does not fit its landing place), WEFT_ERR_MEMORY, or why a reference cannot be passed on. On failure nothing is
 * held. */
weft_status wfi_encode(wfi_encoded *encoded, weft_args values, const wfi_encode_options *options);
/*
 * Adds the caller's own landing places after the values: first their number, then each. address 0: must not be
 * written.
 */
void wfi_encode_landing_count(wfi_encoded *encoded, size_t count);
#define WFI_LANDING_BYTES (32 + 8 * WEFT_MAX_DIMS + WFI_RMA_BYTES) /* most bytes that it adds */
void wfi_encode_landing(wfi_encoded *encoded, const weft_tensor *place, const wfi_rma_address *remote);
/* Writes into the metadata the address at which the peer can read a tensor of `remote` that has a patch. */
void wfi_encode_address(wfi_encoded *encoded, const wfi_encoded_tensor *tensor, const wfi_rma_address *remote);
/* Writes into the metadata that the bytes of this tensor, which has a patch, follow them. */
void wfi_encode_eager(wfi_encoded *encoded, const wfi_encoded_tensor *tensor);
/* Whether it has tensors of devices with elements. */
static inline bool wfi_encoded_leaves_device(const wfi_encoded *encoded)
{
    return encoded->devices && encoded->devices->copy_count;
}
/* Queues the copies of tensors of devices. Then call wfi_copies_end, even after a failure. Not with the agent's lock.
 */
weft_status wfi_encode_copy(const wfi_encoded *encoded, wfi_copies *copies);
void wfi_encode_copied(wfi_encoded *encoded); /* the copies have ended: writes those that belong into the metadata */
/* Frees everything. Do not hold the agent's lock, because references may be dropped. */
void wfi_encoded_fini(wfi_encoded *encoded);

#endif
