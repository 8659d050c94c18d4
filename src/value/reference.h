/* SPDX-License-Identifier: Apache-2.0 */
/*
 * reference.h - a remote reference, for values: it is reference-counted, and can be passed on. rpc/refs has the rest.
 */
#ifndef WFI_REFERENCE_H
#define WFI_REFERENCE_H

#include "base/handle.h"

#include <weft/rref.h>

#include <stdatomic.h>

/* The first member of every weft_rref. */
typedef struct wfi_reference {
    wfi_handle handle;
    atomic_int refs;
    void (*release)(weft_rref *rref); /* the last count was dropped */
} wfi_reference;

void wfi_reference_init(wfi_reference *reference, void (*release)(weft_rref *rref)); /* its creator holds it */
/*
 * Drops a count without calling `release`. Returns true if that was the last one: then the caller frees it. False for
 * NULL.
 */
bool wfi_reference_drop(weft_rref *rref);

#endif
