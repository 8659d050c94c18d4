/* SPDX-License-Identifier: Apache-2.0 */
/* reference.h - what values know of a remote reference: who holds it is counted, and it can be passed on. The rest is rpc/refs'. */
#ifndef WFI_REFERENCE_H
#define WFI_REFERENCE_H

#include "value/wire.h"

#include <weft/rref.h>

#include <stdatomic.h>

typedef struct wfi_reference_ops {
    /* Writes the name under which whoever gets the message will know it, and keeps it from now on. WEFT_OK, or why it cannot be
     * passed on. */
    weft_status (*pass)(weft_rref *rref, wfi_rref_name *name);
    /* The last holder has let go. */
    void (*release)(weft_rref *rref);
} wfi_reference_ops;

/* The first member of every weft_rref. */
typedef struct wfi_reference {
    atomic_int refs;
    const wfi_reference_ops *ops;
} wfi_reference;

void wfi_reference_init(wfi_reference *reference, const wfi_reference_ops *ops); /* its maker holds it */
/* Lets go of it. True: that was the last holder, and the rest is the caller's, instead of `release`. NULL: false. */
bool wfi_reference_drop(weft_rref *rref);
weft_status wfi_reference_pass(weft_rref *rref, wfi_rref_name *name);

#endif
