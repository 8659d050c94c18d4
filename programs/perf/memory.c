/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.c - memory that an open agent, an idle peer, and a peer with a bulk lane add at rank 0, which runs the store.
 * Also the descriptors of an idle peer, and the bytes of large payloads that weft copied. The process has done nothing
 * else before.
 */
#include "perf/bench.h"
#include "perf/raw_endpoint.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((int64_t)1 << 20)
#define ROUNDS 3
#define SETTLE_US 100000 /* buffers that are no longer needed are given back */

/* Anonymous memory, also such that a forked process still shares with its parent; and this process's part of shared
 * memory. -1: this kernel does not tell. */
static long used_kib(void)
{
    char line[256];
    long kib = -1, shared = 0;
    FILE *file = fopen("/proc/self/smaps_rollup", "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "Anonymous:", 10) == 0)
            kib = strtol(line + 10, NULL, 10);
        else if (strncmp(line, "Pss_Shmem:", 10) == 0)
            shared = strtol(line + 10, NULL, 10);
    }
    if (file)
        fclose(file);
    return kib < 0 ? kib : kib + shared;
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

/* The memory of an endpoint of libfabric, without weft, in a process of its own. NaN: not for this fabric. */
static double measure_libfabric(const char *list)
{
    int fds[2];
    long kib = -1;
    if (strcmp(list, "tcp") != 0 || pipe(fds) != 0)
        return (double)NAN;
    pid_t child = fork();
    if (child == 0) {
        raw_endpoint e;
        long before = used_kib();
        bool opens = raw_endpoint_open(&e, list, 4096);
        kib = opens ? used_kib() - before : -1;
        _exit(write(fds[1], &kib, sizeof(kib)) == sizeof(kib) ? 0 : 1);
    }
    close(fds[1]);
    bool is_read = child > 0 && read(fds[0], &kib, sizeof(kib)) == sizeof(kib);
    close(fds[0]);
    if (child > 0)
        (void)waitpid(child, NULL, 0);
    return is_read && kib >= 0 ? (double)kib : (double)NAN;
}

memory_before memory_read_before(const char *list)
{
    return (memory_before){.kib = used_kib(), .libfabric_kib = measure_libfabric(list)};
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

static void put(bench *b, const char *what, const char *unit, double value, double floor)
{
    result r = result_of("memory", what, unit, false);
    series one = {0};
    series_add(&one, value);
    result_fill(&r, &one, floor, "libfabric alone");
    r.workers = b->world;
    bench_put(b, &r);
    series_fini(&one);
}

bool measure_memory(bench *b, const memory_before *before)
{
    int last = b->world - 1, others = last - 1;
    bool ok = call_all(b, 1, 1, NULL, NULL); /* what the first calls alone need belongs to the agent */
    long first = used_kib();
    int descriptors = count_descriptors();
    ok = ok && call_all(b, 2, last, NULL, NULL);
    long idle = used_kib();
    descriptors = count_descriptors() - descriptors;
    weft_tensor *there = NULL, *back = NULL;
    bool made = !weft_tensor_full(WEFT_SHAPE(MIB), WEFT_DTYPE_UINT8, 1, &there, NULL) &&
                !weft_tensor_full(WEFT_SHAPE(MIB), WEFT_DTYPE_UINT8, 0, &back, NULL);
    ok = ok && (made || task_fail(b->to, "no memory for tensors"));
    ok = ok && call_all(b, 1, 1, there, back);
    long first_active = used_kib();
    ok = ok && call_all(b, 2, last, there, back);
    long active = used_kib();
    weft_tensor_unref(there);
    weft_tensor_unref(back);
    if (!ok)
        return false;
    weft_stats stats;
    weft_agent_stats(b->agent, &stats);
    put(b, "agent", "KiB", (double)(first - before->kib), before->libfabric_kib);
    put(b, "idle peer", "KiB", (double)(idle - first) / others, (double)NAN);
    put(b, "idle peer, descriptors", "count", (double)descriptors / others, (double)NAN);
    put(b, "peer with a bulk lane", "KiB", (double)(active - first_active) / others, (double)NAN);
    put(b, "payload bytes copied", "count", (double)stats.bytes_copied, (double)NAN);
    return true;
}
