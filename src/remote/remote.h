/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remote.h - modules and optimizers on other workers.
 *
 * module.c      weft/remote_module.h: modules are objects of their owner, named by handles; a forward is a call. Also
 *               src/remote as a component of the agent
 * optimizer.c   weft/dist_optim.h: handles of an optimizer at each owner; a step is a call to each, or part of a pass
 * state.c       reading, setting, saving and loading its state at all owners; shares owners.h with optimizer.c
 * part.c        the optimizer at an owner, which is such an object too
 * part_state.c  its state in messages; shares part.h with part.c
 * spec.c        the options of an optimizer in a message; types of optimizers that were registered
 */
#ifndef WFI_REMOTE_H
#define WFI_REMOTE_H

#include "dist/pass.h"
#include "rpc/agent/agent.h"
#include "rpc/agent/component.h"

#include <weft/dist_optim.h>

#define WFI_REMOTE_PAGE 1000 /* handles in one call or answer: a list has WEFT_MAX_VALUES at most */

weft_status wfi_remote_optimizers_register(weft_agent *agent);

void wfi_remote_optimizers_close(weft_agent *agent);

/*
 * Write a complete spec as bytes, and read it. wfi_remote_spec_read returns NULL, or an error: the bytes are malformed,
 * or the type or an option is unknown here. Not locked.
 */
void wfi_remote_spec_write(const weft_optimizer_spec *spec, wfi_writer *out);
weft_error *wfi_remote_spec_read(const weft_agent *agent, const void *bytes, size_t size, weft_optimizer_spec *out);

/*
 * The named parts that are on this worker step with the gradients of a pass, which has ended well here.
 * WEFT_ERR_PROTOCOL, or why the step was refused: *error, which may stay NULL.
 */
weft_status wfi_remote_parts_step(weft_agent *agent, const void *names, size_t size, const wfi_pass_result *pass,
                                  size_t *stepped, weft_error **error);

extern const wfi_component wfi_remote_component;

#endif
