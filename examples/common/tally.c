/* SPDX-License-Identifier: Apache-2.0 */
/* tally.c - what the server hears from its trainers. */
#include "tally.h"

#include <time.h>

#define MEMORY 0.05 /* weight of the newest loss in the mean, once there are enough */

double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

void tally_begin(tally *t)
{
    if (t->began <= 0)
        t->began = clock_seconds();
}

static void add(tally *t, int64_t count, double loss, int64_t images, double computing, double in_calls)
{
    if (t->gradients == 0)
        t->first_loss = loss;
    t->gradients += count;
    double all = (double)t->gradients, share = (double)count / all, least = (double)count * MEMORY;
    share = share > least ? share : least < 1 ? least : 1;
    t->loss += (loss - t->loss) * share;
    t->images += images;
    t->computing += computing;
    t->in_calls += in_calls;
}

void tally_gradient(tally *t, double loss, int64_t images, double computing, double in_call)
{
    add(t, 1, loss, images, computing, in_call);
}

void tally_steps(tally *t, int64_t steps, double loss, int64_t images, double computing, double in_calls)
{
    if (steps < 1)
        return;
    add(t, steps, loss, images, computing, in_calls);
    t->updates += steps;
    t->ended = clock_seconds();
}

void tally_update(tally *t)
{
    t->updates++;
    t->ended = clock_seconds();
}

double tally_communication(const tally *t)
{
    double all = t->computing + t->in_calls;
    return all > 0 ? t->in_calls / all : 0;
}

double tally_seconds(const tally *t)
{
    return t->ended > t->began ? t->ended - t->began : 0;
}
