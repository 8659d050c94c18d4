/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_mem_cgroup.c - the shares of threads and memory, and what slabs keep, in real control groups: version 2 where
 * the system has its controllers there, else version 1. A process of its own enters a group and looks. Needs root;
 * otherwise exits 77.
 */
#include "children.h"
#include "unit.h"

#include "mem/slab.h"
#include "topo/cgroup.h"
#include "topo/quota.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1ull << 20)

#define MUST(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: not so: %s\n", __LINE__, #condition);                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* ---- Groups: an outer one, and an inner one within it --------------------------------------------------------- */

static bool is_second;       /* one tree for all controllers */
static const char *roots[2]; /* of cpu, and of memory */
#define FOLDER 256
static char outer[2][FOLDER], inner[2][FOLDER];

static bool write_file(const char *folder, const char *name, const char *text)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return ok;
}

/* Processors, and bytes; 0: no limit. */
static bool limit(char folders[2][FOLDER], int processors, uint64_t bytes)
{
    char quota[32] = "max", memory[32] = "max";
    if (processors)
        snprintf(quota, sizeof(quota), is_second ? "%d 100000" : "%d", processors * 100000);
    if (bytes)
        snprintf(memory, sizeof(memory), "%llu", (unsigned long long)bytes);
    if (is_second)
        return write_file(folders[0], "cpu.max", quota) && write_file(folders[1], "memory.max", memory);
    return write_file(folders[0], "cpu.cfs_quota_us", processors ? quota : "-1") &&
           write_file(folders[1], "memory.limit_in_bytes", bytes ? memory : "-1");
}

static void remove_groups(void)
{
    for (int i = 0; i < 2; i++)
        for (int tries = 0; rmdir(inner[i]) != 0 && errno == EBUSY && tries < 100000; tries++)
            sched_yield();
    for (int i = 0; i < 2; i++)
        (void)rmdir(outer[i]);
}

static bool make_groups(void)
{
    bool ok = true;
    for (int i = 0; i < (is_second ? 1 : 2) && ok; i++)
        ok = mkdir(outer[i], 0755) == 0 &&
             (!is_second || write_file(outer[0], "cgroup.subtree_control", "+cpu +memory")) &&
             mkdir(inner[i], 0755) == 0;
    ok = ok && limit(inner, 0, 0);
    if (!ok)
        remove_groups();
    return ok;
}

static bool find_groups(void)
{
    static const char *const trees[][2] = {{"/sys/fs/cgroup", "/sys/fs/cgroup"},
                                           {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/memory"},
                                           {"/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/memory"}};
    bool found = false;
    for (size_t i = 0; i < sizeof(trees) / sizeof(*trees) && !found; i++) {
        is_second = i == 0;
        for (int k = 0; k < 2; k++) {
            roots[k] = trees[i][k];
            snprintf(outer[k], sizeof(outer[k]), "%s/weft-test-%d", roots[k], (int)getpid());
            snprintf(inner[k], sizeof(inner[k]), "%.240s/inner", outer[k]);
        }
        if (is_second)
            (void)write_file(roots[0], "cgroup.subtree_control", "+cpu +memory"); /* most systems have done so */
        found = make_groups();
    }
    return found;
}

/* Runs `look` in a process in the inner group, with so many workers of a job on this machine. */
static void look_within(int workers, void (*look)(void))
{
    char count[16];
    snprintf(count, sizeof(count), "%d", workers);
    child one = child_fork("in the group");
    if (!one.pid) {
        for (int i = 0; i < (is_second ? 1 : 2); i++)
            MUST(write_file(inner[i], "cgroup.procs", "0"));
        setenv("LOCAL_WORLD_SIZE", count, 1);
        look();
        _exit(0);
    }
    child_must_end_well(&one, 1);
}

static void set_limits(int outer_processors, uint64_t outer_bytes, int inner_processors, uint64_t inner_bytes)
{
    assert_true(limit(inner, 0, 0) && limit(outer, 0, 0)); /* version 1: no part may have more than the whole */
    assert_true(limit(outer, outer_processors, outer_bytes) && limit(inner, inner_processors, inner_bytes));
}

static wfi_cgroup seen(void)
{
    wfi_cgroup group;
    wfi_cgroup_read("", &group);
    return group;
}

/* ---- Shares --------------------------------------------------------------------------------------------------- */

static void see_half(void)
{
    MUST(seen().quota == 1 && seen().memory == 256 * MIB);
    MUST(wfi_quota_cores() == 1 && wfi_quota_memory() == 128 * MIB);
}

static void see_a_quarter(void)
{
    MUST(wfi_quota_cores() == 1 && wfi_quota_memory() == 64 * MIB);
}

static void workers_divide_the_limits(void **state)
{
    set_limits(0, 0, 1, 256 * MIB);
    look_within(2, see_half);
    look_within(4, see_a_quarter);
}

static void the_smaller_limit_around_counts(void **state)
{
    set_limits(1, 256 * MIB, 0, 512 * MIB);
    look_within(2, see_half);
    set_limits(2, 512 * MIB, 1, 256 * MIB);
    look_within(2, see_half);
}

static void see_no_limit(void)
{
    uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    MUST(seen().quota == 0 && seen().memory == 0);
    MUST(wfi_quota_memory() == machine / 2);
}

static void no_limit_leaves_the_machine(void **state)
{
    set_limits(0, 0, 0, 0);
    look_within(2, see_no_limit);
}

/* As in a container: the group is the root of all that the process sees. The mounts from outside are there, too. */
static void see_from_a_namespace(void)
{
    char folder[] = "/tmp/weft-cgroup-XXXXXX", path[64];
    MUST(unshare(CLONE_NEWCGROUP | CLONE_NEWNS) == 0);
    MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0);
    MUST(mkdtemp(folder) && mount("none", folder, "tmpfs", 0, NULL) == 0);
    for (int i = 0; i < (is_second ? 1 : 2); i++) {
        snprintf(path, sizeof(path), "%s/%d", folder, i);
        MUST(mkdir(path, 0755) == 0);
        MUST(mount("none", path, is_second ? "cgroup2" : "cgroup", 0, is_second ? NULL : i ? "memory" : "cpu") == 0);
    }
    see_half();
    for (int i = 0; i < (is_second ? 1 : 2); i++) {
        snprintf(path, sizeof(path), "%s/%d", folder, i);
        MUST(umount(path) == 0);
    }
    MUST(umount(folder) == 0 && rmdir(folder) == 0);
}

