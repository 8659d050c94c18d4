/* SPDX-License-Identifier: Apache-2.0 */
/* land_add.h - WEFT_LAND_ADD: arguments that are added to places of the user's. */
#ifndef WFI_LAND_ADD_H
#define WFI_LAND_ADD_H

#include "rpc/serve.h"

/* Adds the call's tensors to the places that its function names, and puts these in their stead in the arguments: all, or none
 * and an error. On the thread that is to run the handler, right before it. Not locked. */
weft_error *wfi_land_add(weft_call *call);

#endif
