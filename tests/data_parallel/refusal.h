/* SPDX-License-Identifier: Apache-2.0 */
/* refusal.h - one request of the library for memory is refused. For tests that are linked with
 * LINKER:--wrap=wfi_calloc. */
#ifndef TESTS_DATA_PARALLEL_REFUSAL_H
#define TESTS_DATA_PARALLEL_REFUSAL_H

#include <stdbool.h>
#include <stddef.h>

/* The next wfi_calloc(count, size), by whichever member. */
void refuse_next(size_t count, size_t size);
bool was_refused(void);

#endif
