/* SPDX-License-Identifier: Apache-2.0 */
/* print.h - shapes in messages. */
#ifndef WFI_PRINT_H
#define WFI_PRINT_H

#include <weft/tensor.h>

/* "[2, 3]"; cut if it does not fit. */
#define WFI_SHAPE_TEXT 96
const char *wfi_shape_text(const weft_shape *shape, char text[WFI_SHAPE_TEXT]);

#endif
