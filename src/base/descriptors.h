/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.h - how many file descriptors this process may have. */
#ifndef WFI_DESCRIPTORS_H
#define WFI_DESCRIPTORS_H

#include <weft/status.h>

#include <stdbool.h>

/*
 * Raises the process's soft limit to the hard one, or to a million where that is more, unless WEFT_KEEP_DESCRIPTOR_LIMIT says no.
 * WEFT_ERR_INVALID if that makes no sense; a limit that cannot be raised stays.
 */
weft_status wfi_descriptors_raise(weft_error **error);

#define WFI_DESCRIPTORS_LACK_MAX 8
/* Whether fewer than `count` more can be had now, of which WFI_DESCRIPTORS_LACK_MAX are the most. */
bool wfi_descriptors_lack(int count);
/* Fails with WEFT_ERR_SYSTEM: `doing` cannot be done, as this process is out of descriptors; with its limit. */
weft_status wfi_descriptors_fail(const char *doing, weft_error **error);
unsigned long long wfi_descriptors_limit(void);

#endif
