/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_topo_share.c - the part of a machine that a process takes for its own: control groups of both versions,
 * written into a folder that stands for the machine, masks, and what launchers say.
 */
#include "topo/cgroup.h"
#include "topo/quota.h"
#include "unit.h"

#include <weft/log.h>

#include <errno.h>
#include <ftw.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MB (UINT64_C(1) << 20)

static char root[] = "topo_share_XXXXXX";

static int remove_one(const char *path, const struct stat *what, int kind, struct FTW *where)
{
    (void)what, (void)kind;
    return where->level > 0 ? remove(path) : 0;
}

static int empty_root(void **state)
{
    return nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Writes root/path, with the folders that it lies in. */
static void put(const char *path, const char *text)
{
    char name[512];
    snprintf(name, sizeof(name), "%s%s", root, path);
    for (char *at = strchr(name, '/'); at; at = strchr(at + 1, '/')) {
        *at = '\0';
        assert_true(mkdir(name, 0700) == 0 || errno == EEXIST);
        *at = '/';
    }
    FILE *to = fopen(name, "w");
    assert_non_null(to);
    fputs(text, to);
    assert_int_equal(fclose(to), 0);
}

static wfi_cgroup seen(void)
{
    wfi_cgroup group;
    wfi_cgroup_read(root, &group);
    return group;
}

#define V2_MOUNT "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"

static void version_2_counts_every_group_around(void **state)
{
    put("/proc/self/cgroup", "0::/job.slice/step/task\n");
    put("/proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/root rw\n" V2_MOUNT);
    put("/sys/fs/cgroup/cpuset.cpus.effective", "0-63\n");
    put("/sys/fs/cgroup/job.slice/cpu.max", "250000 100000\n");
    put("/sys/fs/cgroup/job.slice/memory.max", "419430400\n");
    put("/sys/fs/cgroup/job.slice/cpuset.cpus.effective", "0-3,8,10-11\n");
    put("/sys/fs/cgroup/job.slice/step/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/job.slice/step/memory.max", "max\n");
    put("/sys/fs/cgroup/job.slice/step/task/cpu.max", "800000 100000\n");
    put("/sys/fs/cgroup/job.slice/step/task/memory.max", "8589934592\n");
    wfi_cgroup group = seen();
    assert_int_equal(group.quota, 3);
    assert_int_equal(group.cores, 7);
    assert_int_equal(group.memory, 400 * MB);
    put("/sys/fs/cgroup/job.slice/step/memory.high", "104857600\n");
    put("/sys/fs/cgroup/job.slice/step/task/cpu.max", "50000 100000\n");
    group = seen();
    assert_int_equal(group.quota, 1);
    assert_int_equal(group.memory, 100 * MB);
}

static void version_1_has_a_tree_for_each_controller(void **state)
{
    put("/proc/self/cgroup", "12:cpuset:/a\n9:memory:/a/b\n4:cpu,cpuacct:/c/d\n1:name=systemd:/e\n0::/e\n");
    put("/proc/self/mountinfo", "40 31 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
                                "32 31 0:32 / /sys/fs/cgroup/memory rw shared:9 master:1 - cgroup cgroup rw,memory\n"
                                "33 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
                                "34 31 0:34 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "419430400\n");
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_quota_us", "400000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/c/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/c/d/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpuset/cpuset.cpus", "0-15\n");
    put("/sys/fs/cgroup/cpuset/a/cpuset.cpus", "4-5\n");
    wfi_cgroup group = seen();
    assert_int_equal(group.quota, 4);
    assert_int_equal(group.cores, 2);
    assert_int_equal(group.memory, 400 * MB);
}

/* Docker without namespaces of groups: the path is the host's, what is mounted is the container's own group. */
static void a_container_sees_its_own_group(void **state)
{
    put("/proc/self/cgroup", "5:memory:/docker/f00/inner\n");
    put("/proc/self/mountinfo", "32 31 0:32 /docker/f00 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "209715200\n");
    put("/sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "104857600\n");
    assert_int_equal(seen().memory, 100 * MB);
    put("/proc/self/cgroup", "5:memory:/docker/f00d\n"); /* another's */
    assert_int_equal(seen().memory, 200 * MB);
    put("/proc/self/cgroup", "5:memory:/../elsewhere\n"); /* outside of the namespace of groups */
    assert_int_equal(seen().memory, 200 * MB);
}

/* A namespace of groups: the mounts from outside begin at groups without a name; the one from within is the group. */
static void a_mount_that_holds_the_group_is_preferred(void **state)
{
    put("/proc/self/cgroup", "5:memory:/\n");
    put("/proc/self/mountinfo", "32 31 0:32 /../.. /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
                                "33 31 0:32 /elsewhere /mnt rw - cgroup cgroup rw,memory\n"
                                "34 31 0:32 / /inside rw - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "419430400\n");
    put("/mnt/memory.limit_in_bytes", "314572800\n");
    put("/inside/memory.limit_in_bytes", "209715200\n");
    assert_int_equal(seen().memory, 200 * MB);
    put("/proc/self/mountinfo", "32 31 0:32 /../.. /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n");
    assert_int_equal(seen().memory, 400 * MB); /* better than nothing */
}

static void what_cannot_be_read_limits_nothing(void **state)
{
    static const char *const groups[] = {"", "nonsense\n", "0::\n", "0::/a", "5:memory:/x\n0:/y\n::\n"};
    static const char *const mounts[] = {"", "x\n", "1 2 3 - cgroup2\n", V2_MOUNT, "1 2 0:3 / /c rw -\n"};
    static const char *const values[] = {"", "max", "-1 100000\n", "x y\n", "100000 0\n", "99999999999999999 1\n"};
    for (size_t i = 0; i < sizeof(groups) / sizeof(*groups); i++) {
        for (size_t k = 0; k < sizeof(mounts) / sizeof(*mounts); k++) {
            assert_int_equal(empty_root(NULL), 0);
            put("/proc/self/cgroup", groups[i]);
            put("/proc/self/mountinfo", mounts[k]);
            wfi_cgroup group = seen();
            assert_true(group.quota == 0 && group.cores == 0 && group.memory == 0);
        }
    }
    put("/proc/self/cgroup", "0::/a\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    for (size_t i = 0; i < sizeof(values) / sizeof(*values); i++) {
        put("/sys/fs/cgroup/a/cpu.max", values[i]);
        put("/sys/fs/cgroup/a/cpuset.cpus.effective", i % 2 ? "3-1\n" : "1,,2\n");
        wfi_cgroup group = seen();
        assert_true(group.quota == 0 && group.cores == 0);
    }
    assert_int_equal(empty_root(NULL), 0);
    wfi_cgroup none = seen();
    assert_true(none.quota == 0 && none.cores == 0 && none.memory == 0);
}

static int cores(int bound, int online, int processes, bool is_unbound)
{
    wfi_quota_facts facts = {.bound = bound, .online = online, .processes = processes, .is_unbound = is_unbound};
    return wfi_quota_cores_of(&facts, root);
}

static void cores_are_divided_once(void **state)
{
    assert_int_equal(cores(8, 8, 1, false), 8);
    assert_int_equal(cores(2, 2, 3, false), 1);
    assert_int_equal(cores(16, 16, 3, false), 5);
    assert_int_equal(cores(4, 16, 4, false), 4); /* the launcher has bound each to four */
    assert_int_equal(cores(4, 16, 4, true), 1);  /* taskset, and nobody binds */
    assert_int_equal(cores(1, 16, 16, false), 1);
    assert_int_equal(cores(8, 16, 8, false), 2); /* bound to a package */
    assert_int_equal(cores(3, 16, 1, false), 3);
    put("/proc/self/cgroup", "0::/a\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/a/cpuset.cpus.effective", "0-7\n");
    assert_int_equal(cores(8, 64, 4, false), 2); /* the container's eight */
    assert_int_equal(cores(2, 64, 4, false), 2); /* of which two are ours */
    put("/sys/fs/cgroup/a/cpu.max", "300000 100000\n");
    assert_int_equal(cores(8, 64, 1, false), 3);
    assert_int_equal(cores(8, 64, 2, false), 1);
    assert_int_equal(cores(8, 64, 9, false), 1);
}

static void memory_is_divided(void **state)
{
    wfi_quota_facts facts = {.bound = 1, .online = 1, .processes = 2, .memory = 1024 * MB};
    assert_int_equal(wfi_quota_memory_of(&facts, root), 512 * MB);
    put("/proc/self/cgroup", "0::/a\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/a/memory.max", "419430400\n");
    assert_int_equal(wfi_quota_memory_of(&facts, root), 200 * MB);
    facts.memory = 0;
    assert_int_equal(wfi_quota_memory_of(&facts, root), 200 * MB);
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    assert_int_equal(wfi_quota_memory_of(&facts, root), 0);
}

static void launchers_say_how_many_are_here(void **state)
{
    static const struct {
        const char *name, *value, *node;
        int count;
        bool is_unbound;
    } cases[] = {{"LOCAL_WORLD_SIZE", "6", NULL, 6, true},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "3", NULL, 3, false},
                 {"MPI_LOCALNRANKS", "4", NULL, 4, false},
                 {"PMI_LOCAL_SIZE", "5", NULL, 5, false},
                 {"MV2_COMM_WORLD_LOCAL_SIZE", "7", NULL, 7, false},
                 {"SLURM_NTASKS_PER_NODE", "8", NULL, 8, false},
                 {"SLURM_NTASKS_PER_NODE", "8", "1", 8, false},
                 {"SLURM_TASKS_PER_NODE", "2(x3),1", "0", 2, false},
                 {"SLURM_TASKS_PER_NODE", "2(x3),1", "2", 2, false},
                 {"SLURM_TASKS_PER_NODE", "2(x3),1", "3", 1, false},
                 {"SLURM_STEP_TASKS_PER_NODE", "4,16(x2)", "1", 16, false},
                 {"SLURM_TASKS_PER_NODE", "2(x3),1", "4", 0, false},
                 {"SLURM_TASKS_PER_NODE", "2(y", "0", 0, false},
                 {"SLURM_TASKS_PER_NODE", ",", "0", 0, false},
                 {"LOCAL_WORLD_SIZE", "6x", NULL, 0, false},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "-3", NULL, 0, false},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "99999999999", NULL, 0, false},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "", NULL, 0, false}};
    bool is_unbound;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        setenv(cases[i].name, cases[i].value, 1);
        if (cases[i].node)
            setenv("SLURM_NODEID", cases[i].node, 1);
        assert_int_equal(wfi_quota_launched(&is_unbound), cases[i].count);
        assert_int_equal(is_unbound, cases[i].is_unbound);
        unsetenv(cases[i].name);
        unsetenv("SLURM_NODEID");
    }
    assert_int_equal(wfi_quota_launched(&is_unbound), 0);
    setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "3", 1);
    setenv("LOCAL_WORLD_SIZE", "2", 1); /* weft_job_open, within a rank of mpirun's */
    assert_int_equal(wfi_quota_launched(&is_unbound), 2);
    unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    unsetenv("LOCAL_WORLD_SIZE");
}

