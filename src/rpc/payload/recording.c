/* SPDX-License-Identifier: Apache-2.0 */
/* recording.c - the one table of recording.h. */
#include "rpc/payload/recording.h"

static const wfi_recording_ops *table;

void wfi_recording_ops_set(const wfi_recording_ops *ops)
{
    table = ops;
}

const wfi_recording_ops *wfi_recording_ops_get(void)
{
    return table;
}
