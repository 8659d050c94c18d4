/* SPDX-License-Identifier: Apache-2.0 */
/* nodelist.c - see nodelist.h. */
#include "job/bootstrap/nodelist.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BRACKETS_MAX 8

typedef struct range { /* one part of a bracket */
    uint64_t first, count;
    int width; /* digits of the first number */
} range;

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads "01-16" or "20" at *at, which ends at ',' or ']'. */
static bool read_range(const char **at, range *out)
{
    char *end;
    const char *start = *at;
    if (!is_digit(*start))
        return false;
    uint64_t last = out->first = strtoull(start, &end, 10);
    out->width = (int)(end - start);
    if (*end == '-') {
        if (!is_digit(end[1]))
            return false;
        last = strtoull(end + 1, &end, 10);
    }
    *at = end;
    out->count = last - out->first + 1;
    return out->width <= 18 && last >= out->first && last - out->first < UINT32_MAX && (*end == ',' || *end == ']');
}

/* Returns how many numbers the bracket at `at` has, 0 if it is malformed, and gives number `index` of them. *end is
 * behind the bracket. */
static uint64_t read_bracket(const char *at, uint64_t index, uint64_t *number, int *width, const char **end)
{
    uint64_t count = 0;
    range r;
    do {
        at++; /* '[' or ',' */
        if (!read_range(&at, &r))
            return 0;
        if (index >= count && index - count < r.count) {
            *number = r.first + (index - count);
            *width = r.width;
        }
        count += r.count;
    } while (*at == ',');
    *end = at + 1;
    return count;
}

/* How many nodes the item at `at` stands for, 0 if it is malformed. *end is behind it. */
static uint64_t count_item(const char *at, uint64_t counts[BRACKETS_MAX], const char **end)
{
    uint64_t all = 1, number;
    int width, brackets = 0;
    while (*at && *at != ',') {
        if (*at != '[') {
            at++;
            continue;
        }
        uint64_t count = brackets < BRACKETS_MAX ? read_bracket(at, 0, &number, &width, &at) : 0;
        if (!count || all > UINT32_MAX / count)
            return 0;
        counts[brackets++] = count;
        all *= count;
    }
    *end = at;
    return all;
}

static bool write_item(const char *at, const char *end, const uint64_t counts[BRACKETS_MAX], uint64_t index, char *name,
                       size_t room)
{
    uint64_t below = 1, number = 0;
    size_t used = 0;
    int bracket = 0, width = 0;
    for (int i = 0; i < BRACKETS_MAX && counts[i]; i++)
        below *= counts[i];
    while (at < end && used + 1 < room) {
        if (*at != '[') {
            name[used++] = *at++;
            continue;
        }
        below /= counts[bracket];
        (void)read_bracket(at, index / below % counts[bracket], &number, &width, &at);
        bracket++;
        int wrote = snprintf(name + used, room - used, "%0*llu", width, (unsigned long long)number);
        used += (size_t)wrote;
    }
    if (used >= room)
        return false;
    name[used] = '\0';
    return at == end && used > 0;
}

bool wfi_nodelist_at(const char *list, size_t index, char *name, size_t room)
{
    while (list && *list) {
        uint64_t counts[BRACKETS_MAX] = {0};
        const char *end;
        uint64_t count = count_item(list, counts, &end);
        if (!count || end == list)
            return false;
        if (index < count)
            return write_item(list, end, counts, index, name, room);
        index -= count;
        list = *end == ',' ? end + 1 : end;
    }
    return false;
}
