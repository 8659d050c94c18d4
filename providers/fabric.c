/* SPDX-License-Identifier: Apache-2.0 */
/* fabric.c - the fabrics of this build, by name and by number. */
#include "base/simulation.h"
#include "fabric.h"

#include <string.h>

static const wfi_fabric_ops *const fabrics[] = {
    &wfi_fabric_host, &wfi_fabric_tcp, &wfi_fabric_verbs, &wfi_fabric_shm, &wfi_fabric_rxm,
    &wfi_fabric_efa,  &wfi_fabric_cxi, &wfi_fabric_psm3,  &wfi_fabric_opx, NULL};

static const wfi_fabric_ops *find(const wfi_fabric_ops *const *at, const char *name, uint8_t number)
{
    while (*at && (name ? strcmp((*at)->name, name) != 0 : (*at)->number != number))
        at++;
    return *at;
}

static const wfi_fabric_ops *find_any(const char *name, uint8_t number)
{
    const wfi_fabric_ops *found = find(fabrics, name, number);
    return found || !wfi_simulation ? found : find(wfi_simulation->fabrics, name, number);
}

const wfi_fabric_ops *wfi_fabric_find(const char *name)
{
    return name ? find_any(name, 0) : NULL;
}

const wfi_fabric_ops *wfi_fabric_numbered(uint8_t number)
{
    return find_any(NULL, number);
}

const char *wfi_fabric_names(void)
{
    return "\"host\", \"tcp\", \"verbs\", \"shm\", \"rxm\", \"efa\", \"cxi\", \"psm3\" and \"opx\"";
}
