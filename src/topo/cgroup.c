/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cgroup.c - see cgroup.h. /proc/self/cgroup names this process's group in each hierarchy. /proc/self/mountinfo gives
 * the mount point of each hierarchy, and the group at which the mount begins (in a container often the container's
 * own).
 */
#include "topo/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES 4096
#define CORES_MAX 65536                           /* a larger quota or list is ignored */
#define UNLIMITED_BYTES (INT64_MAX / 4096 * 4096) /* what version 1 has without a limit: the largest number of pages */

typedef struct hierarchy {
    char folder[PATH_MAX]; /* of this process's group */
    size_t top;            /* length of the mount point at the beginning of `folder` */
} hierarchy;

/* ---- This process's groups --------------------------------------------------------------------------------------- */

/* Whether the list, of words between commas, has this one. */
static bool has_word(const char *list, const char *word)
{
    size_t size = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at++)
        if ((at == list || at[-1] == ',') && (at[size] == ',' || at[size] == '\0' || at[size] == '\n'))
            return true;
    return false;
}

/* Whether a line "36 35 0:31 ROOT POINT options - TYPE source OPTIONS" is the mount of that controller; NULL: of
 * version 2. */
static bool is_mount_of(char *line, const char *controller, char **root, char **point)
{
    char *fields[6], *rest = NULL, *type, *options;
    char *behind = strstr(line, " - ");
    if (!behind)
        return false;
    *behind = '\0';
    for (int i = 0; i < 6; i++)
        if (!(fields[i] = strtok_r(i ? NULL : line, " ", &rest)))
            return false;
    type = strtok_r(behind + 3, " ", &rest);
    (void)strtok_r(NULL, " ", &rest);
    options = strtok_r(NULL, " \n", &rest);
    *root = fields[3];
    *point = fields[4];
    if (!type || !options)
        return false;
    return controller ? strcmp(type, "cgroup") == 0 && has_word(options, controller) : strcmp(type, "cgroup2") == 0;
}

/*
 * The part of the group's path below the mounted one; NULL if it is elsewhere: then only the mounted group can be read.
 */
static const char *below(const char *path, const char *mounted)
{
    size_t size = strcmp(mounted, "/") == 0 ? 0 : strlen(mounted);
    bool is_below = strncmp(path, mounted, size) == 0 && (path[size] == '/' || path[size] == '\0');
    if (!is_below || strncmp(path, "/..", 3) == 0)
        return NULL;
    return strcmp(path + size, "/") == 0 ? "" : path + size;
}

/*
 * Prefers a mount that contains the group. A process in a namespace of groups may also see the mounts from outside,
 * which begin at groups ("/..") that have no name for it.
 */
static bool find_mount(const char *root, const char *controller, const char *path, hierarchy *out)
{
    char name[PATH_MAX], line[LINE_MAX_BYTES], *mounted, *point;
    snprintf(name, sizeof(name), "%s/proc/self/mountinfo", root);
    FILE *file = fopen(name, "re");
    bool found = false, is_inside = false;
    while (file && !is_inside && fgets(line, sizeof(line), file)) {
        if (!is_mount_of(line, controller, &mounted, &point))
            continue;
        const char *part = below(path, mounted);
        int size = snprintf(name, sizeof(name), "%s%s%s", root, point, part ? part : "");
        if ((found && !part) || size < 0 || (size_t)size >= sizeof(out->folder))
            continue;
        memcpy(out->folder, name, (size_t)size + 1);
        out->top = strlen(root) + strlen(point);
        found = true;
        is_inside = part != NULL;
    }
    if (file)
        fclose(file);
    return found;
}

/* "4:cpu,cpuacct:/path", or "0::/path" of version 2. NULL: it is of another controller. */
static char *path_of(char *line, const char *controller)
{
    char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!path)
        return NULL;
    *path++ = '\0';
    controllers++;
    path[strcspn(path, "\n")] = '\0';
    bool is_it = controller ? has_word(controllers, controller) : *controllers == '\0';
    return is_it && *path == '/' ? path : NULL;
}

/* False: there is no such hierarchy, or it cannot be seen. */
static bool find_group(const char *root, const char *controller, hierarchy *out)
{
    char name[PATH_MAX], line[LINE_MAX_BYTES], *path = NULL;
    snprintf(name, sizeof(name), "%s/proc/self/cgroup", root);
    FILE *file = fopen(name, "re");
    if (!file)
        return false;
    while (!path && fgets(line, sizeof(line), file))
        path = path_of(line, controller);
    fclose(file);
    return path && find_mount(root, controller, path, out);
}

