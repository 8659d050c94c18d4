/* SPDX-License-Identifier: Apache-2.0 */
/* devices.c - reads device maps, and looks devices up in them. */
#include "rpc/agent/devices.h"

#include "base/alloc.h"
#include "base/env.h"
#include "base/error.h"
#include "base/text/sized.h"
#include "mem/cuda.h"
#include "rpc/agent/agent.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

#define ENTRY_TEXT 192 /* an entry as WEFT_DEVICE_MAPS has it */
#define HOW "cpu, or cuda:0 to cuda:63"

_Static_assert(WFI_CUDA_DEVICES_MAX == 64, "HOW");

static bool has_code(weft_device device)
{
    return device.kind == WEFT_DEVICE_CUDA ? wfi_cuda_is_number(device.index)
                                           : device.kind == WEFT_DEVICE_CPU && !device.index;
}

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static const char *entry_text(const wfi_device_map *map, char text[ENTRY_TEXT])
{
    char here[WFI_DEVICE_TEXT] = "cpu", there[WFI_DEVICE_TEXT] = "cpu";
    if (map->here)
        wfi_device_text(wfi_device_of_code(map->here), here);
    if (map->there)
        wfi_device_text(wfi_device_of_code(map->there), there);
    snprintf(text, ENTRY_TEXT, "%s/%s=%s", map->worker[0] ? map->worker : "*", here, there);
    return text;
}

/* Adds an entry for which there is room. Returns what is wrong with it, or NULL. */
static const char *add(wfi_devices *devices, const char *worker, weft_device here, weft_device there)
{
    wfi_device_map *map = &devices->maps[devices->map_count];
    bool is_for_all = !worker || strcmp(worker, "*") == 0;
    if (!is_for_all && !wfi_store_name_is_well_formed(worker))
        return "the worker is neither * nor a name of 1 to 127 of [A-Za-z0-9-_:]";
    if (!has_code(here) || !has_code(there))
        return "a device is " HOW;
    snprintf(map->worker, sizeof(map->worker), "%s", is_for_all ? "" : worker);
    map->here = wfi_device_code(here);
    map->there = wfi_device_code(there);
    for (size_t i = 0; i < devices->map_count; i++)
        if (devices->maps[i].here == map->here && strcmp(devices->maps[i].worker, map->worker) == 0)
            return "an earlier entry has the same worker and the same device of this worker: remove one of them";
    devices->map_count++;
    devices->maps_cpu = devices->maps_cpu || !map->here;
    return NULL;
}

/* "server/cuda:0=cpu"; the text is cut into its parts. Returns what is wrong with it, or NULL. */
static const char *add_text(wfi_devices *devices, char *text)
{
    char *here = strchr(text, '/'), *there = here ? strchr(here, '=') : NULL;
    weft_device from, to;
    if (!there)
        return "an entry is WORKER/DEVICE=DEVICE, such as */cuda:0=cuda:1";
    *here = *there = '\0';
    if (!wfi_device_parse(here + 1, &from) || !wfi_device_parse(there + 1, &to))
        return "a device is " HOW;
    return add(devices, text, from, to);
}

static weft_status read_variable(wfi_devices *devices, const char *text, weft_error **error)
{
    size_t count = 1;
    for (const char *at = text; (at = strchr(at, ';')); at++)
        count++;
    char *copy = wfi_calloc(1, strlen(text) + 1);
    devices->maps = wfi_calloc(count, sizeof(*devices->maps));
    weft_status status = copy && devices->maps ? WEFT_OK : WEFT_ERR_MEMORY;
    for (const char *at = text; at && !status;) {
        size_t size = strcspn(at, ";");
        memcpy(copy, at, size);
        copy[size] = '\0';
        const char *wrong = add_text(devices, copy);
        if (wrong)
            status = wfi_error_fail(error, WEFT_ERR_INVALID, "WEFT_DEVICE_MAPS is \"%s\": \"%.*s\": %s", text,
                                    (int)size, at, wrong);
        at = at[size] ? at + size + 1 : NULL;
    }
    free(copy);
    return status;
}

static weft_status read_options(wfi_devices *devices, const weft_device_map *given, size_t count, weft_error **error)
{
    if (!given)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "device_maps is NULL with a device_map_count of %zu", count);
    devices->maps = wfi_calloc(count, sizeof(*devices->maps));
    if (!devices->maps)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < count; i++) {
        const char *worker = given[i].worker ? given[i].worker : "*";
        const char *wrong = WFI_ROOM_IS_ZERO(&given[i]) ? add(devices, worker, given[i].here, given[i].there)
                                                        : "its `reserved` is not 0: it is of a newer weft";
        if (wrong)
            return wfi_error_fail(error, WEFT_ERR_INVALID,
                                  "device_maps[%zu] is {\"%s\", {%d, %d}, {%d, %d}} (worker, kinds and numbers): %s", i,
                                  worker, (int)given[i].here.kind, given[i].here.index, (int)given[i].there.kind,
                                  given[i].there.index, wrong);
    }
    return WEFT_OK;
}

