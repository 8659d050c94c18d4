/* SPDX-License-Identifier: Apache-2.0 */
/* output.c - a file that is written whole or not at all. */
#include "base/text/output.h"

#include "base/quiet.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMES 100    /* to try: one is taken where a process of this id was killed while it wrote */
#define NAME_ROOM 24 /* of what they add */
#define MODE_BITS 0777

/* STDOUT_FILENO or STDERR_FILENO if that is it, else -1. */
static int standard_stream(const struct stat *file)
{
    struct stat standard;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &standard) == 0 && standard.st_dev == file->st_dev && standard.st_ino == file->st_ino)
            return fd;
    return -1;
}

static int open_beside(wfi_output *out)
{
    size_t room = strlen(out->target) + NAME_ROOM;
    int fd = -1;
    out->beside = malloc(room);
    if (!out->beside) {
        errno = ENOMEM;
        return -1;
    }
    for (int i = 0; i < NAMES && fd < 0 && (i == 0 || errno == EEXIST); i++) {
        snprintf(out->beside, room, "%s.%d.%d", out->target, (int)getpid(), i);
        fd = open(out->beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    return fd;
}

/* The descriptor that is written to; -1: see errno. */
static int open_any(wfi_output *out, const char *path)
{
    struct stat old = {0};
    bool exists = stat(path, &old) == 0;
    if (!exists && errno != ENOENT)
        return -1;
    int standard = exists ? standard_stream(&old) : -1;
    if (standard >= 0)
        return fcntl(standard, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); /* it goes on where that stream is */
    struct stat link;
    bool plain = exists ? S_ISREG(old.st_mode) : lstat(path, &link) != 0; /* a link to nothing: what it names is made */
    if (!plain)
        return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (exists && access(path, W_OK) != 0)
        return -1;
    out->target = exists ? realpath(path, NULL) : strdup(path);
    int fd = out->target ? open_beside(out) : -1;
    if (fd >= 0 && exists)
        (void)!fchmod(fd, old.st_mode & MODE_BITS); /* some file systems have no modes */
    return fd;
}

static void forget(wfi_output *out)
{
    free(out->beside);
    free(out->target);
    *out = (wfi_output){0};
}

int wfi_output_open(wfi_output *out, const char *path)
{
    *out = (wfi_output){0};
    int fd = open_any(out, path);
    out->stream = fd < 0 ? NULL : fdopen(fd, "wb");
    if (out->stream)
        return 0;
    int trouble = errno;
    if (fd >= 0) {
        close(fd);
        if (out->beside)
            unlink(out->beside);
    }
    forget(out);
    return trouble;
}

/* The folder that `path` is in; -1: it cannot be read, or descriptors are out. */
static int open_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    return fd;
}

/* A new name is on the disk only when its folder is. Who may write to a folder but not read it cannot ask for that, and some file
 * systems have no way to. */
static int sync_folder(const char *path)
{
    int fd = open_folder(path);
    if (fd < 0)
        return 0;
    int trouble = fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP ? errno : 0;
    close(fd);
    return trouble;
}

/* Both may write what the stream still holds. 0 or an errno value. */
static int flush_and_close(const wfi_output *out, bool keep)
{
    wfi_quiet quiet;
    int trouble = 0;
    wfi_quiet_begin(&quiet);
    if (keep && (fflush(out->stream) != 0 || (out->beside && fsync(fileno(out->stream)) != 0)))
        trouble = errno;
    if (fclose(out->stream) != 0 && !trouble)
        trouble = errno;
    wfi_quiet_end(&quiet);
    return trouble;
}

int wfi_output_write(const wfi_output *out, const void *data, size_t size)
{
    wfi_quiet quiet;
    wfi_quiet_begin(&quiet);
    int trouble = size > 0 && fwrite(data, 1, size, out->stream) != size ? errno : 0;
    wfi_quiet_end(&quiet);
    return trouble;
}

int wfi_output_go_to(const wfi_output *out, size_t offset)
{
    wfi_quiet quiet;
    wfi_quiet_begin(&quiet);
    int trouble = fseeko(out->stream, (off_t)offset, SEEK_SET) != 0 ? errno : 0;
    wfi_quiet_end(&quiet);
    return trouble;
}

int wfi_output_close(wfi_output *out, bool keep)
{
    int trouble = flush_and_close(out, keep);
    if (out->beside) {
        if (keep && !trouble && rename(out->beside, out->target) != 0)
            trouble = errno;
        if (!keep || trouble)
            unlink(out->beside);
        else
            trouble = sync_folder(out->target);
    }
    forget(out);
    return trouble;
}