/* ---- The limits -------------------------------------------------------------------------------------------------- */

static bool read_line(const char *folder, const char *file_name, char *line, size_t room)
{
    char name[PATH_MAX];
    int size = snprintf(name, sizeof(name), "%s/%s", folder, file_name);
    FILE *file = size > 0 && (size_t)size < sizeof(name) ? fopen(name, "re") : NULL;
    if (!file)
        return false;
    bool any = fgets(line, (int)room, file) != NULL;
    fclose(file);
    return any;
}

static long long read_number(const char *folder, const char *file_name)
{
    char line[64];
    return read_line(folder, file_name, line, sizeof(line)) ? strtoll(line, NULL, 10) : 0; /* "max" is 0, too */
}

/* Keeps the lowest limit of all levels; so does lower_quota. */
static void lower_memory(const char *folder, const char *file_name, wfi_cgroup *out)
{
    long long bytes = read_number(folder, file_name);
    if (bytes > 0 && bytes < UNLIMITED_BYTES && (out->memory == 0 || (uint64_t)bytes < out->memory))
        out->memory = (uint64_t)bytes;
}

static void lower_quota(long long quota, long long period, wfi_cgroup *out)
{
    if (quota <= 0 || period <= 0 || quota / period >= CORES_MAX)
        return;
    int cores = (int)((quota - 1) / period + 1);
    if (out->quota == 0 || cores < out->quota)
        out->quota = cores;
}

/* "0-3,8,10-11": how many; 0 for anything else. */
static int count_list(const char *list)
{
    long count = 0;
    char *end;
    for (const char *at = list;; at = end + 1) {
        long first = strtol(at, &end, 10), last = first;
        if (end == at)
            return 0;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        if (first < 0 || last < first || last - first >= CORES_MAX || (count += last - first + 1) > CORES_MAX)
            return 0;
        if (*end != ',')
            return (int)count;
    }
}

/* Reads the group's own list; if it has none, the list of the nearest ancestor. A group's list is always a subset of
 * its ancestors'. */
static void read_cores(const char *folder, const char *file_name, wfi_cgroup *out)
{
    char line[LINE_MAX_BYTES];
    if (out->cores == 0 && read_line(folder, file_name, line, sizeof(line)))
        out->cores = count_list(line);
}

static void read_version_2(const char *folder, wfi_cgroup *out)
{
    char line[64], *rest = line;
    if (read_line(folder, "cpu.max", line, sizeof(line))) { /* "quota period" or "max period" */
        long long quota = strtoll(line, &rest, 10);
        lower_quota(quota, strtoll(rest, NULL, 10), out);
    }
    lower_memory(folder, "memory.max", out);
    lower_memory(folder, "memory.high", out); /* above it everything is slow */
    read_cores(folder, "cpuset.cpus.effective", out);
}

static void read_version_1_cpu(const char *folder, wfi_cgroup *out)
{
    lower_quota(read_number(folder, "cpu.cfs_quota_us"), read_number(folder, "cpu.cfs_period_us"), out);
}

static void read_version_1_memory(const char *folder, wfi_cgroup *out)
{
    lower_memory(folder, "memory.limit_in_bytes", out);
}

static void read_version_1_cores(const char *folder, wfi_cgroup *out)
{
    read_cores(folder, "cpuset.effective_cpus", out);
    read_cores(folder, "cpuset.cpus", out);
}

/* Reads each level of a hierarchy: the process's group, then its ancestors, up to the mount. */
static void read_hierarchy(const char *root, const char *controller, void (*read_level)(const char *, wfi_cgroup *),
                           wfi_cgroup *out)
{
    hierarchy group;
    if (!find_group(root, controller, &group))
        return;
    for (;;) {
        read_level(group.folder, out);
        char *last = strrchr(group.folder, '/');
        if (!last || (size_t)(last - group.folder) < group.top)
            return;
        *last = '\0';
    }
}

void wfi_cgroup_read(const char *root, wfi_cgroup *out)
{
    *out = (wfi_cgroup){0};
    read_hierarchy(root, NULL, read_version_2, out);
    read_hierarchy(root, "cpu", read_version_1_cpu, out);
    read_hierarchy(root, "memory", read_version_1_memory, out);
    read_hierarchy(root, "cpuset", read_version_1_cores, out);
}
