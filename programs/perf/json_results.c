/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json_results.c - writes a run as one JSON object, and reads such an object. The reader takes any JSON. It looks only
 * for members of the outermost object: the array "results", the array "notes", and those of run_fields.
 */
#include "perf/writers.h"

#include "base/text/json_writer.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FILE_MOST (64L << 20)
#define DEPTH_MOST 32

/* ---- Writing ---------------------------------------------------------------------------------------------------- */

static void put_number(wfi_json *j, const char *key, double value)
{
    wfi_json_item(j, key);
    if (isfinite(value))
        fprintf(j->to, "%.6g", value);
    else
        fputs("null", j->to);
}

static void put_result(wfi_json *j, const result *r)
{
    fputs(j->separated ? "\n " : ",\n ", j->to);
    j->separated = true;
    wfi_json_open(j, NULL, '{');
    for (size_t i = 0; i < result_field_count; i++) {
        const result_field *field = &result_fields[i];
        const void *at = result_at(r, field);
        if (field->kind == FIELD_TEXT)
            wfi_json_put_text(j, field->name, at);
        else if (field->kind == FIELD_COUNT)
            wfi_json_put_number(j, field->name, (uint64_t) * (const int64_t *)at);
        else if (field->kind == FIELD_BOOL)
            wfi_json_put_bool(j, field->name, *(const bool *)at);
        else
            put_number(j, field->name, *(const double *)at);
    }
    wfi_json_close(j, '}');
}

/* Members of the object beside the notes and results. */
static const struct run_field {
    const char *name;
    field_kind kind;
    size_t offset, size;
} run_fields[] = {
    {"version", FIELD_TEXT, offsetof(run_report, version), sizeof(((run_report *)NULL)->version)},
    {"libfabric", FIELD_TEXT, offsetof(run_report, libfabric), sizeof(((run_report *)NULL)->libfabric)},
    {"kernel", FIELD_TEXT, offsetof(run_report, kernel), sizeof(((run_report *)NULL)->kernel)},
    {"processors", FIELD_COUNT, offsetof(run_report, processors), 0},
    {"seconds", FIELD_NUMBER, offsetof(run_report, seconds), 0},
    {"date", FIELD_TEXT, offsetof(run_report, date), sizeof(((run_report *)NULL)->date)},
    {"host", FIELD_TEXT, offsetof(run_report, host), sizeof(((run_report *)NULL)->host)},
    {"busy", FIELD_NUMBER, offsetof(run_report, busy), 0},
    {"load_1_minute", FIELD_NUMBER, offsetof(run_report, averages[0]), 0},
    {"load_5_minutes", FIELD_NUMBER, offsetof(run_report, averages[1]), 0},
    {"load_15_minutes", FIELD_NUMBER, offsetof(run_report, averages[2]), 0},
};
#define RUN_FIELDS (sizeof(run_fields) / sizeof(*run_fields))

void json_write(FILE *to, const run_report *run)
{
    wfi_json j = {.to = to, .separated = true};
    wfi_json_open(&j, NULL, '{');
    wfi_json_put_number(&j, "weft_perf", 1);
    for (size_t i = 0; i < RUN_FIELDS; i++) {
        const void *at = (const char *)run + run_fields[i].offset;
        if (run_fields[i].kind == FIELD_TEXT)
            wfi_json_put_text(&j, run_fields[i].name, *(const char *)at ? at : NULL);
        else if (run_fields[i].kind == FIELD_NUMBER)
            put_number(&j, run_fields[i].name, *(const double *)at);
        else
            wfi_json_put_number(&j, run_fields[i].name, (uint64_t) * (const int64_t *)at);
    }
    wfi_json_open(&j, "notes", '[');
    for (size_t i = 0; i < run->note_count; i++)
        wfi_json_put_text(&j, NULL, run->notes[i]);
    wfi_json_close(&j, ']');
    wfi_json_open(&j, "results", '[');
    for (size_t i = 0; i < run->found.count; i++)
        put_result(&j, &run->found.items[i]);
    wfi_json_close(&j, ']');
    wfi_json_close(&j, '}');
    fputc('\n', to);
}

/* ---- Reading ---------------------------------------------------------------------------------------------------- */

typedef struct reader {
    const char *at;
    int depth;
    const char *wrong; /* NULL: nothing so far */
    run_report *out;
    result *row; /* the result that is read; NULL: none */
    bool in_results, in_notes;
} reader;

static bool fail(reader *r, const char *what)
{
    r->wrong = r->wrong ? r->wrong : what;
    return false;
}

static void skip_space(reader *r)
{
    r->at += strspn(r->at, " \t\r\n");
}

/* Takes the next character if it is this one. */
static bool take(reader *r, char wanted)
{
    skip_space(r);
    if (*r->at != wanted)
        return false;
    r->at++;
    return true;
}

/* The character after "\\u": a byte, as weft-perf writes bytes that are no UTF-8; '?' for all others. */
static char read_code(reader *r)
{
    char digits[5] = "", *end;
    for (size_t i = 0; i < 4 && r->at[1]; i++)
        digits[i] = *++r->at;
    unsigned long code = strtoul(digits, &end, 16);
    return end == digits + 4 && code > 0 && code < 256 ? (char)code : '?';
}

