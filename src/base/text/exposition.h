/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.h - labels and histograms in Prometheus' text format. */
#ifndef WFI_EXPOSITION_H
#define WFI_EXPOSITION_H

#include "base/histogram.h"

#include <stddef.h>
#include <stdio.h>

#define WFI_LABELS_MAX 1024 /* of one line: a function's name has at most 127 bytes, each of which may become five */
/* Escapes `name` for the value of a label; returns the length. */
size_t wfi_exposition_escape(const char *name, char *out, size_t room);
/* Writes the lines of a histogram of nanoseconds, in seconds; `labels` are without the closing brace. */
void wfi_exposition_seconds(FILE *to, const char *name, const wfi_histogram *times, const char *labels);

#endif
