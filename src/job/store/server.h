/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.h - the store over TCP: one thread in the process of rank 0, which feeds the state machine of store.h.
 *
 * Only that thread touches the state machine and the connections. Other threads may count (wfi_store_server_count)
 * and end it. The thread blocks in poll and nowhere else, so half a message, a silent peer or a slow reader delays
 * nobody. A peer must join within WFI_STORE_UNAUTHENTICATED_MS. The number of peers that have not joined is bounded;
 * when it is reached, the newest replaces the oldest. All signals are blocked in the thread.
 */
#ifndef WFI_STORE_SERVER_H
#define WFI_STORE_SERVER_H

#include "base/socket.h"
#include "job/store/store.h"

#define WFI_STORE_UNAUTHENTICATED_MS 5000

typedef struct wfi_store_server_options {
    int listen_fd; /* a listening socket; the server takes it, even on failure */
    int world_size;
    bool elastic;
    const uint8_t *secret; /* copied; NULL: none */
    size_t secret_size;
    int64_t death_timeout_ms;
    const char *failure; /* see wfi_store_options */
    /*
     * Asked while the store gathers workers: whether a worker that the store awaits (wfi_store_awaits) will never
     * come. Then `why` gets the reason, which the store sends to all others, and *missing the number of such workers.
     * NULL: not known.
     */
    bool (*is_lost)(void *arg, const wfi_store *store, char *why, size_t room, int *missing);
    /* Asked while the server ends, if the job failed to begin: nobody is left who could connect. NULL: not known. */
    bool (*is_alone)(void *arg);
    /* see wfi_store_options */
    void (*describe_awaited)(void *arg, const wfi_store *store, char *out, size_t room);
    void *processes_arg; /* of these functions, which the server's thread calls */
} wfi_store_server_options;

typedef struct wfi_store_server wfi_store_server;

weft_status wfi_store_server_start(const wfi_store_server_options *options, wfi_store_server **out, weft_error **error);
void wfi_store_server_count(const wfi_store_server *server, wfi_store_counts *out); /* NULL: zeros. Any thread */
/* Serves until all members are gone and all workers have heard of a failure, or is_alone; at most grace_ms. Waits for
 * that and frees the server. NULL is a no-op. */
void wfi_store_server_end(wfi_store_server *server, int64_t grace_ms);

#endif
