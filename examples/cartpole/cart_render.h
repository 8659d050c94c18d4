/* SPDX-License-Identifier: Apache-2.0 */
/* cart_render.h - shows the policy in the terminal. */
#ifndef EXAMPLES_CART_RENDER_H
#define EXAMPLES_CART_RENDER_H

#include <weft/nn.h>

/*
 * Balances one pole until it falls or has stood long enough, and draws it. No unit is dropped, and the more probable
 * action is taken. If `to` is not a terminal, a line is printed now and then. An interruption ends the drawing.
 */
WEFT_NODISCARD weft_status cart_render(weft_module *policy, uint64_t seed, FILE *to, weft_error **error);

#endif
