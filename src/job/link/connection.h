/* SPDX-License-Identifier: Apache-2.0 */
/*
 * connection.h - one TCP connection from a worker to the store: it connects without waiting, reads whole frames, and
 * buffers output that the kernel does not take. Only socket.c uses it.
 *
 * Nothing blocks. A connection that can no longer be used (its buffer is over the limit, or memory is exhausted) sets
 * `overflowed`; the caller then closes it. It takes no lock: the caller holds the link's own lock while it sends
 * (link.h). wfi_pipe_close frees what a connection held, and overwrites received data, which may contain keys.
 */
#ifndef WFI_LINK_CONNECTION_H
#define WFI_LINK_CONNECTION_H

#include "base/socket.h"

typedef struct wfi_pipe {
    int fd;          /* -1: none */
    bool connecting; /* a connect is in progress */
    uint8_t *input;
    size_t input_size, input_capacity, input_limit;
    uint8_t *output; /* output that the kernel has not taken */
    size_t output_size, output_capacity;
    bool overflowed; /* the other side does not read, or there is no memory */
} wfi_pipe;

void wfi_pipe_init(wfi_pipe *pipe);
void wfi_pipe_close(wfi_pipe *pipe); /* closes it and frees its buffers; then it is as after init */

/* Begins to connect, without waiting. Returns 0 if the connect is in progress or done, otherwise an errno value. */
int wfi_pipe_dial(wfi_pipe *pipe, const wfi_endpoint *endpoint);
/* For a pipe that connects and is ready for output. Returns 0 if it is connected, EINPROGRESS, or an errno value. */
int wfi_pipe_dialled(wfi_pipe *pipe);

void wfi_pipe_send(wfi_pipe *pipe, const uint8_t *data, size_t size); /* never blocks */
void wfi_pipe_flush(wfi_pipe *pipe);

/* 1: read some bytes; 0: no bytes are available; -1: the connection has ended, *why says how. */
int wfi_pipe_read(wfi_pipe *pipe, const char **why);
/* The size of the whole frame at the front; 0: not complete yet; -1: malformed. */
int64_t wfi_pipe_frame(const wfi_pipe *pipe);
void wfi_pipe_drop(wfi_pipe *pipe, size_t size); /* from the front */

#endif
