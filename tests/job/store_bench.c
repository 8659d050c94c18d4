/* SPDX-License-Identifier: Apache-2.0 */
/* store_bench.c - the store's state machine on a bench. */
#include "store_bench.h"
#include "prng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void take_challenge(bench *at, bench_line *line, const wfi_store_message *challenge)
{
    size_t size = at->secret ? strlen(at->secret) : 0;
    line->challenges++;
    line->greeting.counter = challenge->counter;
    line->greeting.death_timeout_ms = challenge->timeout_ms;
    memcpy(line->greeting.store_nonce, challenge->nonce, WFI_NONCE_BYTES);
    assert_true(wfi_proof_holds((const uint8_t *)at->secret, size, &line->greeting, challenge->proof));
    wfi_seal_begin(&line->seal, WFI_SIDE_WORKER, (const uint8_t *)at->secret, size, &line->greeting);
    line->proven = true;
}

static void take_frame(bench *at, bench_line *line, const uint8_t *data, size_t size)
{
    wfi_store_message message;
    if (wfi_store_frame_type(data) == WFI_STORE_WORLD) {
        free(line->world.members);
        assert_int_equal(wfi_store_decode_world(data, size, &line->world), WEFT_OK);
        return;
    }
    assert_int_equal(wfi_store_decode(data, size, &message), WEFT_OK);
    if (message.type == WFI_STORE_CHALLENGE) {
        line->frames--;
        take_challenge(at, line, &message);
    } else if (line->count < BENCH_MAIL) {
        line->mail[line->count++] = message;
    }
}

static void on_send(void *arg, uint64_t connection, const uint8_t *data, size_t size)
{
    bench *at = arg;
    assert_true(connection < BENCH_LINES);
    bench_line *line = &at->lines[connection];
    assert_false(line->closed);
    line->frames++;
    uint8_t *plain = calloc(1, size); /* malloc fails at will in test_rendezvous_no_memory */
    assert_non_null(plain);
    if (line->proven)
        assert_int_equal(wfi_seal_open(&line->seal, data, size, plain, &size), WEFT_OK);
    else
        memcpy(plain, data, size);
    take_frame(at, line, plain, size);
    free(plain);
}

static void on_random(void *arg, void *out, size_t size)
{
    bench *at = arg;
    for (size_t i = 0; i < size; i++)
        ((uint8_t *)out)[i] = (uint8_t)prng_next(&at->random);
}

static void on_close(void *arg, uint64_t connection, int64_t keep_ms)
{
    bench *at = arg;
    assert_true(connection < BENCH_LINES);
    assert_false(at->lines[connection].closed);
    at->lines[connection].closed = true;
    at->lines[connection].keep_ms = keep_ms;
}

bench *bench_create_with(const wfi_store_options *given)
{
    wfi_store_options options = *given;
    bench *at = calloc(1, sizeof(*at));
    assert_non_null(at);
    at->elastic = options.elastic;
    at->now_ns = options.now_ns = 1000 * MS;
    options.outputs = (wfi_store_outputs){.send = on_send, .close = on_close, .random = on_random, .arg = at};
    static uint8_t job_key[WFI_JOB_KEY_BYTES];
    memset(job_key, 0x5a, sizeof(job_key));
    options.job_key = job_key;
    assert_int_equal(wfi_store_create(&options, &at->store), WEFT_OK);
    return at;
}

bench *bench_create(int world_size, int64_t death_timeout_ms)
{
    return bench_create_with(&(wfi_store_options){.world_size = world_size, .death_timeout_ms = death_timeout_ms});
}

bench *bench_create_elastic(int seats, int64_t death_timeout_ms)
{
    return bench_create_with(
        &(wfi_store_options){.world_size = seats, .elastic = true, .death_timeout_ms = death_timeout_ms});
}

void bench_destroy(bench *at)
{
    wfi_store_destroy(at->store);
    for (size_t i = 0; i < BENCH_LINES; i++)
        free(at->lines[i].world.members);
    free(at);
}

