/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fake_plugin.c - a plugin for hwloc that bears the name of a real one (COMPONENT, by the build) and says in the
 * file named by FAKE_PLUGIN_LOG what hwloc does with it: "loaded" when it is registered, "asked" when it is told to
 * look for devices, which is where the real ones open connections and start drivers.
 */
#include <hwloc.h>
#include <hwloc/plugins.h>

#include <stdio.h>
#include <stdlib.h>

#define NAME2(prefix, name, suffix) prefix##name##suffix
#define NAME1(prefix, name, suffix) NAME2(prefix, name, suffix)
#define TEXT2(name) #name
#define TEXT1(name) TEXT2(name)

static void say(const char *what)
{
    const char *path = getenv("FAKE_PLUGIN_LOG");
    FILE *to = path ? fopen(path, "a") : NULL;
    if (!to)
        return;
    fprintf(to, "%s %s\n", what, TEXT1(COMPONENT));
    fclose(to);
}

static int discover(struct hwloc_backend *backend, struct hwloc_disc_status *status)
{
    (void)backend;
    (void)status;
    say("asked");
    return 0;
}

static struct hwloc_backend *instantiate(struct hwloc_topology *topology, struct hwloc_disc_component *component,
                                         unsigned excluded_phases, const void *a, const void *b, const void *c)
{
    (void)excluded_phases, (void)a, (void)b, (void)c;
    struct hwloc_backend *backend = hwloc_backend_alloc(topology, component);
    if (backend)
        backend->discover = discover;
    return backend;
}

static int init(unsigned long flags)
{
    (void)flags;
    say("loaded");
    return 0;
}

static struct hwloc_disc_component fake = {.name = TEXT1(COMPONENT),
                                           .phases = HWLOC_DISC_PHASE_IO,
                                           .excluded_phases = HWLOC_DISC_PHASE_GLOBAL,
                                           .instantiate = instantiate,
                                           .priority = 10,
                                           .enabled_by_default = 1};

/* hwloc looks for the file's name and "_component". */
extern const struct hwloc_component NAME1(hwloc_, COMPONENT, _component);
const struct hwloc_component NAME1(hwloc_, COMPONENT, _component) = {
    .abi = HWLOC_COMPONENT_ABI, .init = init, .type = HWLOC_COMPONENT_TYPE_DISC, .data = &fake};
