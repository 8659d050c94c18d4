/* SPDX-License-Identifier: Apache-2.0 */
/*
 * error.c - weft_error: reference-counted, immutable, one allocation.
 *
 * An error does not change after it was created, so threads share it without a lock; a hop is added to a copy. If
 * memory is out, one static error is used, which is never counted and never freed.
 */
#include "base/error.h"
#include "base/handle.h"
#include "base/nosignal.h"
#include "base/utf8.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h> /* malloc, free */
#include <string.h>

struct weft_error {
    wfi_handle handle;
    _Atomic uint32_t refs;
    weft_status code, remote_code;
    bool did_not_run;
    int worker;
    uint32_t hop_count;
    int hops[WFI_ERROR_HOPS_MAX];
    const char *function, *message; /* in `text`, except those of the static error */
    char text[];
};

static weft_error out_of_memory = {
    .handle = {WFI_HANDLE_LIVE},
    .code = WEFT_ERR_MEMORY,
    .worker = -1,
    .function = "",
    .message = "out of memory (and so is the memory for the error itself)",
};

static size_t bounded_length(const char *text, int limit)
{
    return text ? (size_t)wfi_utf8_fit(text, limit - 1) : 0;
}

static weft_error *build(const wfi_error_detail *detail, const char *message, const int *hops, uint32_t hop_count)
{
    size_t function_size = bounded_length(detail->function, WFI_ERROR_FUNCTION_MAX);
    size_t message_size = bounded_length(message, WFI_ERROR_MESSAGE_MAX);
    weft_error *error = malloc(sizeof(*error) + function_size + message_size + 2);
    char *message_at;
    if (!error)
        return &out_of_memory;
    *error = (weft_error){
        .handle = {WFI_HANDLE_LIVE},
        .refs = 1,
        .code = detail->code < 0 ? detail->code : WEFT_ERR_INVALID,
        .remote_code = detail->remote_code,
        .did_not_run = detail->did_not_run,
        .worker = detail->worker,
        .hop_count = hop_count,
        .function = error->text,
    };
    if (hop_count > 0)
        memcpy(error->hops, hops, hop_count * sizeof(*hops));
    message_at = error->text + function_size + 1;
    error->message = message_at;
    if (function_size > 0)
        memcpy(error->text, detail->function, function_size);
    error->text[function_size] = '\0';
    if (message_size > 0)
        memcpy(message_at, message, message_size);
    message_at[message_size] = '\0';
    return error;
}

static _Thread_local char memory_note[WFI_ERROR_NOTE_MAX];

void wfi_error_note_memory(const char *text)
{
    memory_note[0] = '\0';
    if (text)
        snprintf(memory_note, sizeof(memory_note), "%s", text);
}

weft_error *wfi_error_create_v(const wfi_error_detail *detail, const char *format, va_list args)
{
    char message[WFI_ERROR_MESSAGE_MAX];
    if (wfi_utf8_print_v(message, sizeof(message), format, args) < 0)
        message[0] = '\0';
    if (detail->code == WEFT_ERR_MEMORY && memory_note[0] != '\0') {
        size_t size = strlen(message);
        snprintf(message + size, sizeof(message) - size, ": %s", memory_note);
        memory_note[0] = '\0';
    }
    return build(detail, message, NULL, 0);
}

weft_error *wfi_error_create(const wfi_error_detail *detail, const char *format, ...)
{
    weft_error *error;
    va_list args;
    va_start(args, format);
    error = wfi_error_create_v(detail, format, args);
    va_end(args);
    return error;
}

weft_error *weft_error_create(weft_status code, const char *format, ...)
{
    wfi_error_detail detail = {.code = code, .worker = -1};
    weft_error *error;
    va_list args;
    va_start(args, format);
    error = wfi_error_create_v(&detail, format, args);
    va_end(args);
    return error;
}

