/* SPDX-License-Identifier: Apache-2.0 */
/* output.c - writes a file completely or not at all; see output.h. */
#include "base/text/output.h"

#include "base/nosignal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define NAMES 100 /* names to try: several are in use if several threads write to one file */
#define MODE_BITS 0777

/* STDOUT_FILENO or STDERR_FILENO if `file` is that stream, otherwise -1. */
static int standard_stream(const struct stat *file)
{
    struct stat standard;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (fstat(fd, &standard) == 0 && standard.st_dev == file->st_dev && standard.st_ino == file->st_ino)
            return fd;
    return -1;
}

/* Opens the folder that `path` is in. -1: it cannot be read, or descriptors are out. */
static int open_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    return fd;
}

/* ---- The new file ------------------------------------------------------------------------------------------------ */

/*
 * The new file of "model" is "model.weft-HOST-PID-N". Its writer holds a lock (flock) on it. If the writer is killed,
 * the file stays. The next writer to "model" removes such a file on three conditions. HOST is this host. The process
 * PID is gone, or PID is this process's id, because processes of a new container get the same ids again. The lock is
 * not held: this tells apart processes that do not see each other's ids. Without locks a file with this process's id
 * stays.
 */
#define MARK ".weft-"
#define NUMBERS_MOST 16 /* bytes of "-PID-N" */

/* Held from the opening of a new file until it is locked, and while such files are removed. */
static pthread_mutex_t beside_lock = PTHREAD_MUTEX_INITIALIZER;

/* The path up to PID; NULL: no memory. A long name is cut between two characters, so that the addition fits. */
static char *beside_prefix(const char *target)
{
    char host[HOST_NAME_MAX + 1] = "";
    const char *slash = strrchr(target, '/'), *name = slash ? slash + 1 : target;
    if (gethostname(host, sizeof(host) - 1) != 0)
        snprintf(host, sizeof(host), "unknown");
    for (char *at = host; *at != '\0'; at++)
        *at = *at == '/' ? '_' : *at;
    size_t added = strlen(MARK) + strlen(host) + 1, kept = strlen(name);
    if (kept > NAME_MAX - NUMBERS_MOST - added)
        for (kept = NAME_MAX - NUMBERS_MOST - added; kept > 0 && ((unsigned char)name[kept] & 0xc0) == 0x80;)
            kept--;
    size_t size = (size_t)(name - target) + kept + added + 1;
    char *prefix = malloc(size);
    if (prefix)
        snprintf(prefix, size, "%.*s" MARK "%s-", (int)((size_t)(name - target) + kept), target, host);
    return prefix;
}

/* Reads digits and the character `end` after them. */
static bool read_number(const char **at, char end, long *number)
{
    char *behind;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *number = strtol(*at, &behind, 10);
    bool is_whole = errno == 0 && *behind == end;
    *at = behind + 1;
    return is_whole;
}

/* Whether no process is still writing to the file. */
static bool is_stale(int folder, const char *name, long pid)
{
    struct stat found;
    if (fstatat(folder, name, &found, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(found.st_mode))
        return false;
    bool is_ours = pid == getpid(), is_gone = kill((pid_t)pid, 0) != 0 && errno == ESRCH;
    if (!is_ours && !is_gone)
        return false;
    int fd = openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool is_free = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0, is_held = !is_free && fd >= 0 && errno == EWOULDBLOCK;
    if (fd >= 0)
        close(fd);
    return is_ours ? is_free : !is_held;
}

/* Removes files that killed writers left. A failure here is ignored: it does not fail the write. [beside_lock] */
static void remove_stale(const char *prefix)
{
    const char *slash = strrchr(prefix, '/'), *start = slash ? slash + 1 : prefix;
    int fd = open_folder(prefix);
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;
    if (!folder && fd >= 0)
        close(fd);
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        const char *at = entry->d_name + strlen(start);
        long pid, number;
        if (strncmp(entry->d_name, start, strlen(start)) != 0 || !read_number(&at, '-', &pid) || pid <= 0 ||
            pid > INT_MAX || !read_number(&at, '\0', &number))
            continue;
        if (is_stale(dirfd(folder), entry->d_name, pid))
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
    }
    if (folder)
        closedir(folder);
}

