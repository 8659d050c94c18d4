/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sim_host.h - for the tests of the simulation: one program directs the fabrics of several workers of a world.
 */
#ifndef TEST_SIM_HOST_H
#define TEST_SIM_HOST_H

#include "unit.h"

#include "base/parker.h"
#include "fabric.h"
#include "sim/sim.h"

#include <string.h>

#define SECOND_NS 1000000000ull
#define DIRECTOR 1000 /* the rank of the program that directs: no fabric is opened for it */

typedef struct sim_host {
    weft_sim *sim;
    const wfi_fabric_ops *ops;
    wfi_fabric *fabric;
    wfi_parker *waiter; /* whoever waits for something pollable */
    int calls;          /* of ready */
} sim_host;

/* Runs `body` as a program in a fresh world, to its end. */
uint64_t host_world(const weft_sim_options *options, void (*body)(weft_sim *sim));

void host_open(sim_host *host, weft_sim *sim, int rank);
void host_open_kind(sim_host *host, weft_sim *sim, int rank, const char *fabric);
void host_close(sim_host *host);
size_t host_address(const sim_host *host, uint8_t *out);

wfi_event host_event(sim_host *host, wfi_event_kind kind); /* the next one; fails if it is another or none comes */
wfi_completion host_completion(sim_host *host);
void host_expect(sim_host *host, const wfi_fabric_op *op, weft_status status); /* the next completion */
void host_silence(sim_host *host, uint64_t ns); /* nothing becomes pollable for so long */

wfi_lane *host_connect(sim_host *from, const sim_host *to, const char *data);
void host_join(sim_host *a, sim_host *b, wfi_lane **lane_a, wfi_lane **lane_b); /* until both are up */
weft_status host_send(sim_host *host, wfi_lane *lane, wfi_fabric_op *op, const char *text);

#endif
