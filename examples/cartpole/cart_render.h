/* SPDX-License-Identifier: Apache-2.0 */
/* cart_render.h - the policy at work, in the terminal. */
#ifndef EXAMPLES_CART_RENDER_H
#define EXAMPLES_CART_RENDER_H

#include <weft/nn.h>

/*
 * Balances one pole, with all units and the more probable action each time, until it ends; draws it as it goes (on no terminal: a
 * line now and then). An interruption ends it.
 */
WEFT_NODISCARD weft_status cart_render(weft_module *policy, uint64_t seed, FILE *to, weft_error **error);

#endif
