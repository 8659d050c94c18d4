/* SPDX-License-Identifier: Apache-2.0 */
/* component.c - src/remote as a component of the agent. */
#include "remote/remote.h"

static weft_status open_remote(weft_agent *agent, weft_error **error)
{
    (void)error;
    weft_status st = wfi_remote_modules_register(agent);
    return st ? st : wfi_remote_optimizers_register(agent);
}

static void close_remote(weft_agent *agent)
{
    wfi_remote_modules_close(agent);
    wfi_remote_optimizers_close(agent);
}

const wfi_component wfi_remote_component = {.open = open_remote, .close = close_remote};

__attribute__((constructor(WFI_JOIN_REMOTE))) static void join_agents(void)
{
    wfi_pass_register_step(wfi_parts_step);
    wfi_component_add(&wfi_remote_component);
}