/* Of this machine, whatever it is. */
static void the_table_counts_where_no_launcher_speaks(void **state)
{
    int all = wfi_quota_cores();
    uint64_t memory = wfi_quota_memory();
    assert_true(all >= 1 && memory > 0);
    wfi_quota_set_processes(1 << 15);
    assert_int_equal(wfi_quota_cores(), 1);
    assert_true(wfi_quota_memory() <= memory >> 15);
    setenv("LOCAL_WORLD_SIZE", "1", 1);
    wfi_quota_set_processes(1 << 15);
    assert_int_equal(wfi_quota_cores(), all);
    unsetenv("LOCAL_WORLD_SIZE");
}

static void launchers_say_which_one_this_is(void **state)
{
    static const char *const names[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
                                        "MV2_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID"};
    assert_int_equal(wfi_quota_local_rank(), 0);
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        setenv(names[i], "3", 1);
        assert_int_equal(wfi_quota_local_rank(), 3);
        setenv(names[i], "3x", 1);
        assert_int_equal(wfi_quota_local_rank(), 0);
        unsetenv(names[i]);
    }
    setenv("RANK", "5", 1);
    setenv("LOCAL_WORLD_SIZE", "8", 1);
    setenv("WORLD_SIZE", "16", 1);
    assert_int_equal(wfi_quota_local_rank(), 0); /* on one of several machines */
    setenv("WORLD_SIZE", "8", 1);
    assert_int_equal(wfi_quota_local_rank(), 5);
    unsetenv("RANK");
    unsetenv("WORLD_SIZE");
    unsetenv("LOCAL_WORLD_SIZE");
}

