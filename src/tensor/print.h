/* SPDX-License-Identifier: Apache-2.0 */
/* print.h - tensors in messages. */
#ifndef WFI_PRINT_H
#define WFI_PRINT_H

#include <weft/tensor.h>

/* "[2, 3]"; cut if it does not fit. */
#define WFI_SHAPE_TEXT 96
const char *wfi_shape_text(const weft_shape *shape, char text[WFI_SHAPE_TEXT]);

/* "float32 [2, 3], float32 [4, 5]"; NULL among them is "NULL". */
#define WFI_TENSORS_TEXT 512
void wfi_tensors_text(weft_tensors tensors, char text[WFI_TENSORS_TEXT]);

#endif
