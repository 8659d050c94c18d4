/* SPDX-License-Identifier: Apache-2.0 */
/* orders.c - see orders.h. */
#include "run/orders.h"

#include "run/node.h"

static void put(link_state *to, uint8_t type, const int64_t *numbers, size_t count)
{
    size_t begun = frame_begin(&to->outbox, type);
    for (size_t i = 0; i < count; i++)
        frame_number(&to->outbox, numbers[i]);
    frame_end(&to->outbox, begun);
}

void order_start(link_state *to, int rank, int local_rank)
{
    put(to, TO_NODE_START, (const int64_t[]){rank, local_rank}, 2);
}

void order_signal(link_state *to, int number)
{
    put(to, TO_NODE_SIGNAL, (const int64_t[]){number}, 1);
}

void order_end(link_state *to, int number, int64_t grace_ms)
{
    put(to, TO_NODE_END, (const int64_t[]){number, grace_ms}, 2);
}

void order_alive(link_state *to, int limit_ms)
{
    bool is_stuck = limit_ms && to->outbox.used > 0;
    if (to->to->method != HOST_HERE && to->is_ready && !is_stuck) {
        put(to, TO_NODE_ALIVE, (const int64_t[]){limit_ms}, 1);
        to->unanswered += limit_ms > 0;
    }
}

void order_credit(link_state *to)
{
    if (to->unpaid < NODE_WINDOW / 8)
        return;
    put(to, TO_NODE_CREDIT, (const int64_t[]){(int64_t)to->unpaid}, 1);
    to->unpaid = 0;
}