static int lines; /* that say a bad LOCAL_WORLD_SIZE */

static void count_lines(weft_log_level level, const char *line, void *arg)
{
    lines += level == WEFT_LOG_ERROR && strstr(line, "LOCAL_WORLD_SIZE=\"many\"") != NULL;
}

/* Before any other: it is said once, where the share is first needed. */
static void a_bad_number_is_said_once(void **state)
{
    setenv("LOCAL_WORLD_SIZE", "many", 1);
    weft_logging_set_sink(count_lines, NULL);
    int cores = wfi_quota_cores();
    wfi_quota_set_processes(1);
    assert_int_equal(wfi_quota_cores(), cores); /* as if nothing was said */
    weft_logging_set_sink(NULL, NULL);
    assert_int_equal(lines, 1);
    unsetenv("LOCAL_WORLD_SIZE");
}

int main(void)
{
    static const char *const launchers[] = {"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
                                            "PMI_LOCAL_SIZE",   "SLURM_NTASKS_PER_NODE",      "SLURM_TASKS_PER_NODE",
                                            "SLURM_NODEID",     "SLURM_STEP_TASKS_PER_NODE"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launchers_say_which_one_this_is),
        cmocka_unit_test(a_bad_number_is_said_once),
        cmocka_unit_test_teardown(version_2_counts_every_group_around, empty_root),
        cmocka_unit_test_teardown(version_1_has_a_tree_for_each_controller, empty_root),
        cmocka_unit_test_teardown(a_container_sees_its_own_group, empty_root),
        cmocka_unit_test_teardown(a_mount_that_holds_the_group_is_preferred, empty_root),
        cmocka_unit_test_teardown(what_cannot_be_read_limits_nothing, empty_root),
        cmocka_unit_test_teardown(cores_are_divided_once, empty_root),
        cmocka_unit_test_teardown(memory_is_divided, empty_root),
        cmocka_unit_test(launchers_say_how_many_are_here),
        cmocka_unit_test(the_table_counts_where_no_launcher_speaks),
    };
    for (size_t i = 0; i < sizeof(launchers) / sizeof(*launchers); i++)
        unsetenv(launchers[i]);
    if (!mkdtemp(root))
        return 2;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(root);
    return failed;
}
