/* SPDX-License-Identifier: Apache-2.0 */
/*
 * anchor.h - what a registration hangs on: a range of memory that stays where it is. A slab has one for as long as it is
 * mapped, so its registrations survive recycling; every other storage has one of its own.
 */
#ifndef WFI_MEM_ANCHOR_H
#define WFI_MEM_ANCHOR_H

#include "base/list.h"

#include <stddef.h>
#include <stdint.h>

typedef struct wfi_reg_anchor {
    uint64_t id; /* never used twice */
    void *data;
    size_t size;
    wfi_list entries; /* of all caches; under the registrations' lock */
} wfi_reg_anchor;

void wfi_reg_anchor_init(wfi_reg_anchor *anchor, void *data, size_t size);
void wfi_reg_anchor_fini(wfi_reg_anchor *anchor); /* closes all its registrations; none may be in use */

#endif
