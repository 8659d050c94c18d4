/* SPDX-License-Identifier: Apache-2.0 */
/* tcp.h - the workarounds for defects of libfabric's tcp, as hooks of providers/ofi: workarounds.c. */
#ifndef WFI_TCP_H
#define WFI_TCP_H

#include "ofi/objects.h"

extern const wfofi_hooks wfi_tcp_workarounds;

#endif
