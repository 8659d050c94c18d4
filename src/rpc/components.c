/* SPDX-License-Identifier: Apache-2.0 */
/* components.c - the list of an agent's components. Their functions are called in this order. */
#include "rpc/batch/batch.h"
#include "rpc/client/client.h"
#include "rpc/observe/observe.h"
#include "rpc/files.h"

#include <assert.h>

#define MOST 9

const wfi_component *wfi_components[MOST + 1] = {
    &wfi_files_component, /* before observe: its thread uses the observer until it closes */
    &wfi_observe_component, &wfi_client_component, &wfi_server_component, &wfi_refs_component, &wfi_batch_component,
};

void wfi_component_add(const wfi_component *component)
{
    size_t count = 0;
    while (wfi_components[count])
        count++;
    assert(count < MOST && "room for one more");
    wfi_components[count] = component;
}
