/* SPDX-License-Identifier: Apache-2.0 */
/*
 * slab.h - the process's pool of recycled mappings, sorted by kind and size class. It has its own lock. A slab belongs
 * to its user from wfi_slab_alloc to wfi_slab_free.
 */
#ifndef WFI_MEM_SLAB_H
#define WFI_MEM_SLAB_H

#include "mem/anchor.h"
#include "mem/mem.h"

#define WFI_SLAB_BYTES_MIN ((size_t)128 << 10) /* smaller host requests use malloc */

typedef struct wfi_slab {
    wfi_list by_class, by_age; /* of idle slabs; guarded by the pool's lock */
    wfi_memory_kind kind;
    int device;
    unsigned size_class;
    size_t size;
    size_t asked; /* in use: the size of the class that was asked for; at most `size` */
    void *data;
    uint64_t uses; /* of device memory: the streams whose work may still use it; see storage.h */
    wfi_reg_anchor anchor;
} wfi_slab;

/* `stream`: of device memory the number of the stream that will write it. */
weft_status wfi_slab_alloc(wfi_memory_kind kind, int device, size_t size, int stream, wfi_slab **out);
void wfi_slab_free(wfi_slab *slab);
/* The value of WEFT_SLAB_KEEP_MB, or -1; WEFT_ERR_INVALID. */
weft_status wfi_slab_setting(int64_t *keep_mb, weft_error **error);

/* Size classes: sixteen for each doubling, so that at most a sixteenth is added to a size. Exposed for tests. */
unsigned wfi_slab_class(size_t size);
size_t wfi_slab_class_bytes(unsigned size_class);

#endif
