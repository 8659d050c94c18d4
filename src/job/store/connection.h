/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.h - one TCP connection to the store, at the store's side, and the internals of the server.
 *
 * Only server.c and connection.c use this header. A connection reads whole frames and passes them to the state
 * machine (store.h). Output that the kernel does not take at once is buffered, up to a limit. Everything here belongs
 * to the server's thread. The server owns its connections: wfi_store_peer_destroy frees one.
 */
#ifndef WFI_STORE_CONNECTION_H
#define WFI_STORE_CONNECTION_H

#include "base/list.h"
#include "base/map.h"
#include "job/store/server.h"

#include <poll.h>
#include <stdatomic.h>

typedef enum wfi_store_peer_state {
    WFI_STORE_PEER_OPEN,
    WFI_STORE_PEER_FLUSHING, /* the last message is written, then the socket is shut; input is discarded */
    /* evicted: nothing is read; stays open until its deadline so that the worker can read its messages */
    WFI_STORE_PEER_KEPT,
} wfi_store_peer_state;

typedef struct wfi_store_peer {
    wfi_list link; /* in server->peers, in order of arrival */
    wfi_store_server *server;
    uint64_t id;
    int fd;
    wfi_store_peer_state state;
    bool is_unauthenticated, is_broken, is_shut;
    bool has_gone;        /* unauthenticated, and has closed its side: no answer is sent */
    wfi_store_loss loss;  /* how the connection broke */
    uint64_t deadline_ns; /* when the server closes it; WFI_NEVER for members */
    uint8_t *output;      /* what the kernel has not taken: [output_at, output_size) */
    size_t output_at, output_size, output_capacity;
    size_t input_size;
    uint8_t input[WFI_STORE_SMALL_MAX];
} wfi_store_peer;

/* Only the server's thread uses it, except `ending`, `grace_ms` (written before `ending`) and `wake_fd`. */
struct wfi_store_server {
    wfi_store *store;
    pthread_t thread;
    int listen_fd, wake_fd;
    int world_size;
    atomic_bool ending;
    int64_t grace_ms;
    bool (*is_alone)(void *arg); /* (constant) see wfi_store_server_options */
    bool (*is_lost)(void *arg, const wfi_store *store, char *why, size_t room, int *missing); /* (constant) */
    void *processes_arg;                                                                      /* (constant) */
    wfi_list peers;
    size_t peer_count;
    wfi_map by_id;
    uint64_t last_id;
    int unauthenticated; /* peers that have not joined */
    uint64_t due_ns, accept_at_ns;
    struct pollfd *polls;
    wfi_store_peer **polled; /* parallel to polls */
    size_t poll_capacity;
};

weft_status wfi_store_peer_create(wfi_store_server *server, int fd, uint64_t deadline_ns); /* unauthenticated */
/* Tells the store, unless the store closed the connection. */
void wfi_store_peer_destroy(wfi_store_peer *peer, uint64_t now_ns);
short wfi_store_peer_events(const wfi_store_peer *peer);
void wfi_store_peer_serve(wfi_store_peer *peer, short ready, uint64_t now_ns);
void wfi_store_peer_flush(wfi_store_peer *peer);
wfi_store_outputs wfi_store_peer_outputs(wfi_store_server *server);

#endif
