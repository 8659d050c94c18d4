/* SPDX-License-Identifier: Apache-2.0 */
/* net_measure.c - see net_measure.h. */
#include "net/net_measure.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* The number behind `field` in a file of lines "field:   number"; 0 if there is none. */
static uint64_t field_of(const char *path, const char *field)
{
    char line[256];
    unsigned long long value = 0;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, field, strlen(field)) == 0)
            (void)sscanf(line + strlen(field), "%llu", &value);
    }
    if (file)
        fclose(file);
    return value;
}

static size_t entries_of(const char *path)
{
    size_t count = 0;
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    if (folder)
        closedir(folder);
    return count;
}

size_t measure_private_dirty_kb(void)
{
    return field_of("/proc/self/smaps_rollup", "Private_Dirty:");
}

uint64_t measure_cpu_ns(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

size_t measure_descriptors(void)
{
    return entries_of("/proc/self/fd") - 1; /* one was for looking */
}

size_t measure_threads(void)
{
    return entries_of("/proc/self/task");
}

static bool begins_with(const char *path, const char *prefix)
{
    char name[32] = "";
    FILE *file = fopen(path, "r");
    bool is = file && fgets(name, sizeof(name), file) && strncmp(name, prefix, strlen(prefix)) == 0;
    if (file)
        fclose(file);
    return is;
}

uint64_t measure_sleeps(const char *prefix)
{
    char path[300];
    uint64_t count = 0;
    DIR *folder = opendir("/proc/self/task");
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", entry->d_name);
        bool ours = entry->d_name[0] != '.' && begins_with(path, prefix);
        snprintf(path, sizeof(path), "/proc/self/task/%s/status", entry->d_name);
        if (ours)
            count += field_of(path, "voluntary_ctxt_switches:");
    }
    if (folder)
        closedir(folder);
    return count;
}
