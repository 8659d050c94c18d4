/* SPDX-License-Identifier: Apache-2.0 */
/* operands.c - see operands.h. */
#include "autograd/operands.h"

#include "tensor/tensor.h"

#include <stdio.h>

#define OPERANDS_NAMED 4 /* named in a message about a longer list */

void wfi_operands_text(weft_tensors operands, char text[WFI_OPERANDS_TEXT])
{
    char shape[WFI_SHAPE_TEXT];
    size_t at = 0;
    text[0] = '\0';
    size_t named = operands.count > OPERANDS_NAMED ? OPERANDS_NAMED - 1 : operands.count;
    for (size_t i = 0; i < named && at < WFI_OPERANDS_TEXT; i++) {
        const weft_tensor *x = operands.items[i];
        const char *comma = i ? ", " : "";
        if (x == NULL)
            at += (size_t)snprintf(text + at, WFI_OPERANDS_TEXT - at, "%sNULL", comma);
        else
            at += (size_t)snprintf(text + at, WFI_OPERANDS_TEXT - at, "%s%s %s", comma, weft_dtype_name(x->dtype),
                                   wfi_shape_text(&x->shape, shape));
    }
    if (named < operands.count && at < WFI_OPERANDS_TEXT)
        snprintf(text + at, WFI_OPERANDS_TEXT - at, ", ... %zu in all", operands.count);
}
