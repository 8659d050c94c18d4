/* SPDX-License-Identifier: Apache-2.0 */
/*
 * guarded.h - memory for secrets and keys: no core dump has it, and what was in it is wiped when it is given back.
 *
 * It lies in mappings of its own, apart from the rest of the heap, which a dump shows. Leak checkers do not see it: nothing but
 * bytes belongs there, no pointer to other memory.
 */
#ifndef WFI_GUARDED_H
#define WFI_GUARDED_H

#include <stddef.h>

void *wfi_guarded_calloc(size_t size); /* zeroed, aligned to 16; NULL: no memory. Any thread */
void wfi_guarded_free(void *memory);   /* NULL is a no-op */

#endif
