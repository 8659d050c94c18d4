/* SPDX-License-Identifier: Apache-2.0 */
/* orders.h - the frames of node.h that weft-run sends. Each function adds one to what the link is to write. */
#ifndef WEFT_RUN_ORDERS_H
#define WEFT_RUN_ORDERS_H

#include "run/link.h"

#include <stdint.h>

void order_start(link_state *to, int rank, int local_rank);
void order_signal(link_state *to, int number);
void order_end(link_state *to, int number, int64_t grace_ms);
/* Only to a node of another host. If its connection takes nothing now, it needs no further sign of life. */
void order_alive(link_state *to, int limit_ms);
/* Gives credit for all output that was received, if that is an eighth of the window: so there are few such frames. */
void order_credit(link_state *to);

#endif
