/* SPDX-License-Identifier: Apache-2.0 */
/* cgroup.h - what Linux's control groups (version 1, version 2, or both side by side) allow this process. */
#ifndef WFI_CGROUP_H
#define WFI_CGROUP_H

#include <stdint.h>

typedef struct wfi_cgroup {
    int quota;       /* processor time, in cores, rounded up; 0: no limit */
    int cores;       /* number of cores in the cpuset; 0: unknown */
    uint64_t memory; /* bytes; 0: no limit */
} wfi_cgroup;

/*
 * Reads the limits of this process's group and of every group around it: the smallest one counts. `root` is prefixed
 * to every path: "" for this machine; tests use folders of their own. A file that cannot be read is
 * treated as "no limit".
 */
void wfi_cgroup_read(const char *root, wfi_cgroup *out);

#endif