static weft_status read_transport(wfi_devices *devices, weft_error **error)
{
    static const char *const later[] = {"ipc", "gpudirect"}, *const words[] = {"auto", "staged", NULL};
    const char *text = wfi_env_string("WEFT_GPU_TRANSPORT");
    int word = 0;
    for (size_t i = 0; text && i < sizeof(later) / sizeof(*later); i++)
        if (strcmp(text, later[i]) == 0)
            return wfi_error_fail(error, WEFT_ERR_INVALID,
                                  "WEFT_GPU_TRANSPORT is \"%s\", which this version does not have yet: auto or staged",
                                  text);
    weft_status status = wfi_env_word("WEFT_GPU_TRANSPORT", words, &word, error);
    devices->is_staged = word == 1;
    return status;
}

weft_status wfi_devices_init(const weft_agent_options *options, wfi_devices *out, weft_error **error)
{
    const char *text = wfi_env_string("WEFT_DEVICE_MAPS");
    weft_status status = WEFT_OK;
    if (options->device_map_count)
        status = read_options(out, options->device_maps, options->device_map_count, error);
    else if (text)
        status = read_variable(out, text, error);
    return status ? status : read_transport(out, error);
}

void wfi_devices_fini(wfi_devices *devices)
{
    free(devices->maps);
    devices->maps = NULL;
}

/* ---- Looking up -------------------------------------------------------------------------------------------------- */

bool wfi_device_is_here(const weft_agent *agent, uint8_t code)
{
    return code <= wfi_net_member(agent->net, wfi_agent_rank(agent))->cuda_devices;
}

bool wfi_devices_map_cpu(const weft_agent *agent)
{
    return agent->devices.maps_cpu;
}

/* The entry for a device of this worker: the one that names the other worker wins. */
static const wfi_device_map *entry_of(const wfi_devices *devices, const char *worker, uint8_t here)
{
    const wfi_device_map *general = NULL;
    for (size_t i = 0; i < devices->map_count; i++) {
        const wfi_device_map *map = &devices->maps[i];
        if (map->here != here)
            continue;
        if (map->worker[0] && strcmp(map->worker, worker) == 0)
            return map;
        general = map->worker[0] ? general : map;
    }
    return general;
}

/* The next entry behind `after` (NULL: the first) that leads from a device of this worker, `self`, to a device of the
 * other. */
static const wfi_device_map *entry_to(const wfi_devices *devices, const wfi_member *self, const char *worker,
                                      uint8_t there, const wfi_device_map *after)
{
    for (size_t i = after ? (size_t)(after - devices->maps) + 1 : 0; i < devices->map_count; i++) {
        const wfi_device_map *map = &devices->maps[i];
        if (map->there == there && map->here <= self->cuda_devices && entry_of(devices, worker, map->here) == map)
            return map;
    }
    return NULL;
}

/* The worker `rank`, and this one. `map`: the entry of which a problem speaks; NULL: none, the numbers are the same. */
typedef struct device_pair {
    const wfi_member *self, *other;
    const wfi_device_map *map;
    uint8_t here, there;
} device_pair;

static weft_status two_to_one(const device_pair *pair, const wfi_device_map *second, char *problem, size_t room)
{
    char a[WFI_DEVICE_TEXT], b[WFI_DEVICE_TEXT], c[WFI_DEVICE_TEXT], first_text[ENTRY_TEXT], second_text[ENTRY_TEXT];
    snprintf(problem, room,
             "%s and %s of \"%s\" both go to %s of \"%s\": change the device map \"%s\" or \"%s\" (device_maps, "
             "WEFT_DEVICE_MAPS)",
             wfi_device_text(wfi_device_of_code(pair->map->here), a),
             wfi_device_text(wfi_device_of_code(second->here), b), pair->self->name,
             wfi_device_text(wfi_device_of_code(pair->there), c), pair->other->name, entry_text(pair->map, first_text),
             entry_text(second, second_text));
    return WEFT_ERR_INVALID;
}

/* `lacks`: the worker that lacks the device to which the tensor should go. */
static weft_status no_device(const device_pair *pair, const wfi_member *lacks, char *problem, size_t room)
{
    char here[WFI_DEVICE_TEXT], there[WFI_DEVICE_TEXT], text[ENTRY_TEXT], has[40] = "no GPU", why[ENTRY_TEXT + 64];
    bool goes = lacks == pair->other;
    wfi_device_text(wfi_device_of_code(pair->here), here);
    wfi_device_text(wfi_device_of_code(pair->there), there);
    if (lacks->cuda_devices == 1)
        snprintf(has, sizeof(has), "only cuda:0");
    else if (lacks->cuda_devices)
        snprintf(has, sizeof(has), "only cuda:0 to cuda:%d", lacks->cuda_devices - 1);
    if (pair->map)
        snprintf(why, sizeof(why), "change the device map \"%s\"", entry_text(pair->map, text));
    else
        snprintf(why, sizeof(why), "no device map says otherwise; add one");
    snprintf(problem, room, "%s of \"%s\" %s %s of \"%s\", which has %s: %s (device_maps, WEFT_DEVICE_MAPS)",
             goes ? here : there, goes ? pair->self->name : pair->other->name, goes ? "goes to" : "comes to",
             goes ? there : here, lacks->name, has, why);
    return WEFT_ERR_INVALID;
}

