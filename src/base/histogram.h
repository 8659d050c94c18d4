/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.h - how often which value came, in HdrHistogram's form (Gil Tene, hdrhistogram.org): an octave for each power of
 * two, cut in 16 equal steps. A step answers with its middle, so that every value from 1 to 2^42 - 1 (nanoseconds: more than
 * an hour) is kept within 1/32 of itself; those below 16 exactly, larger ones as the largest.
 *
 * Recording is O(1). Counters exist for the octaves between the smallest and the largest value seen: a latency that stays
 * within a factor of 64 takes 0.8 KiB, the whole range 5 KiB. Not thread-safe.
 */
#ifndef WFI_HISTOGRAM_H
#define WFI_HISTOGRAM_H

#include <weft/status.h>

#define WFI_HISTOGRAM_STEPS 16
#define WFI_HISTOGRAM_OCTAVES 39 /* the first holds 0 to 15, the last 2^41 to 2^42 - 1 */

typedef struct wfi_histogram {
    uint64_t count, sum, min, max; /* exact, whatever the value; min and max: 0 without any */
    uint64_t *counts;              /* WFI_HISTOGRAM_STEPS for each of `octaves` octaves from `first` on */
    uint8_t first, octaves;
} wfi_histogram;

void wfi_histogram_init(wfi_histogram *histogram); /* allocates nothing */
void wfi_histogram_fini(wfi_histogram *histogram);
/* Without memory for a new octave the value counts for the nearest one that exists. */
void wfi_histogram_record(wfi_histogram *histogram, uint64_t value);
/* Adds what `from` holds. WEFT_ERR_MEMORY: nothing was added. */
weft_status wfi_histogram_merge(wfi_histogram *into, const wfi_histogram *from);
/* The smallest value that at least this share (0 to 1) of the values do not exceed, as the form keeps it; 0 without any. */
uint64_t wfi_histogram_quantile(const wfi_histogram *histogram, double share);
uint64_t wfi_histogram_mean(const wfi_histogram *histogram);
/* How many values were below 2^exponent. Exact for exponents of 4 to 42. */
uint64_t wfi_histogram_below(const wfi_histogram *histogram, unsigned exponent);

#endif
