/* SPDX-License-Identifier: Apache-2.0 */
/* verbs_devices_test.c - why verbs does not open: which of device, node, address and setting is missing. */
#include "verbs/devices.h"

#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* A tree of files like that below "/". */
typedef struct machine {
    char root[64];
    char said[512];
} machine;

static void machine_open(machine *m)
{
    snprintf(m->root, sizeof(m->root), "%s/verbs.XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    assert_non_null(mkdtemp(m->root));
}

static void machine_close(machine *m)
{
    char command[96];
    snprintf(command, sizeof(command), "rm -r '%s'", m->root);
    assert_int_equal(system(command), 0);
}

static void add(const machine *m, const char *kind, const char *path)
{
    char command[512];
    snprintf(command, sizeof(command), "mkdir -p \"$(dirname '%s%s')\" && %s '%s%s'", m->root, path, kind, m->root,
             path);
    assert_int_equal(system(command), 0);
}

static void says(machine *m, const wfofi_sockaddr *local, const char *expected)
{
    wfi_verbs_explain_below(m->root, local, m->said, sizeof(m->said));
    if (!strstr(m->said, expected))
        fail_msg("expected \"%s\" in: %s", expected, m->said);
}

static void the_first_thing_that_is_missing_is_named(void **state)
{
    machine m;
    wfofi_sockaddr local = {0};
    unsetenv("FI_PROVIDER");
    machine_open(&m);
    says(&m, NULL, "no RDMA device");
    says(&m, NULL, "WEFT_FABRIC=host,tcp"); /* not tcp alone: that would turn shared memory off */
    add(&m, "mkdir", "/sys/class/infiniband/mlx5_0");
    says(&m, NULL, "/dev/infiniband/rdma_cm of device mlx5_0 (No such file or directory)");
    add(&m, "touch", "/dev/infiniband/rdma_cm");
    add(&m, "mkdir", "/sys/class/infiniband_verbs/uverbs0");
    says(&m, NULL, "/dev/infiniband/uverbs0 of device mlx5_0");
    add(&m, "touch", "/dev/infiniband/uverbs0");
    says(&m, NULL, "device mlx5_0 has no IP address");
    says(&m, &local, "WEFT_IFACE");
    setenv("FI_PROVIDER", "tcp,shm", 1);
    says(&m, NULL, "FI_PROVIDER is \"tcp,shm\"");
    setenv("FI_PROVIDER", "verbs", 1);
    says(&m, NULL, "no IP address");
    unsetenv("FI_PROVIDER");
    machine_close(&m);
}

static void many_devices_are_listed_as_far_as_there_is_room(void **state)
{
    machine m;
    machine_open(&m);
    add(&m, "touch", "/dev/infiniband/rdma_cm");
    for (int i = 0; i < 40; i++) {
        char path[64];
        snprintf(path, sizeof(path), "/sys/class/infiniband/device_%d", i);
        add(&m, "mkdir", path);
    }
    says(&m, NULL, "device_");
    assert_true(strlen(m.said) < sizeof(m.said) - 1);
    machine_close(&m);
}

UNIT_MAIN(the_first_thing_that_is_missing_is_named, many_devices_are_listed_as_far_as_there_is_room)
