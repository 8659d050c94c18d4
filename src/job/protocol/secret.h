/* SPDX-License-Identifier: Apache-2.0 */
/*
 * secret.h - where a worker gets its job's secret from, so that it shows neither on a command line nor in the environment.
 *
 * Looked for in this order: what the program gave; a descriptor inherited from weft_spawn (WEFT_SECRET_FD: read, closed, the
 * variable removed); WEFT_SECRET_FILE (read anew each time, one line's end at its end dropped); WEFT_SECRET (its bytes in the
 * environment are wiped, the variable removed). Descriptor and variable can be read once only, so what they held is kept for
 * this process's next agent, in locked memory that no core dump has and that is wiped at exit. A variable that is set and empty
 * is an error where no other source has a secret.
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
 * Finds it; out->size is 0 if there is none anywhere. `given` may be NULL. Any thread; not while another thread uses the
 * environment. WEFT_ERR_INVALID: outside 16 to 4,096 bytes, an empty variable, or one that names no descriptor; WEFT_ERR_IO: a
 * file that cannot be read. The detail names the source, also the file, never the secret.
 */
weft_status wfi_secret_find(const void *given, size_t given_size, wfi_secret *out, weft_error **error);
/* Takes WEFT_SECRET out of the environment, if it is there, and keeps it for the next agent. Threads as above. */
void wfi_secret_hide(void);
void wfi_secret_wipe(wfi_secret *secret); /* when done; NULL is a no-op */

weft_status wfi_secret_random(wfi_secret *out); /* WFI_SECRET_RANDOM bytes; WEFT_ERR_SYSTEM */
/* A sealed file in memory that holds it, close-on-exec, for children to inherit; -1 with errno. */
int wfi_secret_memory_file(const wfi_secret *secret);

/* The descriptor that we inherited, if any, closes on exec from now on: our children's secret is another. */
void wfi_secret_guard_inherited(void);

#endif
