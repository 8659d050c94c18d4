/* SPDX-License-Identifier: Apache-2.0 */
/* exposition.h - the parts of Prometheus' text format that need care: labels, and a histogram's lines. */
#ifndef WFI_EXPOSITION_H
#define WFI_EXPOSITION_H

#include "base/histogram.h"

#include <stddef.h>
#include <stdio.h>

#define WFI_LABELS_MAX 1024 /* of one line: a function's name has at most 127 bytes, of which each may become five */
/* `name` as it may stand in a label's quotes; returns its length. */
size_t wfi_exposition_escape(const char *name, char *out, size_t room);
/* A histogram of nanoseconds, as seconds: its lines; `labels` lack the closing brace. */
void wfi_exposition_seconds(FILE *to, const char *name, const wfi_histogram *times, const char *labels);

#endif
