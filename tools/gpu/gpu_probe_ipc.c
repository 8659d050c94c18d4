/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_probe_ipc.c - whether two processes can share device memory by CUDA IPC: one allocates and writes, the other
 * opens the handle, reads, and writes back. Run by tools/gpu-check.
 */
#include "gpu_probe.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define WHAT "CUDA IPC between two processes"
#define BYTES ((size_t)2 << 20)
#define LAZY_PEER_ACCESS 1 /* CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS */

typedef struct ipc_handle {
    char bytes[64];
} ipc_handle;

static char pattern(size_t i, int turn)
{
    return (char)(i * 31 + (i >> 8) + (size_t)turn);
}

static bool holds(const char *bytes, int turn)
{
    for (size_t i = 0; i < BYTES; i++)
        if (bytes[i] != pattern(i, turn))
            return false;
    return true;
}

static void fill(char *bytes, int turn)
{
    for (size_t i = 0; i < BYTES; i++)
        bytes[i] = pattern(i, turn);
}

/* The second process: its reason, "" if it works, goes to `answer`. Each process has a driver of its own: none is used
 * before the fork. */
static void use(const ipc_handle *handle, char *bytes, char answer[128])
{
    int (*open_handle)(uint64_t * at, ipc_handle handle, unsigned flags) = NULL;
    int (*close_handle)(uint64_t at) = NULL;
    uint64_t at = 0;
    if (!probe_find("cuIpcOpenMemHandle_v2", (void *)&open_handle) ||
        !probe_find("cuIpcCloseMemHandle", (void *)&close_handle) || wfi_cuda_enter(0)) {
        snprintf(answer, 128, "the second process has no cuIpcOpenMemHandle_v2 or no context");
        return;
    }
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    int error = open_handle(&at, *handle, LAZY_PEER_ACCESS);
    if (error) {
        snprintf(answer, 128, "cuIpcOpenMemHandle: %s", probe_error(error));
        return;
    }
    error = driver->copy_to_host(bytes, at, BYTES, NULL);
    if (!error)
        error = driver->stream_wait(NULL);
    if (!error && !holds(bytes, 1))
        snprintf(answer, 128, "the second process reads other bytes");
    fill(bytes, 2);
    if (!error)
        error = driver->copy_to_device(at, bytes, BYTES, NULL);
    if (!error)
        error = driver->stream_wait(NULL);
    if (!error)
        error = close_handle(at);
    if (error)
        snprintf(answer, 128, "copying there: %s", probe_error(error));
    wfi_cuda_leave();
}

static int second(int from, int to)
{
    ipc_handle handle;
    char answer[128] = "", *bytes = malloc(BYTES);
    if (read(from, &handle, sizeof handle) != (ssize_t)sizeof handle)
        return 0; /* the first process has said why there is none */
    if (bytes)
        use(&handle, bytes, answer);
    free(bytes);
    return write(to, answer, sizeof answer) == (ssize_t)sizeof answer ? 0 : 1;
}

/* The first process. Returns the reason; NULL: it works. */
static const char *share(int to, int from, uint64_t at, char *bytes, char answer[128])
{
    int (*get_handle)(ipc_handle * handle, uint64_t at) = NULL;
    const wfi_cuda_driver *driver = wfi_cuda_driver_get();
    ipc_handle handle;
    if (!probe_find("cuIpcGetMemHandle", (void *)&get_handle))
        return "libcuda.so.1 has no cuIpcGetMemHandle";
    fill(bytes, 1);
    int error = driver->copy_to_device(at, bytes, BYTES, NULL);
    if (!error)
        error = driver->stream_wait(NULL);
    if (!error)
        error = get_handle(&handle, at);
    if (error)
        return probe_error(error);
    if (write(to, &handle, sizeof handle) != (ssize_t)sizeof handle || read(from, answer, 128) != 128)
        return "the second process has ended";
    if (*answer)
        return answer;
    error = driver->copy_to_host(bytes, at, BYTES, NULL);
    if (!error)
        error = driver->stream_wait(NULL);
    return error ? probe_error(error) : holds(bytes, 2) ? NULL : "the first process does not see what the second wrote";
}

int main(void)
{
    int there[2], back[2];
    if (pipe(there) || pipe(back))
        return 1;
    pid_t child = fork();
    if (child == 0) {
        close(there[1]);
        close(back[0]);
        return second(there[0], back[1]);
    }
    close(there[0]);
    close(back[1]);
    int code = child > 0 ? 0 : 1;
    char answer[128] = "", *bytes = malloc(BYTES);
    uint64_t at = 0;
    if (code == 0 && !probe_begin())
        code = SKIPPED;
    else if (code == 0 && bytes && wfi_cuda_enter(0) == WEFT_OK) {
        int error = wfi_cuda_driver_get()->memory_alloc(&at, BYTES);
        code = probe_result(WHAT, error ? probe_error(error) : share(there[1], back[0], at, bytes, answer));
        if (at)
            (void)wfi_cuda_driver_get()->memory_free(at);
        wfi_cuda_leave();
    }
    close(there[1]);
    close(back[0]);
    free(bytes);
    if (child > 0)
        waitpid(child, NULL, 0);
    return code;
}
