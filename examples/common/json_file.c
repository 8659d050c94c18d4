/* SPDX-License-Identifier: Apache-2.0 */
/* json_file.c - a JSON document as a file. */
#include "json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODE_BITS 0777

/* Writes `text` to the descriptor (-1: see errno) and closes it. Returns 0 or an errno value. */
static int write_text(int fd, const char *text)
{
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");
    if (!file) {
        int trouble = errno;
        if (fd >= 0)
            close(fd);
        return trouble;
    }
    int trouble = fputs(text, file) < 0 || fputc('\n', file) < 0 ? errno : 0;
    if (fclose(file) != 0 && !trouble)
        trouble = errno;
    return trouble;
}

/* Writes a file beside `target`, which takes its name. `old`: what is there now, whose mode stays; NULL: nothing. */
static int replace(const char *target, const struct stat *old, const char *text)
{
    char beside[PATH_MAX];
    int length = snprintf(beside, sizeof beside, "%s.%d", target, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof beside)
        return ENAMETOOLONG;
    unlink(beside); /* of one that had this process's id and was killed */
    int fd = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd >= 0 && old)
        (void)!fchmod(fd, old->st_mode & MODE_BITS); /* some file systems have no modes */
    int trouble = write_text(fd, text);
    if (!trouble && rename(beside, target) != 0)
        trouble = errno;
    if (trouble && fd >= 0)
        unlink(beside);
    return trouble;
}

/* What is no plain file, a pipe or a device, or lies behind a link that leads to nothing. */
static int write_as_it_stands(const char *path, const char *text)
{
    return write_text(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), text);
}

static bool is_open_as(int fd, const struct stat *file)
{
    struct stat open_file;
    return fstat(fd, &open_file) == 0 && open_file.st_dev == file->st_dev && open_file.st_ino == file->st_ino;
}

static int write_anywhere(const char *path, const char *text)
{
    struct stat old;
    if (stat(path, &old) != 0) {
        if (errno != ENOENT)
            return errno;
        return lstat(path, &old) == 0 ? write_as_it_stands(path, text) : replace(path, NULL, text);
    }
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++)
        if (is_open_as(fd, &old)) /* goes on where that stream is */
            return fflush(stdout) ? errno : write_text(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), text);
    if (!S_ISREG(old.st_mode))
        return write_as_it_stands(path, text);
    if (access(path, W_OK) != 0)
        return errno;
    char *target = realpath(path, NULL); /* a link stays */
    int trouble = target ? replace(target, &old, text) : errno;
    free(target);
    return trouble;
}

weft_status json_file_write(const char *path, cJSON *json, weft_error **error)
{
    char *text = json ? cJSON_Print(json) : NULL;
    int trouble = text ? write_anywhere(path, text) : ENOMEM;
    cJSON_free(text);
    cJSON_Delete(json);
    if (!trouble)
        return WEFT_OK;
    weft_status st = trouble == ENOMEM ? WEFT_ERR_MEMORY : WEFT_ERR_IO;
    *error = weft_error_create(st, "%s cannot be written: %s", path, strerror(trouble));
    return st;
}
