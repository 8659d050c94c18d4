/* SPDX-License-Identifier: Apache-2.0 */
/* resolve.h - resolves host names within a time limit, which getaddrinfo lacks. */
#ifndef WFI_RESOLVE_H
#define WFI_RESOLVE_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct wfi_lookup wfi_lookup;

/*
 * Begins to resolve `host`, in a thread of its own. Numeric addresses and names of the loopback interface need none. If
 * the system starts no thread, this function resolves the name before it returns. `flags` are those of getaddrinfo.
 * Returns NULL if memory is exhausted.
 */
wfi_lookup *wfi_lookup_begin(const char *host, int port, int flags);
/*
 * Waits for the answer until the deadline, and frees the lookup. Returns 0 or an errno value: EHOSTUNREACH (no such
 * name), ETIMEDOUT (the name server did not answer), ENOMEM (also for a lookup that is NULL), EMFILE. The caller frees
 * *out by freeaddrinfo.
 */
int wfi_lookup_end(wfi_lookup *lookup, uint64_t deadline_ns, struct addrinfo **out);

int wfi_resolve(const char *host, int port, int flags, uint64_t deadline_ns, struct addrinfo **out); /* both */

/* Whether the host is explicitly loopback: "localhost", "127.0.0.1", "::1". */
bool wfi_hostname_says_loopback(const char *host);

#endif