weft_error *wfi_error_with_hop(const weft_error *error, int rank)
{
    wfi_error_detail detail = {
        .code = error->code, .remote_code = error->remote_code, .function = error->function, .worker = error->worker};
    weft_error *copy;
    if (error == &out_of_memory || error->hop_count == WFI_ERROR_HOPS_MAX)
        return weft_error_ref(error);
    copy = build(&detail, error->message, error->hops, error->hop_count);
    if (copy == &out_of_memory) /* the original error is more useful than the hop */
        return weft_error_ref(error);
    copy->hops[copy->hop_count++] = rank;
    return copy;
}

weft_error *wfi_error_recoded(const weft_error *error, weft_status code, weft_status remote_code, int worker)
{
    wfi_error_detail detail = {.code = code,
                               .remote_code = remote_code,
                               .function = error->function,
                               .worker = error->worker < 0 ? worker : error->worker};
    return build(&detail, error->message, error->hops, error->hop_count);
}

weft_error *wfi_error_naming(const weft_error *error, const char *function)
{
    wfi_error_detail detail = {
        .code = error->code, .remote_code = error->remote_code, .function = function, .worker = error->worker};
    weft_error *copy;
    if (error == &out_of_memory || error->function[0] != '\0' || !function || function[0] == '\0')
        return weft_error_ref(error);
    copy = build(&detail, error->message, error->hops, error->hop_count);
    return copy == &out_of_memory ? weft_error_ref(error) : copy; /* the original is more useful than the name */
}

void wfi_error_give(weft_error **out, weft_error *error)
{
    if (out) {
        *out = error;
        wfi_status_logged(WEFT_OK); /* the program has the detail of this failure, but the log does not */
    } else {
        weft_error_unref(error);
    }
}

weft_status wfi_error_fail(weft_error **out, weft_status code, const char *format, ...)
{
    wfi_error_detail detail = {.code = code, .worker = -1};
    va_list args;
    if (!out)
        return code;
    va_start(args, format);
    *out = wfi_error_create_v(&detail, format, args);
    va_end(args);
    wfi_status_logged(WEFT_OK);
    return code;
}

weft_error *weft_error_ref(const weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    weft_error *mine = (weft_error *)error; /* only the count changes */
    if (mine && mine != &out_of_memory) {
        uint32_t before = atomic_fetch_add_explicit(&mine->refs, 1, memory_order_relaxed);
        assert(before > 0 && before < UINT32_MAX);
        (void)before;
    }
    return mine;
}

void weft_error_unref(weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    uint32_t before;
    if (!error || error == &out_of_memory)
        return;
    before = atomic_fetch_sub_explicit(&error->refs, 1, memory_order_acq_rel);
    if (WFI_HANDLE_IS_LAST(error, before))
        wfi_handle_free(error);
}

weft_status weft_error_code(const weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    return error ? error->code : WEFT_OK;
}

weft_status wfi_error_remote_code(const weft_error *error)
{
    return error ? error->remote_code : WEFT_OK;
}

weft_status weft_error_handler_code(const weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    return error && error->code == WEFT_ERR_REMOTE ? error->remote_code : WEFT_OK;
}

weft_ran weft_error_ran(const weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    if (error && error->did_not_run)
        return WEFT_RAN_NO;
    if (error && error->code == WEFT_ERR_REMOTE)
        return WEFT_RAN_YES;
    bool is_known = error && error->code != WEFT_ERR_UNKNOWN && error->remote_code != WEFT_ERR_UNKNOWN &&
                    error->function[0] != '\0'; /* errors of calls name the function */
    return is_known ? WEFT_RAN_NO : WEFT_RAN_MAYBE;
}

const char *weft_error_message(const weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    return error ? error->message : "";
}

const char *weft_error_function(const weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    return error ? error->function : "";
}

int weft_error_worker(const weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    return error ? error->worker : -1;
}

size_t weft_error_hops(const weft_error *error)
{
    WFI_CHECK_HANDLE(error);
    return error ? error->hop_count : 0;
}

int weft_error_hop(const weft_error *error, size_t index)
{
    WFI_CHECK_HANDLE(error);
    return error && index < error->hop_count ? error->hops[index] : -1;
}

