/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sealed.h - files in memory that cannot be changed, for children to inherit.
 *
 * Programs that are not linked with the library compile sealed.c and nosignal.c: they need nothing of weft.
 */
#ifndef WFI_SEALED_H
#define WFI_SEALED_H

#include <stddef.h>

/* A sealed file with these bytes. It is close-on-exec, is none of the standard descriptors, and ends with the last
 * process that has it open. -1 with errno (EFBIG: the process's limit of file sizes). */
int wfi_sealed_file(const char *name, const void *bytes, size_t size);

#endif
