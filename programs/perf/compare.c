/* SPDX-License-Identifier: Apache-2.0 */
/* compare.c - results beside those of an earlier run. */
#include "perf/writers.h"

#include <math.h>
#include <string.h>

/* The ratio of the medians, above 1 if the new run is worse: of times and memory now / old, of rates old / now. */
static double times_slower(const result *old, const result *now)
{
    return now->is_rate ? old->p50 / now->p50 : now->p50 / old->p50;
}

int compare_write(FILE *to, const results *old, const results *now, double bound)
{
    int slower = 0, compared = 0;
    fprintf(to,
            "\n| %-12s | %-8s | %-22s | %-8s | %-23s | %-7s | %10s | %10s | %6s |\n"
            "|--------------|----------|------------------------|----------|-------------------------|---------|------"
            "------|------------|--------|\n",
            "measure", "fabric", "what", "size", "load", "unit", "before", "now", "slower");
    for (size_t i = 0; i < now->count; i++) {
        const result *r = &now->items[i], *before = results_find(old, r);
        double times = before ? times_slower(before, r) : (double)NAN;
        char size[32], load[48];
        if (!isfinite(times))
            continue;
        compared++;
        slower += times > bound;
        fprintf(to, "| %-12s | %-8s | %-22s | %-8s | %-23s | %-7s | %10.4g | %10.4g | %6.2f |%s\n", r->measure,
                r->fabric, r->what, size_text(r->bytes, size), load_text(r, load), r->unit, before->p50, r->p50, times,
                times > bound ? " SLOWER" : "");
    }
    fprintf(to, "\n%d results in both runs, %d more than %g times as slow as before\n", compared, slower, bound);
    return compared ? slower : -1;
}
