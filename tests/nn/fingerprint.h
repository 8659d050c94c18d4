/* SPDX-License-Identifier: Apache-2.0 */
/* fingerprint.h - reading what tests/oracle wrote about a whole network: lines of words, the first says what they
 * are. */
#ifndef FINGERPRINT_H
#define FINGERPRINT_H

#include <weft/weft.h>

#include "unit.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FINGERPRINT_SAMPLES 5 /* of a gradient: elements number i * numel / 5 */

/* The words of the next line that begins with `kind`, in place; 0 at the end. */
static inline size_t fingerprint_line(FILE *file, const char *kind, char *line, size_t size, char **words, size_t max)
{
    while (fgets(line, (int)size, file)) {
        size_t count = 0;
        char *rest = NULL;
        for (char *w = strtok_r(line, " \n", &rest); w && count < max; w = strtok_r(NULL, " \n", &rest))
            words[count++] = w;
        if (count > 0 && strcmp(words[0], kind) == 0)
            return count;
    }
    return 0;
}

static inline double fingerprint_norm(const weft_tensor *x)
{
    double sum = 0;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        sum += weft_tensor_get_f64(x, i) * weft_tensor_get_f64(x, i);
    return sqrt(sum);
}

static inline void fingerprint_near(double got, double wanted, double room, const char *what)
{
    if (!(fabs(got - wanted) <= room))
        fail_msg("%s: %.9g, wanted %.9g, give or take %g", what, got, wanted, room);
}

/* The line "KIND VALUES" against the tensor's elements, relative to their root mean square. */
static inline void fingerprint_values(FILE *file, const char *kind, const weft_tensor *x, double tolerance)
{
    static char line[16384], *words[512];
    size_t count = (size_t)weft_tensor_numel(x);
    assert_int_equal(fingerprint_line(file, kind, line, sizeof(line), words, 512), 1 + count);
    double scale = fingerprint_norm(x) / sqrt((double)count);
    for (size_t i = 0; i < count; i++)
        fingerprint_near(weft_tensor_get_f64(x, (int64_t)i), atof(words[1 + i]), tolerance * scale, kind);
}

/* The next line "grad NAME NORM SAMPLES": the norm, and samples relative to themselves and the root mean square. */
static inline void fingerprint_gradient(FILE *file, const weft_tensor *g, double tolerance_norm, double tolerance)
{
    char line[4096], *words[16];
    assert_int_equal(fingerprint_line(file, "grad", line, sizeof(line), words, 16), 3 + FINGERPRINT_SAMPLES);
    assert_non_null(g);
    double wanted = atof(words[2]), rms = wanted / sqrt((double)weft_tensor_numel(g));
    fingerprint_near(fingerprint_norm(g), wanted, tolerance_norm * wanted, words[1]);
    for (int k = 0; k < FINGERPRINT_SAMPLES; k++) {
        double value = weft_tensor_get_f64(g, k * weft_tensor_numel(g) / FINGERPRINT_SAMPLES);
        fingerprint_near(value, atof(words[3 + k]), tolerance * (fabs(atof(words[3 + k])) + rms), words[1]);
    }
}

#endif
