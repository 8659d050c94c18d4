/* SPDX-License-Identifier: Apache-2.0 */
/* fabric.c - the fabrics of this build, by name. */
#include "fabric.h"

#include <string.h>

static const wfi_fabric_ops *const fabrics[] = {
    &wfi_fabric_host,      &wfi_fabric_tcp,       &wfi_fabric_verbs,  &wfi_fabric_shm, &wfi_fabric_rxm,
    &wfi_fabric_efa,       &wfi_fabric_cxi,       &wfi_fabric_psm3,   &wfi_fabric_opx, &wfi_fabric_sim,
    &wfi_fabric_sim_verbs, &wfi_fabric_sim_reads, &wfi_fabric_sim_rdm};

const wfi_fabric_ops *wfi_fabric_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof fabrics / sizeof *fabrics; i++)
        if (strcmp(fabrics[i]->name, name) == 0)
            return fabrics[i];
    return NULL;
}

const wfi_fabric_ops *wfi_fabric_numbered(uint8_t number)
{
    for (size_t i = 0; i < sizeof fabrics / sizeof *fabrics; i++)
        if (fabrics[i]->number == number)
            return fabrics[i];
    return NULL;
}

const char *wfi_fabric_names(void)
{
    return "\"host\", \"tcp\", \"verbs\", \"shm\", \"rxm\", \"efa\", \"cxi\", \"psm3\", \"opx\" and \"sim\"";
}
