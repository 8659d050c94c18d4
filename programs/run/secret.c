/* SPDX-License-Identifier: Apache-2.0 */
/* secret.c - see secret.h. */
#include "run/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define RANDOM_BYTES 32

static bool check_size(const secret *read, const char *source)
{
    if (read->size >= SECRET_MIN && read->size <= SECRET_MAX)
        return true;
    fprintf(stderr, "weft-run: the job's secret (%s) is not of 16 to 4,096 bytes\n", source);
    return false;
}

static bool read_file(const char *path, secret *out)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    ssize_t got = fd < 0 ? -1 : 1;
    while (got > 0 && out->size < sizeof out->bytes) {
        got = read(fd, out->bytes + out->size, sizeof out->bytes - out->size);
        out->size += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        fprintf(stderr, "weft-run: the job's secret (WEFT_SECRET_FILE=%s): %s\n", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (out->size > 0 && out->bytes[out->size - 1] == '\n')
        out->size--;
    return got >= 0 && check_size(out, "WEFT_SECRET_FILE");
}

/* The value is overwritten, because the environment of this process can be read for as long as it lives. */
static bool take_variable(char *value, secret *out)
{
    size_t size = strlen(value);
    out->size = size < sizeof out->bytes ? size : sizeof out->bytes;
    memcpy(out->bytes, value, out->size);
    explicit_bzero(value, size);
    (void)unsetenv("WEFT_SECRET");
    return getenv("WEFT_SECRET_FILE") || check_size(out, "WEFT_SECRET"); /* the file counts */
}

bool secret_find(secret *out)
{
    const char *path = getenv("WEFT_SECRET_FILE");
    char *value = getenv("WEFT_SECRET");
    *out = (secret){0};
    bool is_taken = value && take_variable(value, out);
    if (value && !path)
        return is_taken;
    out->size = 0;
    if (path)
        return read_file(path, out);
    out->size = RANDOM_BYTES;
    if (getrandom(out->bytes, RANDOM_BYTES, 0) == RANDOM_BYTES)
        return true;
    fprintf(stderr, "weft-run: the job's secret cannot be made: %s\n", strerror(errno));
    return false;
}

int secret_memory_file(const void *bytes, size_t size)
{
    int made = memfd_create("weft-secret", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int fd = made < 0 ? -1 : fcntl(made, F_DUPFD_CLOEXEC, 3); /* 0 to 2 become the workers' standard streams */
    if (made >= 0)
        close(made);
    if (fd >= 0 && (pwrite(fd, bytes, size, 0) != (ssize_t)size ||
                    fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}