void bench_say(bench *at, uint64_t line, const wfi_store_message *message)
{
    uint8_t frame[WFI_STORE_SMALL_MAX], sealed[WFI_STORE_SMALL_MAX + WFI_SEAL_BYTES];
    bool seals = at->lines[line].proven;
    size_t size = wfi_store_encode(message, frame);
    if (seals)
        size = wfi_seal_frame(&at->lines[line].seal, frame, size, sealed);
    wfi_store_received(at->store, line, at->now_ns, seals ? sealed : frame, size);
}

void bench_greet(bench *at, uint64_t line)
{
    wfi_store_message hello = {.type = WFI_STORE_HELLO, .on = at->secret != NULL};
    on_random(at, hello.nonce, sizeof(hello.nonce));
    memcpy(at->lines[line].greeting.worker_nonce, hello.nonce, sizeof(hello.nonce));
    assert_int_equal(wfi_store_opened(at->store, line), WEFT_OK);
    bench_say(at, line, &hello);
}

void bench_resume(bench *at, uint64_t line, uint64_t former, uint64_t received)
{
    const wfi_store_world *world = &at->lines[former].world;
    wfi_store_message resume = {.type = WFI_STORE_RESUME, .rank = world->rank, .received = received};
    resume.incarnation = world->members[world->rank].incarnation;
    memcpy(resume.token, world->token, sizeof(resume.token));
    bench_greet(at, line);
    bench_say(at, line, &resume);
}

void bench_need(bench *at, uint64_t line, int rank, bool on)
{
    wfi_store_message need = {.type = WFI_STORE_NEED, .rank = rank, .on = on};
    need.incarnation = at->lines[line].world.members[rank].incarnation;
    bench_say(at, line, &need);
}

void bench_say_type(bench *at, uint64_t line, wfi_store_type type)
{
    wfi_store_message message = {.type = type};
    bench_say(at, line, &message);
}

void bench_join(bench *at, uint64_t line, int rank, int world_size, const char *name, int64_t timeout_ms)
{
    wfi_store_message join = {.type = WFI_STORE_JOIN,
                              .rank = rank,
                              .world_size = world_size,
                              .timeout_ms = timeout_ms,
                              .addresses_size = 3,
                              .cuda_devices = 7};
    join.elastic = at->elastic;
    snprintf(join.text, sizeof(join.text), "%s", name);
    memcpy(join.addresses, "adr", 3);
    bench_greet(at, line);
    bench_say(at, line, &join);
}

void bench_join_all(bench *at, int world_size)
{
    for (int rank = 0; rank < world_size; rank++) {
        char name[32];
        snprintf(name, sizeof(name), "worker%d", rank);
        bench_join(at, (uint64_t)rank + 1, rank, world_size, name, 60000);
    }
}

void bench_pass(bench *at, uint64_t ms)
{
    uint64_t until_ns = at->now_ns + ms * MS;
    while (wfi_store_due(at->store) <= until_ns) {
        uint64_t due_ns = wfi_store_due(at->store);
        at->now_ns = due_ns > at->now_ns ? due_ns : at->now_ns;
        wfi_store_tick(at->store, at->now_ns);
        assert_true(wfi_store_due(at->store) > at->now_ns || wfi_store_is_finished(at->store, at->now_ns));
        if (wfi_store_is_finished(at->store, at->now_ns))
            break;
    }
    at->now_ns = until_ns;
}

void bench_end(bench *at, uint64_t line)
{
    at->now_ns += 5 * MS;
    wfi_store_closed(at->store, line, WFI_STORE_ENDED, at->now_ns);
}

uint64_t bench_refused(const bench *at)
{
    wfi_store_counts counts;
    wfi_store_count(at->store, &counts);
    return counts.refused;
}

uint64_t bench_messages(const bench *at)
{
    wfi_store_counts counts;
    wfi_store_count(at->store, &counts);
    return counts.messages;
}

size_t bench_heard(const bench *at, uint64_t line, wfi_store_type type)
{
    size_t count = 0;
    for (size_t i = 0; i < at->lines[line].count; i++)
        count += at->lines[line].mail[i].type == type;
    return count;
}

const wfi_store_message *bench_last(const bench *at, uint64_t line, wfi_store_type type)
{
    const wfi_store_message *last = NULL;
    for (size_t i = 0; i < at->lines[line].count; i++)
        if (at->lines[line].mail[i].type == type)
            last = &at->lines[line].mail[i];
    assert_non_null(last);
    return last;
}
