/* SPDX-License-Identifier: Apache-2.0 */
/* report.c - how a run goes, and how it went. */
#include "report.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MEMORY 0.05 /* weight of the newest loss in the mean, after about twenty losses */
#define LIVE_SECONDS 0.2
#define PLAIN_SECONDS 2.0
#define CLEAR "\r\033[K"
#define MODE_BITS 0777

/* ---- The tally -------------------------------------------------------------------------------------------------- */

double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void tally_begin(tally *t)
{
    if (t->began <= 0)
        t->began = clock_seconds();
}

static void add(tally *t, int64_t count, double loss, int64_t images, double computing, double in_calls)
{
    if (t->gradients == 0)
        t->first_loss = loss;
    t->gradients += count;
    double all = (double)t->gradients, share = (double)count / all, least = (double)count * MEMORY;
    share = share > least ? share : least < 1 ? least : 1;
    t->loss += (loss - t->loss) * share;
    t->images += images;
    t->computing += computing;
    t->in_calls += in_calls;
}

void tally_gradient(tally *t, double loss, int64_t images, double computing, double in_call)
{
    add(t, 1, loss, images, computing, in_call);
}

void tally_steps(tally *t, int64_t steps, double loss, int64_t images, double computing, double in_calls)
{
    if (steps < 1)
        return;
    add(t, steps, loss, images, computing, in_calls);
    t->updates += steps;
    t->ended = clock_seconds();
}

void tally_update(tally *t)
{
    t->updates++;
    t->ended = clock_seconds();
}

double tally_communication(const tally *t)
{
    double all = t->computing + t->in_calls;
    return all > 0 ? t->in_calls / all : 0;
}

double tally_seconds(const tally *t)
{
    return t->ended > t->began ? t->ended - t->began : 0;
}

/* ---- The live line ---------------------------------------------------------------------------------------------- */

const char *bytes_text(uint64_t bytes, char out[16])
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 999.5 && unit + 1 < sizeof units / sizeof *units; unit++)
        value /= 1000;
    snprintf(out, 16, "%.*f %s", unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, units[unit]);
    return out;
}

void progress_init(progress *p, FILE *to, int64_t updates, const char *unit)
{
    *p = (progress){.to = to, .updates = updates, .unit = unit, .last = clock_seconds()};
    p->live = to && isatty(fileno(to));
}

static void write_line(progress *p, const tally *t, uint64_t bytes_moved)
{
    char bytes[16];
    double now = clock_seconds(), seconds = now - t->began;
    double rate = t->images > 0 && seconds > 0 ? (double)t->images / seconds : 0;
    fprintf(p->to, "%s%3.0f %%  update %lld of %lld  loss %.4f  %.0f %s/s  %s moved  %.0f %% of the time in calls%s",
            p->live ? CLEAR : "", p->updates ? 100.0 * (double)t->updates / (double)p->updates : 0,
            (long long)t->updates, (long long)p->updates, t->loss, rate, p->unit, bytes_text(bytes_moved, bytes),
            100 * tally_communication(t), p->live ? "" : "\n");
    fflush(p->to);
    p->last = now;
}

void progress_show(progress *p, const tally *t, uint64_t bytes_moved, bool over)
{
    double pause = over ? 0 : p->live ? LIVE_SECONDS : PLAIN_SECONDS;
    if (!p->to || t->gradients == 0 || clock_seconds() - p->last < pause)
        return;
    write_line(p, t, bytes_moved);
    if (over && p->live)
        fputc('\n', p->to);
}

/* ---- The JSON file ---------------------------------------------------------------------------------------------- */

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

/* Writes a file beside `target` and renames it. `old`: the present file, whose mode is kept; NULL: there is none. */
static int replace(const char *target, const struct stat *old, const char *text)
{
    char beside[PATH_MAX];
    int length = snprintf(beside, sizeof beside, "%s.%d", target, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof beside)
        return ENAMETOOLONG;
    unlink(beside); /* left by a killed process that had the same id */
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

/* For a pipe, a device, or a dangling link. */
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
        if (is_open_as(fd, &old)) /* standard output or error: append at its position */
            return fflush(stdout) ? errno : write_text(fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1), text);
    if (!S_ISREG(old.st_mode))
        return write_as_it_stands(path, text);
    if (access(path, W_OK) != 0)
        return errno;
    char *target = realpath(path, NULL); /* a link is followed, not replaced */
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
