/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h - modules and optimizers on other workers.
 *
 * module.c      weft/remote_module.h: modules are objects of their owner's, named by references; forward is a call
 * optimizer.c   weft/dist_optim.h: an optimizer at each owner is such an object too; a step is a call to each
 * component.c   what this adds to an agent: the functions of weft's own that others call, and types of modules
 */
#ifndef WFI_REMOTE_H
#define WFI_REMOTE_H

#include "rpc/agent/agent.h"
#include "rpc/agent/component.h"

weft_status wfi_remote_modules_register(weft_agent *agent);
weft_status wfi_remote_optimizers_register(weft_agent *agent);

void wfi_remote_modules_close(weft_agent *agent);

extern const wfi_component wfi_remote_component;

#endif
