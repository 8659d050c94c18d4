/* SPDX-License-Identifier: Apache-2.0 */
/* rma.h - memory of another worker, as that worker named it in a message; and its form as bytes. Pure. */
#ifndef WFI_RMA_H
#define WFI_RMA_H

#include "base/codec.h"

typedef struct wfi_rma_address {
    uint64_t address, key;
    uint8_t fabric; /* wfi_fabric_ops.number of the fabric on which address and key are valid */
} wfi_rma_address;

#define WFI_RMA_BYTES 17

static inline void wfi_rma_encode(wfi_writer *writer, const wfi_rma_address *remote)
{
    wfi_write_u64(writer, remote->address);
    wfi_write_u64(writer, remote->key);
    wfi_write_u8(writer, remote->fabric);
}

static inline wfi_rma_address wfi_rma_decode(wfi_reader *reader)
{
    wfi_rma_address remote;
    remote.address = wfi_read_u64(reader);
    remote.key = wfi_read_u64(reader);
    remote.fabric = wfi_read_u8(reader);
    return remote;
}

#endif
