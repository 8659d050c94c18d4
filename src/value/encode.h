/* SPDX-License-Identifier: Apache-2.0 */
/*
 * encode.h - values on their way out: a small block of metadata, and the tensors it speaks of, which stay where they are.
 *
 * Packing takes references to the tensors (packing non-contiguous ones), and decides the road of each: payloads that fit
 * the inline limit ride in the frame, others are exposed for the peer to pull, or are to be pushed into landing places.
 * Not thread-safe; its owner orders access (before it is shared, or under the agent's lock).
 */
#ifndef WFI_PACK_H
#define WFI_PACK_H

#include "fabric.h"
#include "net/net.h"
#include "value/wire.h"

#include <weft/value.h>

/* A place at the caller that a result may be pushed to. */
typedef struct wfi_landing {
    weft_dtype dtype;
    weft_shape shape;
    uint64_t address, key, size;
} wfi_landing;

typedef struct wfi_packed { /* one tensor that does not ride in the frame */
    weft_tensor *tensor;
    size_t patch; /* offset in meta of its address and key; WFI_NO_PATCH: pushed to `landing` */
    size_t landing;
} wfi_packed;
#define WFI_NO_PATCH SIZE_MAX

/* Arguments packed once for several calls, counted. Those calls' packs are views of it, with exposures of their own. */
typedef struct wfi_shared_pack wfi_shared_pack;

typedef struct wfi_pack {
    wfi_shared_pack *shared; /* a view: tensors and references are its; meta as well, unless it has places to patch */
    wfi_writer meta;
    wfi_packed *remote;
    size_t remote_count, remote_capacity;
    size_t tensor_count;
    weft_rref **rrefs; /* held: the receiver makes its own known to the owner while ours still count */
    size_t rref_count, rref_capacity;
    uint64_t packed_bytes;     /* of non-contiguous tensors, copied to be sent */
    uint64_t copied_bytes;     /* of tensors over the inline limit, copied all the same: see wfi_copied */
    wfi_storage *meta_storage; /* meta as something to expose, when it outgrew the frame */
    wfi_exposure *exposures;
    size_t exposure_count;
    bool exposed;
} wfi_pack;

typedef struct wfi_pack_options {
    const wfi_landing *landing; /* results: where the caller wants them */
    size_t landing_count;
    char *problem; /* what does not fit its landing place; NULL: not asked for */
    size_t problem_room;
} wfi_pack_options;

/* Whether they are sure to fit in one call, arguments or results, by what is bounded of all lists together. They can be read
 * (wfi_args_are_readable). WEFT_ERR_TOO_LARGE: `problem` says what, how much, and the limit. */
weft_status wfi_pack_fits(weft_args values, char *problem, size_t room);
/* WEFT_ERR_INVALID, WEFT_ERR_TOO_LARGE, WEFT_ERR_SHAPE (a result does not fit its landing place), WEFT_ERR_MEMORY.
 * On failure the pack is empty. */
weft_status wfi_pack_values(wfi_pack *pack, weft_args values, const wfi_pack_options *options);
/* Adds the caller's own landing places after the values: how many they are, then each. They are exposed by the call, not by the
 * pack: where (0: it is not). */
void wfi_pack_landing_count(wfi_pack *pack, size_t count);
void wfi_pack_landing(wfi_pack *pack, const weft_tensor *place, uint64_t address, uint64_t key);
/* Packs for calls without landing places. Counts what was packed and copied here, once; views count their own. */
weft_status wfi_shared_pack_create(weft_args values, wfi_shared_pack **out);
wfi_shared_pack *wfi_shared_pack_ref(wfi_shared_pack *shared);
void wfi_shared_pack_unref(wfi_shared_pack *shared); /* not with the agent's lock. NULL is a no-op */
const wfi_pack *wfi_shared_pack_get(const wfi_shared_pack *shared);
size_t wfi_shared_pack_bytes(const wfi_shared_pack *shared);        /* its metadata and packed tensors; NULL: 0 */
weft_status wfi_pack_view(wfi_pack *pack, wfi_shared_pack *shared); /* WEFT_ERR_MEMORY */
/* Lets go of everything; exposures must have been withdrawn. Not with the agent's lock: references may go. */
void wfi_pack_fini(wfi_pack *pack);

/*
 * Exposes what must be pulled and writes the body after `header`. When all fits, meta is appended to `header`;
 * else meta is exposed too. [agent lock]
 */
weft_status wfi_pack_seal(wfi_pack *pack, wfi_peer *peer, wfi_writer *header);
uint64_t wfi_pack_bytes(
    const wfi_pack *pack); /* what it keeps in memory: metadata, and tensors that do not ride in it */
/* What a sealed one holds that is no user's: small things and metadata in the frame; copies that the peer reads for itself, be
 * they metadata or packed tensors. Of a view, what is shared counts as if it were its own. */
size_t wfi_pack_small_bytes(const wfi_pack *pack);
size_t wfi_pack_copied_bytes(const wfi_pack *pack);
uint64_t wfi_pack_exposed_bytes(const wfi_pack *pack); /* what the peer pulls from us: net cannot count it */
void wfi_pack_withdraw(wfi_pack *pack, wfi_peer *peer, bool quiet); /* [agent lock] */

/* The segments to push into landing places: a malloc'ed array, NULL if none. Tensors stay with the pack. */
weft_status wfi_pack_pushes(const wfi_pack *pack, const wfi_landing *landing, wfi_segment **segments, size_t *count);

#endif
