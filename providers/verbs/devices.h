/* SPDX-License-Identifier: Apache-2.0 */
/* devices.h - explains why verbs does not open on this machine. */
#ifndef WFI_VERBS_DEVICES_H
#define WFI_VERBS_DEVICES_H

#include "ofi/address.h"

/*
 * Writes why verbs does not open, and what to do: no device, devices that this process may not use, devices without an
 * address, or a user's interface (`local`; NULL: none was named) that is not one of an RDMA device.
 */
void wfi_verbs_explain(const wfofi_sockaddr *local, char *out, size_t room);
/* The same for a tree of files like that below "/", for tests. */
void wfi_verbs_explain_below(const char *root, const wfofi_sockaddr *local, char *out, size_t room);

#endif
