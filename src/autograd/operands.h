/* SPDX-License-Identifier: Apache-2.0 */
/* operands.h - the operands of an operator, as messages name them. */
#ifndef WFI_OPERANDS_H
#define WFI_OPERANDS_H

#include "tensor/print.h"

#include <weft/ops.h>

#define WFI_OP_INPUTS 3 /* for every operator except those on a list */
#define WFI_OPERANDS_TEXT 512

/* "float32 [2, 3], float32 [4, 5]"; NULL among them is "NULL". */
void wfi_operands_text(weft_tensors operands, char text[WFI_OPERANDS_TEXT]);

#endif
