/* SPDX-License-Identifier: Apache-2.0 */
/* secret.c - see secret.h. */
#include "run/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define RANDOM_BYTES 32

static bool check_size(const secret *read, const char *source)
{
    if (read->size >= SECRET_MIN && read->size <= SECRET_MAX)
        return true;
    fprintf(stderr, "weft-run: the job's secret (%s) has %s%zu bytes: give 16 to 4,096%s\n", source,
            read->size > SECRET_MAX ? "more than " : "", read->size > SECRET_MAX ? (size_t)SECRET_MAX : read->size,
            read->size ? "" : ", or unset the variable");
    return false;
}

static bool read_file(const char *path, secret *out)
{
    char source[320];
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    ssize_t got = fd < 0 ? -1 : 1;
    snprintf(source, sizeof(source), "WEFT_SECRET_FILE=\"%.256s\"", path);
    while (got > 0 && out->size < sizeof(out->bytes)) {
        got = read(fd, out->bytes + out->size, sizeof(out->bytes) - out->size);
        out->size += got > 0 ? (size_t)got : 0;
    }
    if (got < 0)
        fprintf(stderr, "weft-run: the job's secret (%s): %s\n", source, strerror(errno));
    if (got >= 0 && fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && (about.st_mode & 077) != 0)
        fprintf(stderr, "weft-run: the job's secret (%s) can be read by others than its owner: chmod 600\n", source);
    if (fd >= 0)
        close(fd);
    if (out->size > 0 && out->bytes[out->size - 1] == '\n')
        out->size--;
    return got >= 0 && check_size(out, source);
}

/* The value is overwritten, because the environment of this process can be read for as long as it lives. */
static void take_variable(char *value, secret *out)
{
    size_t size = strlen(value);
    out->size = size < sizeof(out->bytes) ? size : sizeof(out->bytes);
    memcpy(out->bytes, value, out->size);
    explicit_bzero(value, size);
    (void)unsetenv("WEFT_SECRET");
}

/* The file counts if both are set. An empty variable counts as unset if the other one has a value. */
bool secret_find(secret *out)
{
    const char *path = getenv("WEFT_SECRET_FILE");
    char *value = getenv("WEFT_SECRET");
    bool has_path = path && *path, has_value = value && *value;
    *out = (secret){0};
    if (value)
        take_variable(value, out);
    if (has_value && !has_path)
        return check_size(out, "WEFT_SECRET");
    out->size = 0;
    if (has_path)
        return read_file(path, out);
    if (path || value)
        return check_size(out, path ? "WEFT_SECRET_FILE" : "WEFT_SECRET");
    out->size = RANDOM_BYTES;
    if (getrandom(out->bytes, RANDOM_BYTES, 0) == RANDOM_BYTES)
        return true;
    fprintf(stderr, "weft-run: the job's secret cannot be made: %s\n", strerror(errno));
    return false;
}
