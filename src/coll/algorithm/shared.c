/* SPDX-License-Identifier: Apache-2.0 */
/* shared.c - the schedule of an operation that is done in memory which all members share: one step (coll/share.c). */
#include "coll/algorithm/algorithm.h"

size_t wfi_slot_need(const wfi_collective *collective)
{
    bool has_all =
        collective->kind == WFI_REDUCE_SCATTER || collective->kind == WFI_ALL_TO_ALL || collective->kind == WFI_SCATTER;
    return wfi_part_bytes(collective) * (has_all ? collective->members : 1);
}

bool wfi_slot_suits(const wfi_collective *collective)
{
    return collective->kind == WFI_ALLREDUCE || wfi_slot_need(collective) <= WFI_SLOT_BYTES;
}

void wfi_build_shared(const wfi_collective *collective, wfi_schedule *schedule)
{
    (void)collective;
    wfi_schedule_share(schedule, WFI_PART_WHOLE, wfi_at(WFI_INPUT, 0), 0, wfi_at(WFI_OUTPUT, 0), 0);
}
