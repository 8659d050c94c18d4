/* SPDX-License-Identifier: Apache-2.0 */
/*
 * accumulate.h - arguments that come to their places when their handler is about to run: those of WEFT_LAND_ADD are added there,
 * those of a call to ourselves are copied there.
 */
#ifndef WFI_LAND_ADD_H
#define WFI_LAND_ADD_H

#include "rpc/server/server.h"

/* Asks the call's function for the places, adds or copies its tensors there, and puts the places in their stead in the
 * arguments: all, or an error (then nothing was added). On the thread that is to run the handler, right before it. Not locked. */
weft_error *wfi_land_when_run(weft_call *call);

#endif