/* A string without its quotes. */
static bool read_string(reader *r, char *out, size_t room)
{
    size_t used = 0;
    if (!take(r, '"'))
        return fail(r, "a string is expected");
    for (; *r->at && *r->at != '"'; r->at++) {
        char each = *r->at;
        if (each == '\\') {
            each = *++r->at;
            if (!each)
                break;
            each = each == 'n' ? '\n' : each == 't' ? '\t' : each == 'u' ? read_code(r) : each;
        }
        if (used + 1 < room)
            out[used++] = each;
    }
    out[used] = '\0';
    return take(r, '"') || fail(r, "a string has no end");
}

static bool is_word(const char *text)
{
    char *end;
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0 || strcmp(text, "null") == 0)
        return true;
    (void)strtod(text, &end);
    return strchr("-0123456789", *text) && !*end; /* strtod takes "nan" and "inf" too */
}

/* A number, true, false or null, as it stands. */
static bool read_word(reader *r, char *out, size_t room)
{
    size_t length = strspn(r->at, "+-.0123456789abcdefghijklmnopqrstuvwxyzE");
    if (length == 0)
        return fail(r, "a value is expected");
    snprintf(out, room, "%.*s", (int)(length < room ? length : room - 1), r->at);
    if (!is_word(out))
        return fail(r, "a value is expected");
    r->at += length;
    return true;
}

static bool read_value(reader *r, const char *key);

static bool read_members(reader *r, bool is_object, char end)
{
    char key[64] = "";
    if (take(r, end))
        return true;
    do {
        if (is_object && (!read_string(r, key, sizeof(key)) || !take(r, ':')))
            return fail(r, "a name and ':' are expected");
        if (!read_value(r, key))
            return false;
    } while (take(r, ','));
    return take(r, end) || fail(r, "',' or the end of an object or array is expected");
}

static bool read_object(reader *r)
{
    result row = result_of("", "", "", false);
    bool is_row = r->in_results && r->depth == 3;
    r->row = is_row ? &row : NULL;
    bool ok = read_members(r, true, '}');
    if (is_row && ok)
        results_add(&r->out->found, &row);
    r->row = NULL;
    return ok;
}

static void set(reader *r, const char *key, const char *text, bool is_string)
{
    for (size_t i = 0; r->row && i < result_field_count; i++)
        if (strcmp(result_fields[i].name, key) == 0)
            result_set(r->row, &result_fields[i], text);
    if (r->in_notes && r->depth == 3 && is_string)
        (void)run_report_note(r->out, text);
    for (size_t i = 0; r->depth == 2 && i < RUN_FIELDS; i++) {
        char *at = (char *)r->out + run_fields[i].offset, *end;
        double value = strtod(text, &end);
        if (strcmp(run_fields[i].name, key) != 0)
            continue;
        if (run_fields[i].kind == FIELD_TEXT && is_string)
            text_copy(at, run_fields[i].size, text);
        else if (run_fields[i].kind == FIELD_COUNT)
            *(int64_t *)at = strtoll(text, NULL, 10);
        else if (run_fields[i].kind == FIELD_NUMBER && end != text && !*end)
            *(double *)at = value;
    }
}

static bool read_value(reader *r, const char *key)
{
    char text[1024];
    bool ok;
    skip_space(r);
    if (++r->depth > DEPTH_MOST)
        return fail(r, "it is nested too deeply");
    if (*r->at == '{') {
        r->at++;
        ok = read_object(r);
    } else if (*r->at == '[') {
        r->at++;
        r->in_results = r->in_results || (r->depth == 2 && strcmp(key, "results") == 0);
        r->in_notes = r->in_notes || (r->depth == 2 && strcmp(key, "notes") == 0);
        ok = read_members(r, false, ']');
        r->in_results = r->in_results && r->depth != 2;
        r->in_notes = r->in_notes && r->depth != 2;
    } else {
        bool is_string = *r->at == '"';
        ok = is_string ? read_string(r, text, sizeof(text)) : read_word(r, text, sizeof(text));
        if (ok)
            set(r, key, text, is_string);
    }
    r->depth--;
    return ok;
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "re");
    long size = file && fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
    char *text = size >= 0 && size <= FILE_MOST ? malloc((size_t)size + 1) : NULL;
    if (size > FILE_MOST)
        errno = EFBIG;
    if (text) {
        rewind(file);
        text[fread(text, 1, (size_t)size, file)] = '\0';
    }
    if (file)
        fclose(file);
    return text;
}

bool json_read(const char *path, run_report *out, char *why, size_t room)
{
    char *text = read_file(path);
    if (!text) {
        snprintf(why, room, "%s: %s", path, strerror(errno));
        return false;
    }
    reader r = {.at = text, .out = out};
    out->seconds = out->busy = out->averages[0] = out->averages[1] = out->averages[2] = (double)NAN;
    bool ok = read_value(&r, "");
    skip_space(&r);
    if (ok && *r.at)
        ok = fail(&r, "something follows the end of the value");
    if (!ok)
        snprintf(why, room, "%s is no JSON: %s at byte %zu", path, r.wrong ? r.wrong : "something is wrong",
                 (size_t)(r.at - text));
    else if (out->found.count == 0)
        snprintf(why, room, "%s has no results of weft-perf", path);
    free(text);
    return ok && out->found.count > 0;
}