static void a_namespace_hides_the_groups_around(void **state)
{
    set_limits(0, 0, 1, 256 * MIB);
    look_within(2, see_from_a_namespace);
}

/* ---- Slabs: mapped, and not touched --------------------------------------------------------------------------- */

static size_t idle_bytes(void)
{
    wfi_slab_stats stats;
    wfi_slab_stats_read(&stats);
    return stats.bytes_idle;
}

/* Takes so many slabs and gives them back. Returns what stays idle. */
static size_t take_and_give(int count, size_t bytes)
{
    wfi_slab *slabs[8];
    for (int i = 0; i < count; i++)
        MUST(wfi_slab_alloc(WFI_MEMORY_HOST, 0, bytes, 0, &slabs[i]) == WEFT_OK);
    for (int i = 0; i < count; i++)
        wfi_slab_free(slabs[i]);
    return idle_bytes();
}

/* The share is 128 MiB. */
static void keep_a_quarter(void)
{
    wfi_slab *large, *small;
    size_t idle = take_and_give(6, 8 * MIB);
    MUST(idle > 16 * MIB && idle <= 32 * MIB);
    MUST(wfi_slab_alloc(WFI_MEMORY_HOST, 0, 112 * MIB, 0, &large) == WEFT_OK);
    MUST(idle_bytes() <= 16 * MIB); /* with what is in use, it is within the share */
    MUST(wfi_slab_alloc(WFI_MEMORY_HOST, 0, 24 * MIB, 0, &small) == WEFT_OK);
    MUST(idle_bytes() == 0);
    wfi_slab_free(small);
    MUST(idle_bytes() == 0);
    wfi_slab_free(large);
    MUST(idle_bytes() <= 32 * MIB);
}

static void keep_all(void)
{
    MUST(take_and_give(6, 8 * MIB) == 48 * MIB);
}

static void idle_slabs_stay_within_the_share(void **state)
{
    set_limits(0, 0, 0, 256 * MIB);
    look_within(2, keep_a_quarter);
    set_limits(0, 256 * MIB, 0, 0);
    look_within(2, keep_a_quarter);
    set_limits(0, 0, 0, 0);
    look_within(1, keep_all);
}

static void keep_what_the_user_says(void)
{
    setenv("WEFT_SLAB_KEEP_MB", "40", 1);
    MUST(take_and_give(6, 8 * MIB) == 40 * MIB);
}

static void a_setting_wins(void **state)
{
    set_limits(0, 0, 0, 256 * MIB);
    look_within(2, keep_what_the_user_says);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(workers_divide_the_limits),        cmocka_unit_test(the_smaller_limit_around_counts),
        cmocka_unit_test(no_limit_leaves_the_machine),      cmocka_unit_test(a_namespace_hides_the_groups_around),
        cmocka_unit_test(idle_slabs_stay_within_the_share), cmocka_unit_test(a_setting_wins),
    };
    if (!find_groups()) {
        printf("skipped: this process cannot make control groups (%s)\n", strerrordesc_np(errno));
        return 77;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    remove_groups();
    return failed;
}
