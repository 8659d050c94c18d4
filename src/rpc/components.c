/* SPDX-License-Identifier: Apache-2.0 */
/* components.c - what an agent is made of: the one list of its components. They hear of everything in this order. */
#include "rpc/batch/batch.h"
#include "rpc/client/client.h"
#include "rpc/group/group.h"
#include "rpc/observe/observe.h"

const wfi_component *const wfi_components[] = {
    &wfi_observe_component, /* first: its port or file may keep the agent from opening */
    &wfi_client_component,  &wfi_server_component, &wfi_refs_component,
    &wfi_group_component,   &wfi_batch_component,  NULL,
};