/* Texts may be from another worker: replaces characters that end the line or control a terminal by blanks. */
static void blank_controls(char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        text[i] = c < 0x20 || c == 0x7f ? ' ' : text[i];
    }
}

#define LINE_BYTES (WFI_ERROR_MESSAGE_MAX + WFI_ERROR_FUNCTION_MAX + 512) /* 512 for names and ranks */

void weft_error_print(const weft_error *error, FILE *to)
{
    WFI_CHECK_HANDLE(error);
    char line[LINE_BYTES];
    size_t room = sizeof(line) - 1, at; /* leaves room for the end of the line */
    if (!error || !to)
        return;
    at = (size_t)snprintf(line, room, "weft: %s", weft_status_name(error->code));
    if (error->code == WEFT_ERR_REMOTE)
        at += (size_t)snprintf(line + at, room - at, " (%s)", weft_status_name(error->remote_code));
    else if (error->remote_code == WEFT_ERR_UNKNOWN)
        at += (size_t)snprintf(line + at, room - at, " (it may have run)");
    if (error->function[0] != '\0')
        at += (size_t)snprintf(line + at, room - at, " in %s", error->function);
    if (error->worker >= 0)
        at += (size_t)snprintf(line + at, room - at, " at worker %d", error->worker);
    for (uint32_t i = 0; i < error->hop_count; i++)
        at += (size_t)snprintf(line + at, room - at, "%s %d", i == 0 ? " via" : ",", error->hops[i]);
    at += (size_t)snprintf(line + at, room - at, ": %s",
                           error->message[0] != '\0' ? error->message : weft_status_text(error->code));
    assert(at < room);
    blank_controls(line, at);
    line[at++] = '\n';
    (void)wfi_nosignal_write(to, line, at); /* one write: not mixed with lines of other threads and processes */
    if (to == stderr)
        wfi_status_logged(error->code);
}

void wfi_error_write(wfi_writer *writer, const weft_error *error)
{
    uint32_t i;
    wfi_write_u32(writer, (uint32_t)error->code);
    wfi_write_u32(writer, (uint32_t)error->remote_code);
    wfi_write_u32(writer, (uint32_t)error->worker);
    wfi_write_u8(writer, (uint8_t)error->hop_count);
    for (i = 0; i < error->hop_count; i++)
        wfi_write_u32(writer, (uint32_t)error->hops[i]);
    wfi_write_string(writer, error->function);
    wfi_write_string(writer, error->message);
}

void wfi_error_write_bare(wfi_writer *writer, weft_status code, weft_status remote_code, int worker)
{
    wfi_write_u32(writer, (uint32_t)code);
    wfi_write_u32(writer, (uint32_t)remote_code);
    wfi_write_u32(writer, (uint32_t)worker);
    wfi_write_u8(writer, 0);
    wfi_write_string(writer, "");
    wfi_write_string(writer, "");
}

weft_error *wfi_error_read(wfi_reader *reader)
{
    char function[WFI_ERROR_FUNCTION_MAX], message[WFI_ERROR_MESSAGE_MAX];
    wfi_error_detail detail = {.function = function};
    int hops[WFI_ERROR_HOPS_MAX], code = (int)wfi_read_u32(reader);
    uint8_t hop_count, i;
    detail.remote_code = (weft_status)wfi_read_u32(reader);
    detail.worker = (int)wfi_read_u32(reader);
    hop_count = wfi_read_u8(reader);
    if (hop_count > WFI_ERROR_HOPS_MAX)
        reader->failed = true;
    for (i = 0; i < hop_count && !reader->failed; i++)
        hops[i] = (int)wfi_read_u32(reader);
    wfi_read_string(reader, function, sizeof(function));
    wfi_read_string(reader, message, sizeof(message));
    if (reader->failed)
        return NULL;
    detail.code = code < 0 && wfi_status_is_known(code) ? (weft_status)code : WEFT_ERR_PROTOCOL;
    return build(&detail, message, hops, hop_count);
}
