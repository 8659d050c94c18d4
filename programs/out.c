/* SPDX-License-Identifier: Apache-2.0 */
/* out.c - see out.h. */
#include "out.h"

#include <inttypes.h>
#include <stdarg.h>

void out_open(out *to, FILE *stream, bool is_json)
{
    *to = (out){.json = {.to = stream, .separated = true}, .is_json = is_json};
    if (is_json)
        wfi_json_open(&to->json, NULL, '{');
}

static void end_row(out *to)
{
    if (to->in_row && to->is_json)
        wfi_json_close(&to->json, '}');
    else if (to->in_row)
        fputc('\n', to->json.to);
    to->in_row = false;
}

static void end_section(out *to)
{
    end_row(to);
    if (to->has_section && to->is_json)
        wfi_json_close(&to->json, to->has_rows ? ']' : '}');
    else if (to->has_section && !to->has_item)
        fputs("  none\n", to->json.to);
    to->has_section = false;
}

void out_close(out *to)
{
    end_section(to);
    if (to->is_json)
        fputs("}\n", to->json.to);
}

void out_verdict(out *to, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (to->is_json)
        wfi_json_put_text(&to->json, "verdict", text);
    else
        fprintf(to->json.to, "%s\n", text);
}

void out_section(out *to, const char *name, bool has_rows)
{
    end_section(to);
    to->has_section = true;
    to->has_rows = has_rows;
    to->has_item = false;
    if (to->is_json)
        wfi_json_open(&to->json, name, has_rows ? '[' : '{');
    else
        fprintf(to->json.to, "%s\n", name);
}

void out_row(out *to, const char *key, const char *value)
{
    end_row(to);
    to->in_row = to->has_item = true;
    if (!to->is_json) {
        fprintf(to->json.to, "  %s:", value);
        to->json.separated = true;
        return;
    }
    wfi_json_open(&to->json, NULL, '{');
    wfi_json_put_text(&to->json, key, value);
}

/* Text: "key: value" on a line of its own, or "key value" in a row. */
static void put(out *to, const char *key, const char *value)
{
    to->has_item = true;
    if (!to->in_row) {
        fprintf(to->json.to, "  %s: %s\n", key, value);
        return;
    }
    fprintf(to->json.to, "%s %s %s", to->json.separated ? "" : ",", key, value);
    to->json.separated = false;
}

void out_text(out *to, const char *key, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (to->is_json)
        wfi_json_put_text(&to->json, key, text);
    else if (text[0])
        put(to, key, text);
}

void out_number(out *to, const char *key, int64_t number)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, number);
    if (!to->is_json && number >= 0)
        put(to, key, text);
    else if (number >= 0)
        wfi_json_put_number(&to->json, key, (uint64_t)number);
    else if (to->is_json)
        wfi_json_put_text(&to->json, key, NULL);
}

void out_limit(out *to, const char *key, int64_t limit)
{
    if (limit > 0 || to->is_json)
        out_number(to, key, limit > 0 ? limit : -1);
    else
        out_text(to, key, "unlimited");
}
