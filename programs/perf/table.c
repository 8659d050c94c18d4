/* SPDX-License-Identifier: Apache-2.0 */
/* table.c - results as a table for people. */
#include "perf/writers.h"

#include <math.h>
#include <string.h>

const char *size_text(int64_t bytes, char *buffer)
{
    if (bytes > 0)
        return measure_bytes_name((size_t)bytes, buffer);
    snprintf(buffer, 32, "-");
    return buffer;
}

const char *load_text(const result *r, char *buffer)
{
    buffer[0] = '\0';
    if (r->window > 0)
        snprintf(buffer, 48, "%d in flight%s", (int)r->window, r->workers > 2 ? ", " : "");
    if (r->workers > 2 || (strcmp(r->measure, "collectives") == 0 && r->workers > 0))
        snprintf(buffer + strlen(buffer), 48 - strlen(buffer), "%d workers", (int)r->workers);
    return buffer;
}

/* Three significant digits; whole numbers from 100 on. */
static const char *number_text(double value, char *buffer)
{
    if (!isfinite(value))
        snprintf(buffer, 32, "-");
    else if (value < 1)
        snprintf(buffer, 32, "%.3g", value);
    else
        snprintf(buffer, 32, "%.*f", value >= 100 ? 0 : value >= 10 ? 1 : 2, value);
    return buffer;
}

static void write_head(FILE *to, const result *r, bool is_first)
{
    fprintf(to, "%s%s\n\n", is_first ? "" : "\n", r->measure);
    fprintf(to,
            "| %-11s | %-22s | %-8s | %-23s | %-7s | %9s | %9s | %9s | %9s | %7s | %9s | %8s | %7s | %-11s | floor is\n"
            "|-------------|------------------------|----------|-------------------------|---------|-----------|-------"
            "----|-----------|-----------|---------|-----------|----------|---------|-------------|---------\n",
            "fabric,peer", "what", "size", "load", "unit", "p50", "p90", "p99", "best", "samples", "floor", "of floor",
            "of weft", "lanes");
}

void table_write(FILE *to, const result *r, const result *before)
{
    char size[32], load[48], p50[32], p90[32], p99[32], best[32], floor[32], of[32], of_weft[32], lanes[64];
    if (!before || strcmp(before->measure, r->measure) != 0)
        write_head(to, r, !before);
    snprintf(lanes, sizeof(lanes), "%s%s%s", r->control, r->bulk[0] ? ", " : "", r->bulk);
    fprintf(to,
            "| %-11s | %-22s | %-8s | %-23s | %-7s | %9s | %9s | %9s | %9s | %7lld | %9s | %8s | %7s | %-11s | %s\n",
            strcmp(r->program, "weft") == 0 ? r->fabric : r->program, r->what, size_text(r->bytes, size),
            load_text(r, load), r->unit, number_text(r->p50, p50), number_text(r->p90, p90), number_text(r->p99, p99),
            number_text(r->best, best), (long long)r->samples, number_text(r->floor, floor),
            number_text(r->of_floor, of), number_text(r->of_weft, of_weft), lanes, r->floor_name);
    fflush(to);
}
