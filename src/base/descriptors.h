/* SPDX-License-Identifier: Apache-2.0 */
/* descriptors.h - how many file descriptors this process may have. */
#ifndef WFI_DESCRIPTORS_H
#define WFI_DESCRIPTORS_H

#include <weft/status.h>

#include <stdbool.h>

/* Raises the process's soft limit to the hard one, or to a million if that is less. If it cannot be raised, it
 * stays. */
void wfi_descriptors_raise(void);

#define WFI_DESCRIPTORS_LACK_MAX 8
/* Whether fewer than `count` more descriptors are available; `count` is at most WFI_DESCRIPTORS_LACK_MAX. */
bool wfi_descriptors_lack(int count);
/* Fails with WEFT_ERR_SYSTEM and a text: `doing` failed because this process is out of descriptors, and its limit. */
weft_status wfi_descriptors_fail(const char *doing, weft_error **error);
unsigned long long wfi_descriptors_limit(void); /* the soft limit */
unsigned long long wfi_descriptors_hard_limit(void);

#endif
