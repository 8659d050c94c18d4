/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.h - values on their way out: a small block of metadata, and the tensors that do not ride in it, which stay where they are.
 *
 * Encoding takes references to the tensors (copying those that are not contiguous), and decides where the bytes of each go: into the
 * metadata where all of them are small, or where the tensor is tiny; else the peer reads them, or they are written into a place of
 * its own. Not thread-safe; its owner orders access.
 */
#ifndef WFI_ENCODE_H
#define WFI_ENCODE_H

#include "value/wire.h"

#include <weft/value.h>

typedef struct wfi_encoded_tensor { /* one that does not ride in the metadata */
    weft_tensor *tensor;
    size_t patch; /* offset in meta of its address and key; WFI_NO_PATCH: it is written to place `landing` */
    size_t landing;
} wfi_encoded_tensor;
#define WFI_NO_PATCH SIZE_MAX

typedef struct wfi_encoded {
    wfi_writer meta;
    wfi_encoded_tensor *remote;
    size_t remote_count, remote_capacity;
    size_t tensor_count;
    weft_rref **rrefs; /* held: the receiver makes its own known to the owner while ours still count */
    size_t rref_count, rref_capacity;
    uint64_t remote_bytes; /* of the tensors in `remote` */
    uint64_t packed_bytes; /* of non-contiguous tensors, copied to be sent */
    uint64_t copied_bytes; /* of tensors over the inline limit, copied all the same: see wfi_copied */
} wfi_encoded;

typedef struct wfi_encode_options {
    const wfi_landing *landing; /* results: where the caller wants them */
    size_t landing_count;
    char *problem; /* what does not fit its landing place; NULL: not asked for */
    size_t problem_room;
} wfi_encode_options;

/* Whether they are sure to fit in one call, arguments or results, by what is bounded of all lists together. They can be read
 * (wfi_args_are_readable). WEFT_ERR_TOO_LARGE: `problem` says what, how much, and the limit. */
weft_status wfi_encode_fits(weft_args values, char *problem, size_t room);
/* They can be read (wfi_args_are_readable). WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE, WEFT_ERR_SHAPE (a result does not fit its landing
 * place), WEFT_ERR_MEMORY, or why a reference cannot be passed on. On failure nothing is held. */
weft_status wfi_encode(wfi_encoded *encoded, weft_args values, const wfi_encode_options *options);
/* Adds the caller's own landing places behind the values: how many they are, then each; address 0: nobody can write there. */
void wfi_encode_landing_count(wfi_encoded *encoded, size_t count);
void wfi_encode_landing(wfi_encoded *encoded, const weft_tensor *place, uint64_t address, uint64_t key);
/* Where a tensor of `remote` with a patch can be read. */
void wfi_encode_address(wfi_encoded *encoded, const wfi_encoded_tensor *tensor, uint64_t address, uint64_t key);
/* Lets go of everything. Not with the agent's lock: references may go. */
void wfi_encoded_fini(wfi_encoded *encoded);

#endif
