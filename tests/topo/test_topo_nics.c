/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_topo_nics.c - the order of network devices on the machines of tests/topo/machines (make.py writes them), whose
 * folder the first argument names; and the cores near a device.
 */
#include "topo/nics.h"
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *folder;

static wfi_topology *machine(const char *name)
{
    char path[1024];
    wfi_topology *topology = NULL;
    snprintf(path, sizeof(path), "%s/%s.xml", folder, name);
    assert_int_equal(wfi_topology_open_file(path, &topology, NULL), WEFT_OK);
    return topology;
}

/* "mlx5_0:1": the device of verbs, or the interface, and the number of its reach, for each device. */
static void check_list(const char *name, const char *cores, const char *gpu, int rank, const char *expected)
{
    char text[512] = "";
    wfi_nic *nics;
    wfi_topology *topology = machine(name);
    wfi_cores *own = cores ? wfi_cores_parse(topology, cores) : NULL;
    assert_true(!cores == !own);
    size_t count = wfi_nics_list(topology, &(wfi_place){.cores = own, .gpu = gpu, .rank = rank}, &nics);
    for (size_t i = 0; i < count; i++) {
        const char *shown = nics[i].verbs[0] ? nics[i].verbs : nics[i].iface;
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s:%d", i ? " " : "", shown, (int)nics[i].reach);
    }
    assert_string_equal(text, expected);
    free(nics);
    wfi_cores_destroy(own);
    wfi_topology_close(topology);
}

static void devices_of_the_own_node_come_first(void **state)
{
    check_list("dgx", "4-5", NULL, 0, "mlx5_4:1 mlx5_5:1 mlx5_6:2 mlx5_7:2 mlx5_0:3 mlx5_1:3 mlx5_2:3 mlx5_3:3 eth0:3");
    check_list("dgx", "2", NULL, 0, "mlx5_2:1 mlx5_3:1 mlx5_0:2 mlx5_1:2 eth0:2 mlx5_4:3 mlx5_5:3 mlx5_6:3 mlx5_7:3");
}

static void ranks_begin_with_different_devices_of_a_model(void **state)
{
    check_list("dgx", "4-5", NULL, 1, "mlx5_5:1 mlx5_4:1 mlx5_7:2 mlx5_6:2 mlx5_1:3 mlx5_2:3 mlx5_3:3 mlx5_0:3 eth0:3");
    check_list("dgx", NULL, NULL, 11, "mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_0:1 mlx5_1:1 mlx5_2:1 eth0:1");
}

static void the_switch_of_the_gpu_comes_before_the_node(void **state)
{
    wfi_gpu *gpus;
    wfi_topology *topology = machine("dgx");
    assert_int_equal(wfi_gpus_list(topology, &gpus), 9); /* with the display */
    assert_string_equal(gpus[4].model, "10de:20b0");
    assert_int_equal(gpus[8].node, 3);
    check_list("dgx", "0-1", gpus[8].pci, 1,
               "mlx5_7:0 mlx5_6:0 mlx5_1:1 mlx5_0:1 eth0:1 mlx5_3:2 mlx5_2:2 mlx5_5:3 mlx5_4:3");
    free(gpus);
    wfi_topology_close(topology);
    check_list("nested", NULL, "0000:02:00.0", 0, "mlx5_1:0 mlx5_0:0"); /* the nearer switch first */
    check_list("no_nic", NULL, "0000:99:00.0", 0, "");
    check_list("vm", NULL, "no address", 0, "eth0:1 mlx5_0:1 mlx5_1:1");
}

/* The GPUs of "dgx" that the driver shows, in the driver's order; `expected`: those of ranks 0, 1, 2, ... */
static void check_nearest(const wfi_topology *topology, const char *cores, const char *const *gpus, size_t count,
                          const char *expected)
{
    char text[32] = "";
    wfi_cores *own = cores ? wfi_cores_parse(topology, cores) : NULL;
    for (int rank = 0; rank < (int)strlen(expected); rank++)
        snprintf(text + rank, sizeof(text) - (size_t)rank, "%zu", wfi_gpus_nearest(topology, own, gpus, count, rank));
    assert_string_equal(text, expected);
    wfi_cores_destroy(own);
}

