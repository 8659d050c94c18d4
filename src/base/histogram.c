/* SPDX-License-Identifier: Apache-2.0 */
/* histogram.c - see histogram.h. */
#include "base/histogram.h"

#include "base/alloc.h"

#include <stdlib.h>
#include <string.h>

#define FIRST_BITS 4 /* bits of a step's number: WFI_HISTOGRAM_STEPS is 2^4 */
#define VALUE_MAX ((UINT64_C(1) << 42) - 1)

void wfi_histogram_init(wfi_histogram *histogram)
{
    *histogram = (wfi_histogram){0};
}

void wfi_histogram_fini(wfi_histogram *histogram)
{
    free(histogram->counts);
    wfi_histogram_init(histogram);
}

/* Octave o > 0 has the values of 4 + o bits: the highest bit gives the octave, the four bits below it give the step. */
static unsigned octave_of(uint64_t value)
{
    return value < WFI_HISTOGRAM_STEPS ? 0 : 64u - (unsigned)__builtin_clzll(value) - FIRST_BITS;
}

static unsigned step_of(uint64_t value, unsigned octave)
{
    return (unsigned)(octave ? value >> (octave - 1) : value) & (WFI_HISTOGRAM_STEPS - 1);
}

static uint64_t middle_of(unsigned octave, unsigned step)
{
    if (!octave)
        return step;
    return ((uint64_t)(WFI_HISTOGRAM_STEPS + step) << (octave - 1)) + (UINT64_C(1) << (octave - 1)) / 2;
}

/* Makes room for the octaves from `low` to `high`. */
static bool cover(wfi_histogram *histogram, unsigned low, unsigned high)
{
    unsigned first = histogram->first, end = first + histogram->octaves;
    if (histogram->octaves && low >= first && high < end)
        return true;
    if (histogram->octaves) {
        low = low < first ? low : first;
        high = high >= end ? high : end - 1;
    }
    size_t octaves = high - low + 1;
    uint64_t *counts = wfi_calloc(octaves * WFI_HISTOGRAM_STEPS, sizeof(*counts));
    if (!counts)
        return false;
    if (histogram->octaves)
        memcpy(counts + (size_t)(first - low) * WFI_HISTOGRAM_STEPS, histogram->counts,
               (size_t)histogram->octaves * WFI_HISTOGRAM_STEPS * sizeof(*counts));
    free(histogram->counts);
    histogram->counts = counts;
    histogram->first = (uint8_t)low;
    histogram->octaves = (uint8_t)octaves;
    return true;
}

static uint64_t *counter_of(wfi_histogram *histogram, uint64_t value)
{
    value = value < VALUE_MAX ? value : VALUE_MAX;
    unsigned octave = octave_of(value), step = step_of(value, octave);
    if (!cover(histogram, octave, octave)) {
        if (!histogram->octaves)
            return NULL;
        bool below = octave < histogram->first;
        step = below ? 0 : WFI_HISTOGRAM_STEPS - 1;
        octave = below ? histogram->first : histogram->first + histogram->octaves - 1u;
    }
    return &histogram->counts[(size_t)(octave - histogram->first) * WFI_HISTOGRAM_STEPS + step];
}

static void take_extremes(wfi_histogram *histogram, uint64_t min, uint64_t max)
{
    if (!histogram->count || min < histogram->min)
        histogram->min = min;
    if (max > histogram->max)
        histogram->max = max;
}

void wfi_histogram_record(wfi_histogram *histogram, uint64_t value)
{
    uint64_t *counter = counter_of(histogram, value);
    if (counter)
        ++*counter;
    take_extremes(histogram, value, value);
    histogram->count++;
    histogram->sum += value;
}

weft_status wfi_histogram_merge(wfi_histogram *into, const wfi_histogram *from)
{
    if (!from->count)
        return WEFT_OK;
    if (from->octaves && !cover(into, from->first, from->first + from->octaves - 1u))
        return WEFT_ERR_MEMORY;
    uint64_t *counts = into->counts + (size_t)(from->first - into->first) * WFI_HISTOGRAM_STEPS;
    for (size_t i = 0; i < (size_t)from->octaves * WFI_HISTOGRAM_STEPS; i++)
        counts[i] += from->counts[i];
    take_extremes(into, from->min, from->max);
    into->count += from->count;
    into->sum += from->sum;
    return WEFT_OK;
}

static uint64_t within(const wfi_histogram *histogram, uint64_t value)
{
    if (value < histogram->min)
        return histogram->min;
    return value > histogram->max ? histogram->max : value;
}

uint64_t wfi_histogram_quantile(const wfi_histogram *histogram, double share)
{
    double wanted = share * (double)histogram->count;
    uint64_t seen = 0;
    size_t end = (size_t)histogram->octaves * WFI_HISTOGRAM_STEPS;
    if (!histogram->count || wanted <= 1)
        return histogram->min;
    for (size_t i = 0; i < end; i++) {
        seen += histogram->counts[i];
        if ((double)seen >= wanted) {
            unsigned octave = histogram->first + (unsigned)(i / WFI_HISTOGRAM_STEPS);
            return within(histogram, middle_of(octave, (unsigned)(i % WFI_HISTOGRAM_STEPS)));
        }
    }
    return histogram->max;
}

uint64_t wfi_histogram_mean(const wfi_histogram *histogram)
{
    return histogram->count ? histogram->sum / histogram->count : 0;
}

uint64_t wfi_histogram_below(const wfi_histogram *histogram, unsigned exponent)
{
    uint64_t seen = 0;
    size_t octaves = histogram->octaves, end;
    unsigned below = exponent < FIRST_BITS ? 0 : exponent - FIRST_BITS + 1; /* octaves below that power */
    if (below <= histogram->first)
        return 0;
    end = below - histogram->first < octaves ? below - histogram->first : octaves;
    for (size_t i = 0; i < end * WFI_HISTOGRAM_STEPS; i++)
        seen += histogram->counts[i];
    return seen;
}
