/* SPDX-License-Identifier: Apache-2.0 */
/* connection.c - see connection.h. */
#include "job/link/connection.h"

#include "job/protocol/protocol.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OUTPUT_LIMIT ((size_t)WFI_STORE_SMALL_MAX * 64)

void wfi_pipe_init(wfi_pipe *pipe)
{
    *pipe = (wfi_pipe){.fd = -1, .input_limit = WFI_STORE_SMALL_MAX};
}

void wfi_pipe_close(wfi_pipe *pipe)
{
    if (pipe->fd >= 0)
        close(pipe->fd);
    if (pipe->input)
        sodium_memzero(pipe->input, pipe->input_capacity);
    free(pipe->input);
    free(pipe->output);
    wfi_pipe_init(pipe);
}

/* ---- Connecting ------------------------------------------------------------------------------------------------ */

int wfi_pipe_dial(wfi_pipe *pipe, const wfi_endpoint *endpoint)
{
    int fd = socket(endpoint->address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    wfi_tune_socket(fd);
    if (connect(fd, (const struct sockaddr *)&endpoint->address, endpoint->size) != 0 && errno != EINPROGRESS &&
        errno != EINTR) {
        int errnum = errno;
        close(fd);
        return errnum;
    }
    pipe->fd = fd;
    pipe->connecting = true;
    return 0;
}

int wfi_pipe_dialled(wfi_pipe *pipe)
{
    wfi_endpoint there = {.size = sizeof(there.address)};
    int errnum = 0;
    socklen_t size = sizeof(errnum);
    if (getsockopt(pipe->fd, SOL_SOCKET, SO_ERROR, &errnum, &size) != 0)
        return errno;
    if (errnum)
        return errnum;
    if (getpeername(pipe->fd, (struct sockaddr *)&there.address, &there.size) != 0)
        return errno == ENOTCONN ? EINPROGRESS : errno;
    if (wfi_socket_is_connected_to_itself(pipe->fd))
        return ECONNREFUSED;
    pipe->connecting = false;
    return 0;
}

/* ---- Output ---------------------------------------------------------------------------------------------------- */

/* Writes what the kernel takes. Errors are left to the reading side, which may first find the store's last messages. */
static size_t write_to_store(int fd, const uint8_t *data, size_t size)
{
    ssize_t wrote;
    do
        wrote = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (wrote < 0 && errno == EINTR);
    if (wrote >= 0)
        return (size_t)wrote;
    return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : size;
}

void wfi_pipe_flush(wfi_pipe *pipe)
{
    if (pipe->output_size == 0 || pipe->fd < 0)
        return;
    size_t done = write_to_store(pipe->fd, pipe->output, pipe->output_size);
    memmove(pipe->output, pipe->output + done, pipe->output_size - done);
    pipe->output_size -= done;
}

static bool make_room_for_output(wfi_pipe *pipe, size_t needed)
{
    if (needed <= pipe->output_capacity)
        return true;
    size_t capacity = needed * 2;
    uint8_t *output = needed <= OUTPUT_LIMIT ? realloc(pipe->output, capacity) : NULL;
    if (!output)
        return false;
    pipe->output = output;
    pipe->output_capacity = capacity;
    return true;
}

void wfi_pipe_send(wfi_pipe *pipe, const uint8_t *data, size_t size)
{
    if (pipe->fd < 0 || pipe->overflowed)
        return;
    wfi_pipe_flush(pipe);
    size_t done = pipe->output_size == 0 ? write_to_store(pipe->fd, data, size) : 0;
    if (done == size)
        return;
    if (!make_room_for_output(pipe, pipe->output_size + size - done)) {
        pipe->overflowed = true;
        return;
    }
    memcpy(pipe->output + pipe->output_size, data + done, size - done);
    pipe->output_size += size - done;
}

/* ---- Input ----------------------------------------------------------------------------------------------------- */

static bool make_room_for_input(wfi_pipe *pipe)
{
    if (pipe->input_capacity - pipe->input_size >= WFI_STORE_SMALL_MAX)
        return true;
    size_t capacity = pipe->input_capacity ? pipe->input_capacity * 2 : 4096;
    uint8_t *input = realloc(pipe->input, capacity);
    if (!input)
        return false;
    pipe->input = input;
    pipe->input_capacity = capacity;
    return true;
}

int wfi_pipe_read(wfi_pipe *pipe, const char **why)
{
    if (!make_room_for_input(pipe)) {
        *why = "out of memory for the store's messages";
        return -1;
    }
    ssize_t got = recv(pipe->fd, pipe->input + pipe->input_size, pipe->input_capacity - pipe->input_size, MSG_DONTWAIT);
    if (got > 0) {
        pipe->input_size += (size_t)got;
        return 1;
    }
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        return 0;
    *why = got == 0 ? "the store closed the connection" : "the connection to the store broke";
    return -1;
}

int64_t wfi_pipe_frame(const wfi_pipe *pipe)
{
    size_t size;
    if (pipe->input_size == 0)
        return 0;
    if (wfi_store_frame_size(pipe->input, pipe->input_size, pipe->input_limit, &size))
        return -1;
    return size && size <= pipe->input_size ? (int64_t)size : 0;
}

void wfi_pipe_drop(wfi_pipe *pipe, size_t size)
{
    memmove(pipe->input, pipe->input + size, pipe->input_size - size);
    pipe->input_size -= size;
}
