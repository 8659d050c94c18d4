/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guarded.h - memory for secrets and keys: no core dump contains it, and it is wiped when it is freed.
 *
 * It is mapped apart from the rest of the heap. Leak checkers do not look into it, so it must not hold pointers to
 * other memory.
 */
#ifndef WFI_GUARDED_H
#define WFI_GUARDED_H

#include <stddef.h>

void *wfi_guarded_calloc(size_t size); /* zeroed, aligned to 16; NULL: no memory. Any thread */
void wfi_guarded_free(void *memory);   /* NULL is a no-op */

#endif
