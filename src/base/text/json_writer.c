/* SPDX-License-Identifier: Apache-2.0 */
/* json_writer.c - see json_writer.h. */
#include "base/text/json_writer.h"

#include "base/text/json.h"

#include <inttypes.h>

void wfi_json_item(wfi_json *j, const char *key)
{
    fputs(j->separated ? "" : ", ", j->to);
    j->separated = false;
    if (!key)
        return;
    wfi_json_write_string(j->to, key);
    fputs(": ", j->to);
}

void wfi_json_open(wfi_json *j, const char *key, char bracket)
{
    wfi_json_item(j, key);
    fputc(bracket, j->to);
    j->separated = true;
}

void wfi_json_close(wfi_json *j, char bracket)
{
    fputc(bracket, j->to);
    j->separated = false;
}

void wfi_json_put_text(wfi_json *j, const char *key, const char *text)
{
    wfi_json_item(j, key);
    if (text)
        wfi_json_write_string(j->to, text);
    else
        fputs("null", j->to);
}

void wfi_json_put_number(wfi_json *j, const char *key, uint64_t number)
{
    wfi_json_item(j, key);
    fprintf(j->to, "%" PRIu64, number);
}

void wfi_json_put_bool(wfi_json *j, const char *key, bool value)
{
    wfi_json_item(j, key);
    fputs(value ? "true" : "false", j->to);
}

/* Prints with ".", independent of the locale's decimal point. */
static void put_thousandths(FILE *to, uint64_t count)
{
    fprintf(to, "%" PRIu64 ".%03" PRIu64, count / 1000, count % 1000);
}

void wfi_json_put_ms(wfi_json *j, const char *key, uint64_t from_ns, uint64_t to_ns, bool known)
{
    wfi_json_item(j, key);
    if (known)
        put_thousandths(j->to, to_ns > from_ns ? (to_ns - from_ns + 500) / 1000 : 0);
    else
        fputs("null", j->to);
}