static int open_beside(wfi_output *out)
{
    int fd = -1;
    char *prefix = beside_prefix(out->target);
    size_t room = prefix ? strlen(prefix) + NUMBERS_MOST : 0;
    out->beside = prefix ? malloc(room) : NULL;
    if (!out->beside) {
        free(prefix);
        errno = ENOMEM;
        return -1;
    }
    pthread_mutex_lock(&beside_lock);
    remove_stale(prefix);
    for (int i = 0; i < NAMES && fd < 0 && (i == 0 || errno == EEXIST); i++) {
        snprintf(out->beside, room, "%s%d-%d", prefix, (int)getpid(), i);
        fd = open(out->beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    }
    if (fd >= 0)
        (void)!flock(fd, LOCK_EX | LOCK_NB); /* some file systems have no locks */
    int errnum = errno;
    pthread_mutex_unlock(&beside_lock);
    free(prefix);
    errno = errnum;
    return fd;
}

/* Opens the descriptor to write to; -1: see errno. */
static int open_any(wfi_output *out, const char *path)
{
    struct stat old = {0};
    bool exists = stat(path, &old) == 0;
    if (!exists && errno != ENOENT)
        return -1;
    int standard = exists ? standard_stream(&old) : -1;
    if (standard >= 0)
        return fcntl(standard, F_DUPFD_CLOEXEC, STDERR_FILENO + 1); /* continues at the offset of that stream */
    struct stat link;
    bool plain =
        exists ? S_ISREG(old.st_mode) : lstat(path, &link) != 0; /* a dangling link: makes the file that it names */
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
    int errnum = errno;
    if (fd >= 0) {
        close(fd);
        if (out->beside)
            unlink(out->beside);
    }
    forget(out);
    return errnum;
}

/* A new name is on the disk only after its folder was synced. A process that may write a folder but not read it cannot
 * sync it, and some file systems cannot either. */
static int sync_folder(const char *path)
{
    int fd = open_folder(path);
    if (fd < 0)
        return 0;
    int errnum = fsync(fd) != 0 && errno != EINVAL && errno != ENOTSUP ? errno : 0;
    close(fd);
    return errnum;
}

/* Flushes the stream, and syncs the file to the disk if it replaces another. Returns 0 or an errno value. */
static int flush(const wfi_output *out)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    int errnum = fflush(out->stream) != 0 || (out->beside && fsync(fileno(out->stream)) != 0) ? errno : 0;
    wfi_nosignal_end(&saved);
    return errnum;
}

/* Closes the stream, which may write what it still holds. Returns 0 or an errno value. */
static int close_stream(const wfi_output *out)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    int errnum = fclose(out->stream) != 0 ? errno : 0;
    wfi_nosignal_end(&saved);
    return errnum;
}

/* Closing the new file releases its lock. Until it has its final name, no other thread may remove left-over files. */
static int close_beside(const wfi_output *out, bool keep)
{
    pthread_mutex_lock(&beside_lock);
    int errnum = close_stream(out);
    if (keep && !errnum && rename(out->beside, out->target) != 0)
        errnum = errno;
    if (!keep || errnum)
        unlink(out->beside);
    pthread_mutex_unlock(&beside_lock);
    return errnum;
}

int wfi_output_write(const wfi_output *out, const void *data, size_t size)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    int errnum = size > 0 && fwrite(data, 1, size, out->stream) != size ? errno : 0;
    wfi_nosignal_end(&saved);
    return errnum;
}

int wfi_output_go_to(const wfi_output *out, size_t offset)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    int errnum = fseeko(out->stream, (off_t)offset, SEEK_SET) != 0 ? errno : 0;
    wfi_nosignal_end(&saved);
    return errnum;
}

int wfi_output_close(wfi_output *out, bool keep)
{
    int errnum = keep ? flush(out) : 0;
    int closing = out->beside ? close_beside(out, keep && !errnum) : close_stream(out);
    errnum = errnum ? errnum : closing;
    if (out->beside && keep && !errnum)
        errnum = sync_folder(out->target);
    forget(out);
    return errnum;
}
