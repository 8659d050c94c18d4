/* SPDX-License-Identifier: Apache-2.0 */
/* world.h - the same program on every rank of a small job, on the simulation (fibers) or on tcp (threads). */
#ifndef TESTS_RPC_WORLD_H
#define TESTS_RPC_WORLD_H

#include "rpc/must.h"
#include "unit.h"

#include <weft/weft.h>

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* One line here and its name in world.c add a fabric. */
typedef enum world_fabric { WORLD_SIM, WORLD_TCP, WORLD_FABRICS } world_fabric;

typedef struct world {
    world_fabric fabric;
    int size;
    uint64_t seed;      /* of the simulation */
    int ranks_per_host; /* likewise */
    const weft_function *functions;
    size_t function_count;
    void (*program)(weft_agent *agent, void *arg);          /* between open and close of each rank */
    void *arg;                                              /* world_play: NULL is the world itself */
    void (*adjust)(weft_agent_options *options, void *arg); /* optional */
    bool stop;                                              /* end with weft_agent_stop instead of a graceful close */
    bool close_may_fail;
    void (*close)(weft_agent *agent, void *arg);             /* optional: ends the agent, instead of the two above */
    void (*begin)(struct world *w), (*end)(struct world *w); /* optional: around each world that world_play runs */
    weft_sim *sim;                                           /* while it runs */
    int port;
} world;

/* Runs it to the end; asserts that opening, closing and the whole simulation succeeded. */
void world_run(world *w);
/*
 * Runs one like it for each of so many seeds of the simulation, from 1 on, and so many on tcp. Under ThreadSanitizer, a
 * program that runs on tcp has one seed.
 */
void world_play(const world *like, uint64_t seeds, int on_tcp);
/* cmocka's test of one program: WORLD_TEST(streams, 20, 1, .size = 2) is test_streams. */
#define WORLD_TEST(name, seeds, on_tcp, ...)                                                                           \
    static void test_##name(void **cmocka)                                                                             \
    {                                                                                                                  \
        world_play(&(world){.program = name, __VA_ARGS__}, seeds, on_tcp);                                             \
    }
int world_free_port(void); /* nobody gets it by chance while this process asks for fewer than 16 others */
const char *world_fabric_name(world_fabric fabric);
/* Sleeps in the fabric's time. */
void world_sleep_ms(world *w, int ms);

weft_stats world_stats(const weft_agent *agent);

/* Handlers: of a function without results, and of one that gives its first argument, a tensor. */
weft_status world_run_nothing(weft_call *call, void *user);
weft_status world_run_echo(weft_call *call, void *user);
/* Registers a function that makes modules and leaves them here (weft/remote_module.h). make(argument 0, or 0). */
typedef weft_module *(*world_make_fn)(int64_t argument);
void world_serve_module(weft_agent *agent, const char *name, world_make_fn make);
/* To adjust options by. */
void world_one_worker(weft_agent_options *options, void *arg);
void world_no_threads(weft_agent_options *options, void *arg);
void world_leaks_fail(weft_agent_options *options, void *arg);

/*
 * TEST_FABRIC names a fabric to run on instead of tcp; then nothing is simulated.
 * The number of seeds of the simulation to run, of so many: a quarter under AddressSanitizer; two under
 * ThreadSanitizer, where fibers cost a hundred times as much, and have no threads to race. */
uint64_t world_seeds(uint64_t seeds);

#define WORLD_FUNCTIONS(table) .functions = (table), .function_count = sizeof(table) / sizeof(*(table))

#endif
