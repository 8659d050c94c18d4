/* SPDX-License-Identifier: Apache-2.0 */
/* shared.h - sealed memory that processes share: a memfd without a name in any file system. LOCKING: none. */
#ifndef WFI_SHARED_H
#define WFI_SHARED_H

#include <stddef.h>

/* A sealed memfd of `size` bytes, and its mapping: munmap(2) ends it, a child of fork(2) does not get it. Returns 0 or
 * an errno value (EFBIG: the limit of file sizes; no signal is raised). */
int wfi_shm_make(const char *name, size_t size, int *fd, void **out);
/*
 * Maps a memfd of another process after its size and seals were checked. Returns 0 or an errno value (EPROTO: it is
 * not such a memfd).
 */
int wfi_shm_map(int fd, size_t size, void **out);

#endif