/* False: the rank is this worker, or there is no such worker (which the call reports). Devices stay as they are. */
static bool find_pair(weft_agent *agent, int rank, device_pair *out)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    out->self = wfi_net_member(agent->net, wfi_agent_rank(agent));
    out->other = wfi_net_member(agent->net, rank);
    return out->other && out->other != out->self;
}

weft_status wfi_device_there(weft_agent *agent, int rank, uint8_t here, uint8_t *there, char *problem, size_t room)
{
    const wfi_devices *devices = &agent->devices;
    device_pair pair = {.here = here, .there = here};
    *there = here;
    if ((!here && !devices->maps_cpu) || !find_pair(agent, rank, &pair))
        return WEFT_OK;
    const char *worker = pair.other->name;
    pair.map = devices->map_count ? entry_of(devices, worker, here) : NULL;
    *there = pair.there = pair.map ? pair.map->there : here;
    const wfi_device_map *other = pair.map ? entry_to(devices, pair.self, worker, pair.there, NULL) : NULL;
    while (other == pair.map && other)
        other = entry_to(devices, pair.self, worker, pair.there, other);
    if (other)
        return two_to_one(&pair, other, problem, room);
    return pair.there <= pair.other->cuda_devices ? WEFT_OK : no_device(&pair, pair.other, problem, room);
}

weft_status wfi_device_here(weft_agent *agent, int rank, uint8_t there, uint8_t *here, char *problem, size_t room)
{
    const wfi_devices *devices = &agent->devices;
    device_pair pair = {.here = there, .there = there};
    *here = there;
    if ((!there && !devices->map_count) || !find_pair(agent, rank, &pair))
        return WEFT_OK;
    const char *worker = pair.other->name;
    pair.map = entry_to(devices, pair.self, worker, there, NULL);
    const wfi_device_map *second = pair.map ? entry_to(devices, pair.self, worker, there, pair.map) : NULL;
    *here = pair.here = pair.map ? pair.map->here : there;
    if (second)
        return two_to_one(&pair, second, problem, room);
    return pair.here <= pair.self->cuda_devices ? WEFT_OK : no_device(&pair, pair.self, problem, room);
}

/* ---- How a tensor travels ---------------------------------------------------------------------------------------- */

/* WEFT_OK, or why the device is not one of that worker. */
static weft_status check_device(weft_device device, const wfi_member *member, const char *parameter)
{
    if (has_code(device) && wfi_device_code(device) <= member->cuda_devices)
        return WEFT_OK;
    return wfi_refuse(WEFT_ERR_INVALID,
                      "weft_agent_transport: `%s` has kind %d and number %d: \"%s\" has the CPU and %d CUDA devices",
                      parameter, (int)device.kind, device.index, member->name, member->cuda_devices);
}

weft_status weft_agent_transport(const weft_agent *agent, int rank, weft_device from, weft_device to, char *out,
                                 size_t room)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent)
        return wfi_refuse_null("weft_agent_transport", "the agent");
    if (!out)
        return wfi_refuse_null("weft_agent_transport", "out");
    if (rank < 0 || rank >= agent->options.values.world_size)
        return wfi_refuse(WEFT_ERR_INVALID, "weft_agent_transport: rank is %d: the rank of a worker, below %d", rank,
                          agent->options.values.world_size);
    wfi_net_lock(agent->net);
    const wfi_member *known = wfi_net_member(agent->net, rank);
    const wfi_member other = known ? *known : (wfi_member){0};
    wfi_net_unlock(agent->net);
    if (!known)
        return wfi_refuse(WEFT_ERR_NOT_FOUND, "weft_agent_transport: rank %d: " WFI_UNKNOWN_RANK_TEXT, rank,
                          agent->options.name);
    weft_status status = check_device(from, wfi_net_member(agent->net, wfi_agent_rank(agent)), "from");
    if (!status)
        status = check_device(to, &other, "to");
    if (status)
        return status;
    uint8_t here = wfi_device_code(from), there = wfi_device_code(to);
    const char *way = "staged through page-locked memory (this version has no ipc and no gpudirect)";
    if (rank == wfi_agent_rank(agent))
        way = here == there ? "passed on within this process" : "copied within this process";
    else if (!here && !there)
        way = "host memory";
    else if (agent->devices.is_staged)
        way = "staged through page-locked memory (WEFT_GPU_TRANSPORT is staged)";
    snprintf(out, room, "%s", way);
    return WEFT_OK;
}