static void ranks_take_turns_among_the_nearest_gpus(void **state)
{
    wfi_gpu *gpus;
    const char *all[8], *turned[8], *unknown[] = {"0000:77:00.0", "", "nonsense"};
    wfi_topology *topology = machine("dgx");
    assert_int_equal(wfi_gpus_list(topology, &gpus), 9); /* the first is the display */
    for (int i = 0; i < 8; i++) {
        all[i] = gpus[i + 1].pci;
        turned[7 - i] = gpus[i + 1].pci;
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(gpus[i + 1].node, i / 2);
    check_nearest(topology, "4-5", all, 8, "45454");
    check_nearest(topology, "0", all, 8, "010");
    check_nearest(topology, "0", turned, 8, "676"); /* the numbers are the driver's */
    check_nearest(topology, "0-7", all, 8, "0123456701");
    check_nearest(topology, NULL, all, 8, "0123456701");
    check_nearest(topology, "2", all, 2, "010"); /* GPUs 0 and 1 are on the other node of the package */
    check_nearest(topology, "6", (const char *[]){all[0], all[4], all[1]}, 3, "111");  /* one is on the own package */
    check_nearest(topology, "6", (const char *[]){all[0], all[2], all[1]}, 3, "0120"); /* all are far */
    check_nearest(topology, "0", unknown, 3, "0120");
    check_nearest(topology, "0", (const char *[]){unknown[0], all[7]}, 2, "11"); /* one that is known comes first */
    check_nearest(NULL, NULL, all, 8, "0123456701");
    free(gpus);
    wfi_topology_close(topology);
}

static void a_container_sees_what_it_shares(void **state)
{
    check_list("container", NULL, NULL, 0,
               "mlx5_2:1 mlx5_3:1 mlx5_0:2 mlx5_1:2 eth0:2 mlx5_4:3 mlx5_5:3 mlx5_6:3 mlx5_7:3");
}

static void flat_machines_keep_the_order_of_pci(void **state)
{
    check_list("vm", NULL, NULL, 0, "eth0:1 mlx5_0:1 mlx5_1:1");
    check_list("vm", NULL, NULL, 3, "eth0:1 mlx5_1:1 mlx5_0:1");
    check_list("vm", NULL, "0000:02:00.0", 0, "eth0:1 mlx5_0:1 mlx5_1:1"); /* a host bridge is no switch */
    check_list("laptop", NULL, NULL, 1, "wlan0:1 enx0:5");                 /* on USB */
    check_list("no_nic", NULL, NULL, 0, "");
}

static void without_locality_no_rank_turns(void **state)
{
    check_list("unplaced", "0-1", NULL, 1, "eth0:4 mlx5_0:4 mlx5_1:4 :7");
}

static void check_order(const wfi_topology *topology, int rank, const char *const *names, size_t count,
                        const char *expected)
{
    char text[512] = "";
    wfi_nic_choice choices[8];
    wfi_cores *cores = wfi_cores_parse(topology, "4-5");
    wfi_nics_order(topology, &(wfi_place){.cores = cores, .rank = rank}, names, count, choices);
    for (size_t i = 0; i < count; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%s", i ? " " : "", names[choices[i].index]);
    assert_string_equal(text, expected);
    wfi_cores_destroy(cores);
}

static void candidates_are_ordered_by_any_of_their_names(void **state)
{
    wfi_topology *topology = machine("dgx");
    const char *mixed[] = {"lo", "docker0", "ib0", "mlx5_5", "mlx5_4-xrc", "mlx5_4", "0000:02:00.0"};
    check_order(topology, 0, mixed, 7, "mlx5_5 mlx5_4-xrc mlx5_4 ib0 0000:02:00.0 docker0 lo");
    check_order(topology, 1, mixed, 7, "mlx5_4-xrc mlx5_4 mlx5_5 ib0 0000:02:00.0 docker0 lo");
    check_order(NULL, 1, mixed, 7, "lo docker0 ib0 mlx5_5 mlx5_4-xrc mlx5_4 0000:02:00.0");
    check_order(topology, 0, mixed, 0, "");
    wfi_topology_close(topology);
}

static void check_near(const wfi_topology *topology, const char *own, const char *name, const char *expected)
{
    char text[64];
    wfi_cores *cores = wfi_cores_parse(topology, own), *near = wfi_nic_cores(topology, cores, name);
    wfi_cores_text(near, text, sizeof(text));
    assert_string_equal(text, expected);
    wfi_cores_destroy(cores);
    wfi_cores_destroy(near);
}

static void threads_stay_within_the_cores_of_the_process(void **state)
{
    wfi_topology *topology = machine("dgx");
    check_near(topology, "0-7", "ib6", "6-7");
    check_near(topology, "1,3,5,7", "mlx5_6", "7");
    check_near(topology, "6-7", "mlx5_6", ""); /* of one node: untouched */
    check_near(topology, "0-3", "mlx5_6", ""); /* far from all */
    check_near(topology, "0-7", "docker0", "");
    assert_null(wfi_nic_cores(topology, NULL, "ib6"));
    assert_null(wfi_nic_cores(NULL, NULL, NULL));
    wfi_topology_close(topology);
    topology = machine("unplaced");
    check_near(topology, "0-3", "mlx5_0", "");
    wfi_topology_close(topology);
}

static void bad_files_and_lists_are_refused(void **state)
{
    char path[1024];
    wfi_topology *topology = NULL;
    weft_error *error = NULL;
    assert_int_equal(wfi_topology_open_file("no/such/file.xml", &topology, &error), WEFT_ERR_NOT_FOUND);
    assert_non_null(strstr(weft_error_message(error), "no/such/file.xml"));
    weft_error_unref(error);
    error = NULL;
    setenv("HWLOC_HIDE_ERRORS", "2", 1);
    snprintf(path, sizeof(path), "%s/make.py", folder);
    assert_int_equal(wfi_topology_open_file(path, &topology, &error), WEFT_ERR_FORMAT);
    assert_non_null(strstr(weft_error_message(error), "make.py"));
    weft_error_unref(error);
    assert_null(topology);
    topology = machine("vm");
    assert_null(wfi_cores_parse(topology, ""));
    assert_null(wfi_cores_parse(topology, "x"));
    assert_null(wfi_cores_parse(topology, "64-65"));
    wfi_topology_close(topology);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_of_the_own_node_come_first),
        cmocka_unit_test(ranks_begin_with_different_devices_of_a_model),
        cmocka_unit_test(the_switch_of_the_gpu_comes_before_the_node),
        cmocka_unit_test(ranks_take_turns_among_the_nearest_gpus),
        cmocka_unit_test(a_container_sees_what_it_shares),
        cmocka_unit_test(flat_machines_keep_the_order_of_pci),
        cmocka_unit_test(without_locality_no_rank_turns),
        cmocka_unit_test(candidates_are_ordered_by_any_of_their_names),
        cmocka_unit_test(threads_stay_within_the_cores_of_the_process),
        cmocka_unit_test(bad_files_and_lists_are_refused),
    };
    folder = argc > 1 ? argv[1] : ".";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
