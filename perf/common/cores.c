/* SPDX-License-Identifier: Apache-2.0 */
/* cores.c - see cores.h. */
#include "cores.h"

#include <stdio.h>
#include <string.h>

/* The processors that share a core with this one, as Linux writes them ("0-1", "0,64"). "" if Linux does not say. */
static void read_siblings(int processor, char out[64])
{
    char path[96];
    *out = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", processor);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    if (!fgets(out, 64, file))
        *out = 0;
    fclose(file);
}

static bool share_a_core(int a, int b)
{
    char of_a[64], of_b[64];
    read_siblings(a, of_a);
    read_siblings(b, of_b);
    return *of_a && strcmp(of_a, of_b) == 0;
}

bool cores_find(cores *out)
{
    *out = (cores){.mine = -1, .other = -1};
    if (sched_getaffinity(0, sizeof out->allowed, &out->allowed))
        return false;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &out->allowed))
            continue;
        if (out->mine < 0) {
            out->mine = i;
        } else if (!share_a_core(out->mine, i)) {
            out->other = i;
            return true;
        } else if (out->other < 0) {
            out->other = i; /* unless a core of its own follows */
        }
    }
    return out->other >= 0;
}

void cores_pin(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    sched_setaffinity(0, sizeof set, &set);
}

void cores_free(const cores *c)
{
    sched_setaffinity(0, sizeof c->allowed, &c->allowed);
}
