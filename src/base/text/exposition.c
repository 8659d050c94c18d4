/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.c - see exposition.h. */
#include "base/text/exposition.h"

#include <inttypes.h>

/* Bounds of the buckets: powers of two minus one nanosecond, where the histogram's steps end; from 1 us to 17 s. */
#define FIRST_BOUND 10
#define LAST_BOUND 34

/* The value of a label is UTF-8. Bytes that are not printable ASCII are written as numbers, and a backslash as two, so
 * that any name gives a legal value and different names give different values. The format doubles each backslash
 * again. */
size_t wfi_exposition_escape(const char *name, char *out, size_t room)
{
    size_t at = 0;
    for (const unsigned char *c = (const unsigned char *)name; *c && at + 6 < room; c++) {
        if (*c == '\\')
            at += (size_t)snprintf(out + at, room - at, "%s", "\\\\\\\\");
        else if (*c == '"')
            at += (size_t)snprintf(out + at, room - at, "\\\"");
        else if (*c == '\n')
            at += (size_t)snprintf(out + at, room - at, "\\n");
        else if (*c < 0x20 || *c >= 0x7f)
            at += (size_t)snprintf(out + at, room - at, "\\\\x%02x", *c);
        else
            out[at++] = (char)*c;
    }
    out[at] = '\0';
    return at;
}

void wfi_exposition_seconds(FILE *to, const char *name, const wfi_histogram *times, const char *labels)
{
    for (unsigned exponent = FIRST_BOUND; exponent <= LAST_BOUND; exponent++) {
        uint64_t bound = (UINT64_C(1) << exponent) - 1;
        fprintf(to, "%s_bucket%s,le=\"%" PRIu64 ".%09" PRIu64 "\"} %" PRIu64 "\n", name, labels, bound / 1000000000u,
                bound % 1000000000u, wfi_histogram_below(times, exponent));
    }
    fprintf(to, "%s_bucket%s,le=\"+Inf\"} %" PRIu64 "\n", name, labels, times->count);
    fprintf(to, "%s_sum%s} %" PRIu64 ".%09" PRIu64 "\n", name, labels, times->sum / 1000000000u,
            times->sum % 1000000000u);
    fprintf(to, "%s_count%s} %" PRIu64 "\n", name, labels, times->count);
}
