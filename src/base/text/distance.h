/* SPDX-License-Identifier: Apache-2.0 */
/* distance.h - how similar two names are. */
#ifndef WFI_DISTANCE_H
#define WFI_DISTANCE_H

#include <stddef.h>

#define WFI_DISTANCE_BYTES 64 /* the longest name that wfi_distance compares */

/* The edit distance: letters to add, remove, replace or swap with the next one to turn `a` into `b`. Sizes in bytes. */
size_t wfi_distance(const char *a, size_t a_size, const char *b, size_t b_size);

#endif
