/* SPDX-License-Identifier: Apache-2.0 */
/* refusal.c - the linker puts the wfi_calloc below in the place of the library's. */
#include "data_parallel/refusal.h"

#include <stdatomic.h>

void *__real_wfi_calloc(size_t count, size_t size);
void *__wrap_wfi_calloc(size_t count, size_t size);

static atomic_size_t refused_count, refused_size;
static atomic_int refusals;

void *__wrap_wfi_calloc(size_t count, size_t size)
{
    int left = 1;
    if (atomic_load(&refusals) && count == atomic_load(&refused_count) && size == atomic_load(&refused_size) &&
        atomic_compare_exchange_strong(&refusals, &left, 0))
        return NULL;
    return __real_wfi_calloc(count, size);
}

void refuse_next(size_t count, size_t size)
{
    atomic_store(&refused_count, count);
    atomic_store(&refused_size, size);
    atomic_store(&refusals, 1);
}

bool was_refused(void)
{
    return !atomic_load(&refusals);
}
