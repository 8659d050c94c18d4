/* SPDX-License-Identifier: Apache-2.0 */
/*
 * log.c - writes log lines to stderr or a sink.
 *
 * LOCK. `sink_lock` guards the sink and its arg. It is held for reading while a sink runs. weft_logging_set_sink takes
 * it for writing, so it returns only when no thread is inside the old sink; then the old arg may be freed. Readers are
 * preferred (the default of this lock), so a sink that logs a line itself does not deadlock.
 *
 * The level starts at LEVEL_UNREAD, above every level: so the first line of any level reads WEFT_LOG here, and is then
 * filtered.
 */
#include "base/text/log.h"
#include "base/env.h"
#include "base/nosignal.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LEVEL_UNREAD 1000
#define LINE_MAX_BYTES 2048

_Atomic int wfi_log_level_now = LEVEL_UNREAD;

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace", NULL}; /* from WEFT_LOG_ERROR on */

static atomic_bool fault_is_reported; /* as an error: the log does not repeat the fault of WEFT_LOG */

static pthread_once_t level_once = PTHREAD_ONCE_INIT;
static pthread_rwlock_t sink_lock = PTHREAD_RWLOCK_INITIALIZER;
static weft_log_sink current_sink;
static void *current_arg;

static weft_status read_setting(int *level, weft_error **error)
{
    int place = WEFT_LOG_WARN - WEFT_LOG_ERROR;
    weft_status status = wfi_env_word("WEFT_LOG", level_names, &place, error);
    *level = WEFT_LOG_ERROR + place;
    return status;
}

weft_status wfi_log_setting(int *level, weft_error **error)
{
    weft_status status = read_setting(level, error);
    if (status)
        atomic_store(&fault_is_reported, true);
    return status;
}

static void read_level(void)
{
    weft_error *error = NULL;
    int level;
    /* a program that only logs learns it only here */
    if (read_setting(&level, &error) != WEFT_OK && !atomic_load(&fault_is_reported)) {
        wfi_nosignal saved;
        wfi_nosignal_begin(&saved);
        fprintf(stderr, "weft: warn %s\n", weft_error_message(error));
        wfi_nosignal_end(&saved);
    }
    weft_error_unref(error);
    atomic_store(&wfi_log_level_now, level);
}

/* The time of day in UTC, with microseconds; in a simulation, the seconds since its beginning. */
static void write_time(const wfi_clock *clock, char *out, size_t room)
{
    struct timespec now;
    struct tm day;
    if (clock && clock != &wfi_clock_real) {
        uint64_t ns = wfi_now(clock);
        snprintf(out, room, "%" PRIu64 ".%06" PRIu64 "s", ns / 1000000000u, ns / 1000u % 1000000u);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &day);
    size_t length = strftime(out, room, "%Y-%m-%dT%H:%M:%S", &day);
    snprintf(out + length, room - length, ".%06ldZ", now.tv_nsec / 1000);
}

/* One write, so that the line is not mixed with those of other threads and processes. */
static void write_line(const char *line, weft_log_level level, const wfi_clock *clock)
{
    char time[64], whole[LINE_MAX_BYTES + 96];
    write_time(clock, time, sizeof(time));
    int length = snprintf(whole, sizeof(whole), "weft: %s %s %s\n", time, level_names[level - WEFT_LOG_ERROR], line);
    if (length > 0)
        (void)wfi_nosignal_write(stderr, whole, (size_t)length);
}

static void emit(weft_log_level level, const char *line, const wfi_clock *clock)
{
    pthread_rwlock_rdlock(&sink_lock);
    if (current_sink) {
        current_sink(level, line, current_arg);
    } else {
        write_line(line, level, clock);
    }
    pthread_rwlock_unlock(&sink_lock);
}

static size_t write_context(const wfi_log_context *context, char *out, size_t room)
{
    if (context->rank < 0)
        return 0;
    if (context->call_id)
        return (size_t)snprintf(out, room, "rank %d call %" PRIu64 ": ", context->rank, context->call_id);
    return (size_t)snprintf(out, room, "rank %d: ", context->rank);
}

void wfi_log_line_in(const wfi_log_context *context, weft_log_level level, const char *format, va_list args)
{
    char line[LINE_MAX_BYTES];
    if (level > weft_logging_get_level())
        return;
    size_t length = write_context(context, line, sizeof(line));
    if (wfi_utf8_print_v(line + length, sizeof(line) - length, format, args) < 0)
        return;
    for (unsigned char *c = (unsigned char *)line; *c != '\0'; c++) { /* text of a peer must not break the line */
        if (*c < 0x20 || *c == 0x7f)
            *c = ' ';
    }
    emit(level, line, context->clock);
}

void wfi_log_in(const wfi_log_context *context, weft_log_level level, const char *format, ...)
{
    va_list args;
    if (!wfi_log_wants(level))
        return;
    va_start(args, format);
    wfi_log_line_in(context, level, format, args);
    va_end(args);
}

void wfi_log_line(weft_log_level level, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    wfi_log_line_in(&(wfi_log_context){.rank = -1}, level, format, args);
    va_end(args);
}

void weft_logging_set_level(weft_log_level level)
{
    int wanted = level;
    pthread_once(&level_once, read_level); /* otherwise the first line would set the level of WEFT_LOG again */
    if (wanted < WEFT_LOG_ERROR)
        wanted = WEFT_LOG_ERROR;
    if (wanted > WEFT_LOG_TRACE)
        wanted = WEFT_LOG_TRACE;
    atomic_store(&wfi_log_level_now, wanted);
}

weft_log_level weft_logging_get_level(void)
{
    pthread_once(&level_once, read_level);
    return (weft_log_level)atomic_load_explicit(&wfi_log_level_now, memory_order_relaxed);
}

void weft_logging_set_sink(weft_log_sink sink, void *arg)
{
    pthread_rwlock_wrlock(&sink_lock);
    current_sink = sink;
    current_arg = arg;
    pthread_rwlock_unlock(&sink_lock);
}
