/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.h - where a worker gets its job's secret from, so that neither its command line nor its environment shows
 * it.
 *
 * These sources are tried in this order:
 *   1. what the program passed to weft_agent_open;
 *   2. WEFT_SECRET_FD, the number of a descriptor that weft_job_open left open: it is read and closed, and the variable
 *      is removed;
 *   3. WEFT_SECRET_FILE, the name of a file: read anew each time; one line break at its end is dropped;
 *   4. WEFT_SECRET: the value is overwritten in the environment, and the variable is removed.
 * A descriptor and WEFT_SECRET can be read only once. Their secret is therefore kept for the next agent of this
 * process, in locked memory that is left out of core dumps and is wiped at exit. A variable that is set but empty is
 * an error, unless another source has a secret.
 *
 * LOCKING. A lock guards the kept secret. Nothing guards the environment, so no other thread may use it meanwhile.
 */
#ifndef WFI_SECRET_H
#define WFI_SECRET_H

#include <weft/status.h>

#define WFI_SECRET_MIN 16
#define WFI_SECRET_MAX 4096
#define WFI_SECRET_RANDOM 32 /* bytes of a random one */

typedef struct wfi_secret {
    size_t size; /* 0: there is none */
    uint8_t bytes[WFI_SECRET_MAX];
} wfi_secret;

/*
 * Finds the secret; out->size is 0 if no source has one. `given` may be NULL. Any thread, if no other thread uses the
 * environment meanwhile. WEFT_ERR_INVALID: outside 16 to 4,096 bytes, an empty variable, or a variable that names no
 * descriptor; WEFT_ERR_IO: a file that cannot be read. The detail names the source and the file, never the secret.
 */
weft_status wfi_secret_find(const void *given, size_t given_size, wfi_secret *out, weft_error **error);
/* The same, only from WEFT_SECRET_FILE or WEFT_SECRET: for a job that this process starts. */
weft_status wfi_secret_given(wfi_secret *out, weft_error **error);
/* Removes WEFT_SECRET from the environment, if it is set, and keeps it for the next agent. Threads as above. */
void wfi_secret_hide(void);
void wfi_secret_wipe(wfi_secret *secret); /* when done; NULL is a no-op */

weft_status wfi_secret_random(wfi_secret *out); /* WFI_SECRET_RANDOM bytes; WEFT_ERR_SYSTEM */
/* A sealed file in memory that holds it, close-on-exec, for children to inherit; -1 with errno. */
int wfi_secret_memory_file(const wfi_secret *secret);

/* Sets close-on-exec on the inherited descriptor, if any: this process's children get another secret. */
void wfi_secret_guard_inherited(void);

#endif
