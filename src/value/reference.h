/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.h - a remote reference, for values: it is reference-counted, and can be passed on. rpc/refs has the rest.
 */
#ifndef WFI_REFERENCE_H
#define WFI_REFERENCE_H

#include "base/handle.h"
#include "value/wire.h"

#include <weft/rref.h>

#include <stdatomic.h>

typedef struct wfi_reference_ops {
    /*
     * Gives the name that the receiver of a message will use; the reference keeps that name. WEFT_OK, or why it
     * cannot be passed on.
     */
    weft_status (*pass)(weft_rref *rref, wfi_rref_name *name);
    /* The last count was dropped. */
    void (*release)(weft_rref *rref);
} wfi_reference_ops;

/* The first member of every weft_rref. */
typedef struct wfi_reference {
    wfi_handle handle;
    atomic_int refs;
    const wfi_reference_ops *ops;
} wfi_reference;

void wfi_reference_init(wfi_reference *reference, const wfi_reference_ops *ops); /* its creator holds it */
/*
 * Drops a count without calling `release`. Returns true if that was the last one: then the caller frees it. False for
 * NULL.
 */
bool wfi_reference_drop(weft_rref *rref);
weft_status wfi_reference_pass(weft_rref *rref, wfi_rref_name *name);

#endif
