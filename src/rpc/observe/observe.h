/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe.h - observation as a component of the agent: what happens to calls (rpc/agent/hooks.h) goes to histograms (weft/metrics.h) and,
 * where the user asked for one, to a trace. The clock is read once a call, when a handler's answer goes: all else happens in a round
 * of net's, whose time is known.
 */
#ifndef WFI_OBSERVE_H
#define WFI_OBSERVE_H

#include "rpc/agent/agent.h"

#include <weft/metrics.h>

/*
 * Opens before net, so that a port in use or a file that cannot be written keeps the agent from joining; begins when this worker
 * has its rank. NULL or 0 in the options mean off. WEFT_ERR_INVALID, WEFT_ERR_MEMORY, WEFT_ERR_IO (trace file),
 * WEFT_ERR_EXISTS (port taken), WEFT_ERR_SYSTEM.
 */
extern const wfi_component wfi_observe_component;

#endif
