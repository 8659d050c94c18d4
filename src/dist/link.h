/* SPDX-License-Identifier: Apache-2.0 */
/* link.h - one side of a call under a context, for src/dist (rpc/payload/link.h describes how calls use it). */
#ifndef WFI_DIST_LINK_H
#define WFI_DIST_LINK_H

#include "dist/context.h"
#include "rpc/payload/link.h"

#define WFI_LINK_HOLDERS 32 /* named in one reply */

/* The caller's side of all attempts of one call: its context and its path. */
struct wfi_link_source {
    _Atomic uint32_t refs;
    weft_context *context; /* referenced */
    wfi_tape_path *path;   /* of the call; referenced */
};

struct wfi_link {
    wfi_link_source *source; /* referenced */
    weft_context *context;   /* always source->context; not referenced by itself */
    bool calls;              /* the caller's side of a call to another worker */
    bool heard;              /* the callee, which takes part, has answered */
    bool served;             /* the callee's side, counted in context->served */
    int peer;
    uint64_t floor;      /* of this worker, as the call carried it; 0: the call carried another's */
    uint64_t first_send; /* number of the first tensor that this side sent */
    uint64_t theirs;     /* number of the first tensor that the other side sent */
};

#endif
