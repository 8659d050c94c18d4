/* SPDX-License-Identifier: Apache-2.0 */
/* components.c - what an agent is made of: the one list of its components. They hear of everything in this order. */
#include "rpc/batch/batch.h"
#include "rpc/client/client.h"
#include "rpc/observe/observe.h"

#include <assert.h>

#define MOST 8

const wfi_component *wfi_components[MOST + 1] = {
    &wfi_observe_component, /* first: its port or file may keep the agent from opening */
    &wfi_client_component,  &wfi_server_component, &wfi_refs_component, &wfi_batch_component,
};

void wfi_component_add(const wfi_component *component)
{
    size_t count = 0;
    while (wfi_components[count])
        count++;
    assert(count < MOST && "room for one more");
    wfi_components[count] = component;
}
