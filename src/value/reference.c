/* SPDX-License-Identifier: Apache-2.0 */
/* reference.c - see reference.h. */
#include "value/reference.h"

void wfi_reference_init(wfi_reference *reference, void (*release)(weft_rref *rref))
{
    atomic_init(&reference->handle.word, WFI_HANDLE_LIVE);
    atomic_init(&reference->refs, 1);
    reference->release = release;
}

static wfi_reference *reference_of(weft_rref *rref)
{
    return (wfi_reference *)rref;
}

weft_rref *weft_rref_ref(weft_rref *rref)
{
    WFI_CHECK_HANDLE(rref);
    if (rref)
        atomic_fetch_add_explicit(&reference_of(rref)->refs, 1, memory_order_relaxed);
    return rref;
}

bool wfi_reference_drop(weft_rref *rref)
{
    if (!rref)
        return false;
    int before = atomic_fetch_sub_explicit(&reference_of(rref)->refs, 1, memory_order_acq_rel);
    return WFI_HANDLE_IS_LAST(rref, before);
}

void weft_rref_unref(weft_rref *rref)
{
    WFI_CHECK_HANDLE(rref);
    if (wfi_reference_drop(rref))
        reference_of(rref)->release(rref);
}
