/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.h - one TCP connection from a worker to the store: it connects without waiting, reads whole frames, and
 * buffers what the kernel does not take. Only socket.c uses it.
 *
 * Nothing blocks. A connection that can no longer be used (the buffer is over its limit, or memory is out) sets
 * `overflowed`; the caller then closes it. It takes no lock: the caller holds the link's own lock where it sends
 * (link.h). wfi_pipe_close frees what a connection held, and overwrites what it had received, as there may be keys in
 * it.
 */
#ifndef WFI_LINK_CONNECTION_H
#define WFI_LINK_CONNECTION_H

#include "base/socket.h"

typedef struct wfi_pipe {
    int fd;          /* -1: none */
    bool connecting; /* the connect is under way */
    uint8_t *input;
    size_t input_size, input_capacity, input_limit;
    uint8_t *output; /* what the kernel has not taken */
    size_t output_size, output_capacity;
    bool overflowed; /* the other side does not read, or there is no memory */
} wfi_pipe;

void wfi_pipe_init(wfi_pipe *pipe);
void wfi_pipe_close(wfi_pipe *pipe); /* and forgets what it held; as after init */

/* Begins to connect, without waiting; an errno value, or 0: under way or done. */
int wfi_pipe_dial(wfi_pipe *pipe, const wfi_endpoint *endpoint);
/* Of one that connects and is ready for output: 0, now it stands; EINPROGRESS; or why it failed. */
int wfi_pipe_dialled(wfi_pipe *pipe);

void wfi_pipe_send(wfi_pipe *pipe, const uint8_t *data, size_t size); /* never blocks */
void wfi_pipe_flush(wfi_pipe *pipe);

/* 1: read some; 0: nothing there now; -1: it is over, *why says how. */
int wfi_pipe_read(wfi_pipe *pipe, const char **why);
/* The whole frame at the front: its size; 0: none yet; -1: bytes that are no frame. */
int64_t wfi_pipe_frame(const wfi_pipe *pipe);
void wfi_pipe_drop(wfi_pipe *pipe, size_t size); /* from the front */

#endif
