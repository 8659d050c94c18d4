/* SPDX-License-Identifier: Apache-2.0 */
/* turns.c - see turns.h. */
#include "turns.h"

#include "measure.h"

#include <stdlib.h>

bool turns_time(turns_step step, void *arg, int64_t count, double *seconds)
{
    double start = measure_now_us();
    for (int64_t i = 0; i < count; i++)
        if (!step(arg))
            return false;
    *seconds = (measure_now_us() - start) / 1e6;
    return true;
}

bool turns_serve(turns_step step, void *arg)
{
    char line[32];
    while (fgets(line, sizeof line, stdin)) {
        double seconds;
        if (!turns_time(step, arg, strtoll(line, NULL, 10), &seconds))
            return false;
        printf("%.6f\n", seconds);
        fflush(stdout);
    }
    return true;
}
