/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.h - how many file descriptors this process may have. */
#ifndef WFI_DESCRIPTORS_H
#define WFI_DESCRIPTORS_H

#include <weft/status.h>

/*
 * Raises the process's soft limit to the hard one, or to a million where that is more, unless WEFT_KEEP_DESCRIPTOR_LIMIT says no.
 * WEFT_ERR_INVALID if that makes no sense; a limit that cannot be raised stays.
 */
weft_status wfi_descriptors_raise(weft_error **error);

#endif
