/* SPDX-License-Identifier: Apache-2.0 */
/* distance.c - see distance.h. */
#include "base/text/distance.h"

#include <stdbool.h>

static size_t smallest(size_t a, size_t b, size_t c)
{
    size_t least = a < b ? a : b;
    return least < c ? least : c;
}

size_t wfi_distance(const char *a, size_t a_size, const char *b, size_t b_size)
{
    size_t rows[3][WFI_DISTANCE_BYTES + 1], *before = rows[0], *last = rows[1], *row = rows[2];
    for (size_t j = 0; j <= b_size; j++)
        last[j] = before[j] = j;
    for (size_t i = 1; i <= a_size; i++) {
        row[0] = i;
        for (size_t j = 1; j <= b_size; j++) {
            row[j] = smallest(last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1]));
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
        }
        size_t *oldest = before;
        before = last;
        last = row;
        row = oldest;
    }
    return last[b_size];
}
