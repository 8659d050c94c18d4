/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_topo_described.c - machines that are described to hwloc instead of being there. hwloc is asked once in a
 * process, so each fact is checked in a child, whose exit status says how it went.
 */
#include "children.h"
#include "topo/topo.h"
#include "topo_node.h"
#include "unit.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Runs `check` in a child with one variable set, about a machine that is not this one. */
static void in_child(const char *name, const char *value, void (*check)(void))
{
    child one = child_fork(name ? name : "check");
    if (!one.pid) {
        wfi_topo_load_ms = 60000;
        unsetenv("HWLOC_XMLFILE");
        unsetenv("HWLOC_SYNTHETIC");
        setenv("HWLOC_HIDE_ERRORS", "2", 1);
        if (name) {
            setenv(name, value, 1);
            setenv("HWLOC_THISSYSTEM", "0", 1);
        }
        check();
        exit(0);
    }
    child_must_end_well(&one, 1);
}

static void with_file(const char *text, void (*check)(void))
{
    char path[] = "topo_XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    FILE *to = fdopen(file, "w");
    if (text)
        fputs(text, to);
    else
        topo_node_write(to, 2, 4);
    fclose(to);
    in_child("HWLOC_XMLFILE", path, check);
    unlink(path);
}

static void check_node_of(wfi_cores *cores, int node)
{
    CHECK(wfi_cores_count(cores) == 4);
    CHECK(wfi_cores_numa_node(cores) == node);
    CHECK(!wfi_topo_bind_thread(cores, 1)); /* not this machine's */
    wfi_cores_destroy(cores);
}

static void check_gpu_node(void)
{
    check_node_of(wfi_topo_near_interface("mlx5_0"), 0);
    check_node_of(wfi_topo_near_interface("mlx5_1"), 1);
    check_node_of(wfi_topo_near_interface("ib1"), 1);
    check_node_of(wfi_topo_near_rdma(0), 0);
    check_node_of(wfi_topo_near_rdma(1), 1); /* equally near: the ranks share them */
    CHECK(!wfi_topo_near_interface("mlx5_2") && !wfi_topo_near_interface(""));
    CHECK(!wfi_topo_near_interface(NULL) && wfi_topo_near_interface("cuda0") == NULL);
}

static void devices_lead_to_the_cores_beside_them(void **state)
{
    with_file(NULL, check_gpu_node);
}

static void check_two_nodes(void)
{
    wfi_numa_node nodes[3];
    wfi_cores *cores = wfi_cores_parse(wfi_topology_here(), "6-11,99");
    CHECK(wfi_cores_count(cores) == 6 && wfi_cores_numa_node(cores) == 1);
    wfi_cores_destroy(cores);
    CHECK(wfi_topology_nodes(wfi_topology_here(), nodes, 3) == 2);
    CHECK(nodes[1].node == 1 && strcmp(nodes[1].cores, "6-11") == 0);
    CHECK(!wfi_topo_near_interface("eth0") && !wfi_topo_near_rdma(0));
}

static void a_synthetic_machine_has_its_nodes(void **state)
{
    in_child("HWLOC_SYNTHETIC", "package:2 [numa] core:3 pu:2", check_two_nodes);
}

static void check_one_node(void)
{
    CHECK(wfi_cores_numa_node(NULL) == -1 && wfi_cores_count(NULL) == 0);
    wfi_cores_destroy(NULL);
}

static void one_node_is_no_place(void **state)
{
    in_child("HWLOC_SYNTHETIC", "numa:1 core:4 pu:1", check_one_node);
}

/* hwloc refuses the file, or falls back to what it finds: either way there is an answer. */
static void check_survives(void)
{
    CHECK(wfi_topo_near_interface("mlx5_0") == NULL);
    wfi_cores *cores = wfi_cores_allowed(wfi_topology_here());
    (void)wfi_topo_bind_thread(cores, 1);
    wfi_cores_destroy(cores);
}

static void malformed_descriptions_do_no_harm(void **state)
{
    with_file("", check_survives);
    with_file("no xml at all\n", check_survives);
    with_file("<?xml version=\"1.0\"?><topology version=\"2.0\"><object type=\"Machine\"", check_survives);
    with_file("<?xml version=\"1.0\"?><topology version=\"3.0\"></topology>", check_survives);
    in_child("HWLOC_XMLFILE", "no/such/file.xml", check_survives);
    in_child("HWLOC_SYNTHETIC", "core:x pu:-1", check_survives);
}

/* On this machine, whatever it is. */
static void check_binding(void)
{
    cpu_set_t before, after;
    CHECK(sched_getaffinity(0, sizeof(before), &before) == 0);
    CHECK(!wfi_topo_bind_thread(NULL, 1));
    CHECK(sched_getaffinity(0, sizeof(after), &after) == 0 && CPU_EQUAL(&before, &after));
}

static void without_cores_nothing_is_bound(void **state)
{
    in_child(NULL, NULL, check_binding);
}

/* The description is taken for this machine: then its nodes can be bound to as far as it has such cores. */
static void check_bind_rules(void)
{
    cpu_set_t set;
    wfi_cores *cores = wfi_cores_parse(wfi_topology_here(), "0");
    CHECK(wfi_cores_count(cores) == 1);
    CHECK(!wfi_topo_bind_thread(cores, 2)); /* two busy threads on one core */
    if (getenv("WEFT_NO_BINDING") != NULL) {
        CHECK(!wfi_topo_bind_thread(cores, 1));
    } else {
        CHECK(wfi_topo_bind_thread(cores, 1));
        CHECK(sched_getaffinity(0, sizeof(set), &set) == 0 && CPU_COUNT(&set) == 1 && CPU_ISSET(0, &set));
    }
    wfi_cores_destroy(cores);
}

static void check_bind_as_this_system(void)
{
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof(set), &set) == 0);
    if (!CPU_ISSET(0, &set))
        exit(0); /* core 0 is not ours: nothing can be said here */
    setenv("HWLOC_THISSYSTEM", "1", 1);
    check_bind_rules();
}

static void a_thread_is_bound_if_there_is_a_core_for_it(void **state)
{
    in_child("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", check_bind_as_this_system);
}

static void binding_can_be_switched_off(void **state)
{
    setenv("WEFT_NO_BINDING", "1", 1);
    in_child("HWLOC_SYNTHETIC", "numa:2 core:1 pu:1", check_bind_as_this_system);
    unsetenv("WEFT_NO_BINDING");
}

UNIT_MAIN(devices_lead_to_the_cores_beside_them, a_synthetic_machine_has_its_nodes, one_node_is_no_place,
          malformed_descriptions_do_no_harm, without_cores_nothing_is_bound,
          a_thread_is_bound_if_there_is_a_core_for_it, binding_can_be_switched_off)
