/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spoiler.h - a simulated job whose workers open several fabrics, of which one works always. A fiber does harm to the
 * others at random: they fail at a worker, are cut between two, one way or both, refuse registrations, never open. Some
 * of that heals. Whatever one fabric delivers, the job must deliver.
 */
#ifndef TESTS_RPC_SPOILER_H
#define TESTS_RPC_SPOILER_H

#include <weft/weft.h>

typedef struct spoiler {
    weft_sim *sim;
    int workers;
    uint64_t state;   /* of its chance */
    int good;         /* the kind that works */
    bool begun, over; /* over: the fiber has ended */
    char list[64];    /* of the worker that opens */
    int faults;       /* so far */
} spoiler;

/* Faults follow from the seed. */
void spoiler_init(spoiler *s, uint64_t seed, int workers);
/* Gives the options of a worker that opens in a simulation its fabrics. The first time the fiber begins. */
void spoiler_choose(spoiler *s, weft_agent_options *options);

#endif
