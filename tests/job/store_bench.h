/* SPDX-License-Identifier: Apache-2.0 */
/* store_bench.h - the store's state machine on a bench: connections that only keep what was said to them. */
#ifndef STORE_BENCH_H
#define STORE_BENCH_H

#include "unit.h"

#include "job/store/store.h"

#define BENCH_LINES 320
#define BENCH_MAIL 64
#define MS 1000000ull

typedef struct bench_line { /* a connection */
    wfi_store_message mail[BENCH_MAIL];
    size_t count;
    size_t frames; /* of all types but challenges, the table and heartbeats included */
    size_t challenges;
    wfi_greeting greeting; /* as a worker has it */
    wfi_seal seal;
    bool proven;
    wfi_store_world world;
    bool closed;
    int64_t keep_ms;
} bench_line;

typedef struct bench {
    wfi_store *store;
    uint64_t now_ns;
    bool elastic;
    const char *secret; /* what the lines have; NULL: none */
    uint64_t random;
    bench_line lines[BENCH_LINES];
} bench;

bench *bench_create(int world_size, int64_t death_timeout_ms);
bench *bench_create_elastic(int seats, int64_t death_timeout_ms);
void bench_destroy(bench *at);
bench *bench_create_with(const wfi_store_options *options); /* outputs, now_ns and the job's key are the bench's */

/* Connection `line` opens and greets; with the challenge it is sealed, if there is a secret. */
void bench_greet(bench *at, uint64_t line);
/* Connection `line` opens and joins. */
void bench_join(bench *at, uint64_t line, int rank, int world_size, const char *name, int64_t timeout_ms);
/* World of `world_size`, rank r on line r + 1. */
void bench_join_all(bench *at, int world_size);
void bench_say(bench *at, uint64_t line, const wfi_store_message *message);
void bench_resume(bench *at, uint64_t line, uint64_t former, uint64_t received); /* the worker of the line `former` */
void bench_need(bench *at, uint64_t line, int rank, bool on);
void bench_say_type(bench *at, uint64_t line, wfi_store_type type);
/* Time passes; ticks come when due. */
void bench_pass(bench *at, uint64_t ms);
/* The worker ends the connection, later than what the store takes for the end of an attempt to join. */
void bench_end(bench *at, uint64_t line);
/* How many messages of a type a line got, and the last of them. */
size_t bench_heard(const bench *at, uint64_t line, wfi_store_type type);
uint64_t bench_refused(const bench *at);  /* strangers, by the store */
uint64_t bench_messages(const bench *at); /* as the store counts them */
const wfi_store_message *bench_last(const bench *at, uint64_t line, wfi_store_type type);

#endif
