/* SPDX-License-Identifier: Apache-2.0 */
/*
 * devices.h - which device of another worker a tensor goes to, and which one of this worker an answer comes to: the
 * device maps of weft_agent_options, and WEFT_DEVICE_MAPS.
 *
 * Of a call only the caller's maps count. It turns its device into one of the callee, which the message names, and it
 * turns the devices of answers back. The callee's maps are not used.
 *
 * A device has a code of one byte in messages and here (value/wire.h).
 */
#ifndef WFI_DEVICES_H
#define WFI_DEVICES_H

#include "value/wire.h"

#include <weft/agent.h>

#define WFI_DEVICE_PROBLEM 768 /* bytes that are enough for each `problem` below */

typedef struct wfi_device_map {
    char worker[128]; /* "": all */
    uint8_t here, there;
} wfi_device_map;

/* Of an agent; constant while it is open. */
typedef struct wfi_devices {
    wfi_device_map *maps;
    size_t map_count;
    bool maps_cpu;  /* an entry has the CPU on this worker's side */
    bool is_staged; /* WEFT_GPU_TRANSPORT is `staged` */
} wfi_devices;

/* Reads the device maps of the options or, if there are none, of the environment, and WEFT_GPU_TRANSPORT. Release *out
 * with wfi_devices_fini, also after a failure: WEFT_ERR_INVALID, *error quotes the value; WEFT_ERR_MEMORY. */
weft_status wfi_devices_init(const weft_agent_options *options, wfi_devices *out, weft_error **error);
void wfi_devices_fini(wfi_devices *devices);

/* Whether this worker has the device. [agent lock] */
bool wfi_device_is_here(const weft_agent *agent, uint8_t code);
/* Whether an entry has the CPU on this worker's side: otherwise CPU tensors go to the CPU. Any thread. */
bool wfi_devices_map_cpu(const weft_agent *agent);

/*
 * Where a tensor that is on the device `here` of this worker goes at the worker `rank`. A call to this worker itself
 * changes no device. WEFT_ERR_INVALID: two devices of this worker go there, or that worker has no such device;
 * `problem` has a sentence with both workers and the entry. [agent lock]
 */
weft_status wfi_device_there(weft_agent *agent, int rank, uint8_t here, uint8_t *there, char *problem, size_t room);
/* The reverse, for answers and items: to which device a tensor on the device `there` of the worker `rank` comes: by
 * the entry that leads there, otherwise the same number. WEFT_ERR_INVALID: two devices of this worker go there, or
 * this worker has no such device. [agent lock] */
weft_status wfi_device_here(weft_agent *agent, int rank, uint8_t there, uint8_t *here, char *problem, size_t room);

#endif
