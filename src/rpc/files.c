/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files.c - a thread that writes the metrics to a file every PERIOD_S seconds, and weft_debug_dump to a second one.
 *
 * Each is written beside the file and renamed, so that a reader sees a whole one: node_exporter's textfile collector
 * reads files so (https://github.com/prometheus/node_exporter, "Textfile Collector"), those that end in ".prom". Both
 * files are removed when the agent closes.
 */
#include "rpc/files.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/nosignal.h"
#include "base/thread.h"
#include "rpc/observe/trace.h"

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PERIOD_S 5
#define DUMP_ENDING ".json"
#define BESIDE_MAX 32 /* bytes that are added to a path */

static atomic_uint opened; /* in this process, so that no two write beside one file under one name */

typedef struct wfi_metrics_files {
    weft_agent *agent;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t end;
    bool ending; /* `lock` guards it */
    bool fails;  /* the last round failed, and the log says so */
    char metrics[PATH_MAX], dump[PATH_MAX], beside[PATH_MAX];
} wfi_metrics_files;

static weft_status write_one(wfi_metrics_files *files, const char *path,
                             weft_status (*write)(const weft_agent *agent, FILE *to), weft_error **error)
{
    FILE *to = fopen(files->beside, "we");
    weft_status status = to ? write(files->agent, to) : WEFT_ERR_IO;
    int why = errno;
    if (to && fclose(to) && !status) {
        status = WEFT_ERR_IO;
        why = errno;
    }
    if (!status && rename(files->beside, path)) {
        status = WEFT_ERR_IO;
        why = errno;
    }
    if (status && to)
        (void)unlink(files->beside);
    return status ? wfi_error_fail(error, status, "the file of metrics \"%s\" cannot be written: %s", path,
                                   status == WEFT_ERR_IO ? wfi_nosignal_strerror(why) : weft_status_text(status))
                  : WEFT_OK;
}

static weft_status write_both(wfi_metrics_files *files, weft_error **error)
{
    wfi_nosignal saved;
    wfi_nosignal_begin(&saved);
    weft_status status = write_one(files, files->metrics, weft_metrics_write, error);
    if (!status)
        status = write_one(files, files->dump, weft_debug_dump, error);
    wfi_nosignal_end(&saved);
    return status;
}

/* False: the agent closes. */
static bool sleep_a_period(wfi_metrics_files *files)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PERIOD_S;
    pthread_mutex_lock(&files->lock);
    while (!files->ending && pthread_cond_timedwait(&files->end, &files->lock, &until) == 0)
        continue;
    bool ending = files->ending;
    pthread_mutex_unlock(&files->lock);
    return !ending;
}

static void *run_writer(void *arg)
{
    wfi_metrics_files *files = arg;
    while (sleep_a_period(files)) {
        weft_error *error = NULL;
        weft_status status = write_both(files, &error);
        if (status && !files->fails)
            wfi_agent_log(files->agent, WEFT_LOG_WARN, 0, "%s",
                          error ? weft_error_message(error) : weft_status_text(status));
        files->fails = status != WEFT_OK;
        weft_error_unref(error);
    }
    return NULL;
}

static void destroy(wfi_metrics_files *files)
{
    if (files->dump[0]) { /* they may have been written */
        (void)unlink(files->metrics);
        (void)unlink(files->dump);
    }
    pthread_cond_destroy(&files->end);
    pthread_mutex_destroy(&files->lock);
    free(files);
}

static weft_status open_files(weft_agent *agent, weft_error **error)
{
    const weft_agent_options *options = &agent->options.values;
    if (!options->metrics_file || !options->no_threads)
        return WEFT_OK;
    *error =
        weft_error_create(WEFT_ERR_INVALID, "metrics_file is set for an agent without threads, which cannot write it");
    return WEFT_ERR_INVALID;
}

/* Writes both files once, and starts the thread. */
static weft_status begin_files(weft_agent *agent, weft_error **error)
{
    const weft_agent_options *options = &agent->options.values;
    if (!options->metrics_file || options->sim) /* a simulation has no real time */
        return WEFT_OK;
    wfi_metrics_files *files = wfi_calloc(1, sizeof(*files));
    pthread_condattr_t monotonic;
    struct stat old;
    if (!files)
        return WEFT_ERR_MEMORY;
    wfi_trace_who who = {.rank = options->rank, .world_size = options->world_size};
    files->agent = agent;
    pthread_mutex_init(&files->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&files->end, &monotonic);
    pthread_condattr_destroy(&monotonic);
    weft_status status = WEFT_OK;
    if (!wfi_trace_expand(options->metrics_file, &who, files->metrics, sizeof(files->metrics) - BESIDE_MAX))
        status = wfi_error_fail(error, WEFT_ERR_INVALID, "the path of the file of metrics is too long");
    if (!status && stat(files->metrics, &old) == 0 && !S_ISREG(old.st_mode))
        status = wfi_error_fail(error, WEFT_ERR_INVALID, "the file of metrics \"%s\" exists and is no regular file",
                                files->metrics);
    if (!status) {
        int size = (int)strlen(files->metrics);
        snprintf(files->dump, sizeof(files->dump), "%.*s" DUMP_ENDING, size, files->metrics);
        snprintf(files->beside, sizeof(files->beside), "%.*s.%d-%u.tmp", size, files->metrics, (int)getpid(),
                 atomic_fetch_add(&opened, 1));
        status = write_both(files, error);
    }
    int errnum = status ? 0 : wfi_thread_start(&files->thread, run_writer, files, "weft-metrics");
    if (errnum)
        status =
            wfi_error_fail(error, WEFT_ERR_SYSTEM, "no thread for the file of metrics: %s", strerrordesc_np(errnum));
    if (status)
        destroy(files);
    else
        agent->metrics_files = files;
    return status;
}

static void close_files(weft_agent *agent)
{
    wfi_metrics_files *files = agent->metrics_files;
    if (!files)
        return;
    agent->metrics_files = NULL;
    pthread_mutex_lock(&files->lock);
    files->ending = true;
    pthread_cond_signal(&files->end);
    pthread_mutex_unlock(&files->lock);
    pthread_join(files->thread, NULL);
    destroy(files);
}

const wfi_component wfi_files_component = {
    .open = open_files, .begin = begin_files, .hide = close_files, .close = close_files};
