/* SPDX-License-Identifier: Apache-2.0 */
/*
 * histogram.h - a histogram in the form of HdrHistogram (Gil Tene, hdrhistogram.org).
 *
 * There is an octave for each power of two, divided into 16 equal steps. A step reports its middle. So every value from
 * 1 to 2^42 - 1 (nanoseconds: more than an hour) is reported with an error of at most 1/32; values below 16 exactly,
 * larger values than the last as the last.
 *
 * Recording is O(1). Counters exist for the octaves between the smallest and the largest recorded value: latencies
 * within a factor of 64 take 0.8 KiB, the whole range 5 KiB. Not thread-safe.
 */
#ifndef WFI_HISTOGRAM_H
#define WFI_HISTOGRAM_H

#include <weft/status.h>

#define WFI_HISTOGRAM_STEPS 16
#define WFI_HISTOGRAM_OCTAVES 39 /* the first holds 0 to 15, the last 2^41 to 2^42 - 1 */

typedef struct wfi_histogram {
    uint64_t count, sum, min, max; /* exact for all values; min and max are 0 if there are none */
    uint64_t *counts;              /* WFI_HISTOGRAM_STEPS for each of `octaves` octaves from `first` on */
    uint8_t first, octaves;
} wfi_histogram;

void wfi_histogram_init(wfi_histogram *histogram); /* allocates nothing */
void wfi_histogram_fini(wfi_histogram *histogram);
/* If there is no memory for a new octave, the value is counted in the nearest existing one. */
void wfi_histogram_record(wfi_histogram *histogram, uint64_t value);
/* Adds all values of `from`. WEFT_ERR_MEMORY: nothing was added. */
weft_status wfi_histogram_merge(wfi_histogram *into, const wfi_histogram *from);
/* The quantile `share` (0 to 1): the reported value that at least this share of the values do not exceed. 0 if
 * empty. */
uint64_t wfi_histogram_quantile(const wfi_histogram *histogram, double share);
uint64_t wfi_histogram_mean(const wfi_histogram *histogram);
/* The number of values below 2^exponent. Exact for exponents from 4 to 42. */
uint64_t wfi_histogram_below(const wfi_histogram *histogram, unsigned exponent);

#endif
