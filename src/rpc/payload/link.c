/* SPDX-License-Identifier: Apache-2.0 */
/* link.c - the one table of link.h. */
#include "rpc/payload/link.h"

static const wfi_links *table;

void wfi_links_set(const wfi_links *links)
{
    table = links;
}

const wfi_links *wfi_links_get(void)
{
    return table;
}
