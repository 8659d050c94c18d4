/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_topo_plugins.c - hwloc's plugins do nothing that weft does not need, and loading hwloc is bounded. The
 * plugins are made by fake_plugin.c, in the folder that the first argument names. hwloc is asked once in a process:
 * each fact has a child of its own.
 */
#include "children.h"
#include "topo/topo.h"
#include "topo_node.h"
#include "unit.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define SKIPPED 77

static const char *plugins;
static char folder[] = "topo_plugins_XXXXXX", path[64];

static int exit_code_of_child(void (*run)(void))
{
    child one = child_fork("plugins");
    if (!one.pid) {
        run();
        _exit(0);
    }
    int status = child_end(&one);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static bool log_has(const char *line)
{
    char text[1024] = "";
    FILE *from = fopen(path, "r");
    if (!from)
        return false;
    text[fread(text, 1, sizeof(text) - 1, from)] = 0;
    fclose(from);
    return strstr(text, line) != NULL;
}

static void load_with_plugins(void)
{
    setenv("HWLOC_PLUGINS_PATH", plugins, 1);
    setenv("HWLOC_HIDE_ERRORS", "2", 1);
    setenv("FAKE_PLUGIN_LOG", path, 1);
    wfi_topo_load_ms = 60000;
    (void)wfi_topology_here();
    if (!log_has("loaded other\n"))
        _exit(SKIPPED); /* this hwloc was built without plugins */
}

static void load_with_plugins_asked_for(void)
{
    setenv("HWLOC_COMPONENTS", "gl,opencl", 1);
    load_with_plugins();
}

static void only_plugins_that_are_not_known_look_for_devices(void **state)
{
    static const char *const names[] = {"gl", "opencl", "cuda", "nvml", "rsmi", "levelzero"};
    void (*const ways[])(void) = {load_with_plugins, load_with_plugins_asked_for};
    for (size_t way = 0; way < 2; way++) {
        snprintf(path, sizeof(path), "%s/log", folder);
        int code = exit_code_of_child(ways[way]);
        if (code == SKIPPED)
            skip();
        assert_int_equal(code, 0);
        assert_true(log_has("asked other\n")); /* so what the others did not say they were not asked */
        for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
            char line[32];
            snprintf(line, sizeof(line), "loaded %s\n", names[i]);
            assert_true(log_has(line));
            snprintf(line, sizeof(line), "asked %s\n", names[i]);
            assert_false(log_has(line));
        }
        unlink(path);
    }
}

/* hwloc opens the description and waits for whoever writes it. */
static void load_what_hangs(void)
{
    setenv("HWLOC_XMLFILE", path, 1);
    setenv("HWLOC_THISSYSTEM", "0", 1);
    wfi_topo_load_ms = 100;
    if (wfi_topology_here() || wfi_topo_near_interface("mlx5_0"))
        _exit(1);
    if (wfi_topo_bind_thread(NULL, 1))
        _exit(2);
    FILE *to = fopen(path, "w"); /* now it comes */
    topo_node_write(to, 2, 4);
    fclose(to);
    wfi_cores *cores;
    while (!(cores = wfi_topo_near_interface("mlx5_1")))
        usleep(1000);
    if (wfi_cores_count(cores) != 4)
        _exit(3);
    wfi_cores_destroy(cores);
}

static void what_hangs_in_hwloc_hangs_nobody(void **state)
{
    snprintf(path, sizeof(path), "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(exit_code_of_child(load_what_hangs), 0);
    unlink(path);
}

static int remove_folder(void **state)
{
    return rmdir(folder);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_plugins_that_are_not_known_look_for_devices),
        cmocka_unit_test(what_hangs_in_hwloc_hangs_nobody),
    };
    plugins = argc > 1 ? realpath(argv[1], NULL) : NULL;
    if (!plugins || !mkdtemp(folder)) {
        fprintf(stderr, "usage: test_topo_plugins FOLDER\n");
        return 2;
    }
    return cmocka_run_group_tests(tests, NULL, remove_folder);
}
