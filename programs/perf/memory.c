/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - private dirty memory of rank 0, which runs the store too: what an open agent, an idle peer, and a peer with
 * a bulk lane add, and the descriptors of an idle peer. Measured in a process that has done nothing else.
 */
#include "perf/bench.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((int64_t)1 << 20)
#define ROUNDS 3
#define SETTLE_US 100000 /* buffers that are no longer needed are given back */

long memory_private_kib(void)
{
    char line[256];
    long kib = -1;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "Private_Dirty:", 14) == 0)
            kib = strtol(line + 14, NULL, 10);
    }
    if (file)
        fclose(file);
    return kib;
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *each; folder && (each = readdir(folder));)
        count += each->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return count;
}

/* Calls to ranks first..last, with the tensor there and back if there is one. */
static bool call_all(bench *b, int first, int last, weft_tensor *there, weft_tensor *back)
{
    bool ok = true;
    weft_args none = WEFT_NO_VALUES, one = WEFT_VALUES(weft_of_tensor(there));
    for (int round = 0; ok && round < ROUNDS; round++)
        for (int rank = first; ok && rank <= last; rank++)
            ok = bench_call(b, rank, there ? "echo" : "executor", there ? one : none, back);
    (void)usleep(SETTLE_US);
    return ok;
}

static void put(bench *b, const char *what, const char *unit, double value)
{
    result r = result_of("memory", what, unit, false);
    series one = {0};
    series_add(&one, value);
    result_fill(&r, &one, (double)NAN, "");
    r.workers = b->world;
    bench_put(b, &r);
    series_fini(&one);
}

bool measure_memory(bench *b, long before_kib)
{
    int last = b->world - 1, others = last - 1;
    weft_tensor *there = weft_tensor_full(WEFT_SHAPE(MIB), WEFT_DTYPE_UINT8, 1);
    weft_tensor *back = weft_tensor_full(WEFT_SHAPE(MIB), WEFT_DTYPE_UINT8, 0);
    bool ok = (there && back) || task_fail(b->to, "no memory for tensors");
    long opened = memory_private_kib();
    ok = ok && call_all(b, 1, 1, NULL, NULL); /* what the first call alone needs belongs to the agent */
    long first = memory_private_kib();
    int descriptors = count_descriptors();
    ok = ok && call_all(b, 2, last, NULL, NULL);
    long idle = memory_private_kib();
    descriptors = count_descriptors() - descriptors;
    ok = ok && call_all(b, 1, 1, there, back);
    long first_active = memory_private_kib();
    ok = ok && call_all(b, 2, last, there, back);
    long active = memory_private_kib();
    weft_tensor_unref(there);
    weft_tensor_unref(back);
    if (!ok)
        return false;
    put(b, "agent", "KiB", (double)(opened - before_kib));
    put(b, "first peer", "KiB", (double)(first - opened));
    put(b, "idle peer", "KiB", (double)(idle - first) / others);
    put(b, "idle peer, descriptors", "count", (double)descriptors / others);
    put(b, "peer with a bulk lane", "KiB", (double)(active - first_active) / others);
    return true;
}
