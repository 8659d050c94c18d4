/* SPDX-License-Identifier: Apache-2.0 */
/* test_rendezvous_proof.c - the mutual proof of the job's secret, sealed frames, and what replay and reflection get. */
#include "store_bench.h"

#include <weft/log.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECRET "a secret of this very job"
#define OTHER "a secret of another job.."

static bench *secret_bench(int world_size)
{
    bench *at = bench_create_with(&(wfi_store_options){.world_size = world_size,
                                                       .death_timeout_ms = 2000,
                                                       .secret = (const uint8_t *)SECRET,
                                                       .secret_size = strlen(SECRET)});
    at->secret = SECRET;
    return at;
}

static wfi_greeting greeting_of(uint8_t fill)
{
    wfi_greeting greeting = {.counter = 7, .death_timeout_ms = 2000};
    memset(greeting.worker_nonce, fill, sizeof(greeting.worker_nonce));
    memset(greeting.store_nonce, fill + 1, sizeof(greeting.store_nonce));
    return greeting;
}

static bool proof_holds_for(const wfi_greeting *greeting, const char *secret, const uint8_t *proof)
{
    return wfi_proof_holds((const uint8_t *)secret, strlen(secret), greeting, proof);
}

static void a_proof_is_good_for_one_greeting_and_one_secret(void **state)
{
    uint8_t proof[WFI_PROOF_BYTES];
    wfi_greeting greeting = greeting_of(1), other;
    wfi_proof_make((const uint8_t *)SECRET, strlen(SECRET), &greeting, proof);
    assert_true(proof_holds_for(&greeting, SECRET, proof));
    assert_false(proof_holds_for(&greeting, OTHER, proof));
    other = greeting, other.counter++;
    assert_false(proof_holds_for(&other, SECRET, proof));
    other = greeting, other.death_timeout_ms++;
    assert_false(proof_holds_for(&other, SECRET, proof));
    for (size_t i = 0; i < WFI_NONCE_BYTES; i++) {
        other = greeting, other.worker_nonce[i] ^= 1;
        assert_false(proof_holds_for(&other, SECRET, proof));
        other = greeting, other.store_nonce[i] ^= 1;
        assert_false(proof_holds_for(&other, SECRET, proof));
    }
}

/* A pair of seals, as the two ends of a connection have them. */
typedef struct ends {
    wfi_seal worker, store;
} ends;

static ends make_ends(void)
{
    ends made;
    wfi_greeting greeting = greeting_of(9);
    wfi_seal_begin(&made.worker, WFI_SIDE_WORKER, (const uint8_t *)SECRET, strlen(SECRET), &greeting);
    wfi_seal_begin(&made.store, WFI_SIDE_STORE, (const uint8_t *)SECRET, strlen(SECRET), &greeting);
    return made;
}

static size_t sealed_frame(wfi_seal *seal, uint64_t wave, uint8_t *out)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    wfi_store_message message = {.type = WFI_STORE_PROBE, .wave = wave};
    return wfi_seal_frame(seal, frame, wfi_store_encode(&message, frame), out);
}

static weft_status open_it(wfi_seal *seal, const uint8_t *sealed, size_t size)
{
    uint8_t plain[WFI_STORE_SMALL_MAX];
    size_t plain_size;
    return wfi_seal_open(seal, sealed, size, plain, &plain_size);
}

static void frames_open_once_in_order_and_in_one_direction(void **state)
{
    uint8_t first[WFI_STORE_SMALL_MAX], second[WFI_STORE_SMALL_MAX];
    ends at = make_ends();
    size_t size = sealed_frame(&at.worker, 1, first);
    assert_int_equal(sealed_frame(&at.worker, 2, second), size);
    assert_int_equal(open_it(&at.store, second, size), WEFT_ERR_PROTOCOL); /* out of order */
    assert_int_equal(open_it(&at.worker, first, size), WEFT_ERR_PROTOCOL); /* reflected */
    assert_int_equal(open_it(&at.store, first, size), WEFT_OK);
    assert_int_equal(open_it(&at.store, first, size), WEFT_ERR_PROTOCOL); /* again */
    assert_int_equal(open_it(&at.store, second, size), WEFT_OK);
}

static void a_frame_changed_anywhere_does_not_open(void **state)
{
    uint8_t sealed[WFI_STORE_SMALL_MAX];
    ends at = make_ends();
    size_t size = sealed_frame(&at.worker, 1, sealed);
    for (size_t i = 0; i < size; i++) {
        sealed[i] ^= 0x10;
        assert_int_equal(open_it(&at.store, sealed, size), WEFT_ERR_PROTOCOL);
        sealed[i] ^= 0x10;
    }
    for (size_t cut = 0; cut < size; cut++)
        assert_int_equal(open_it(&at.store, sealed, cut), WEFT_ERR_PROTOCOL);
    assert_int_equal(open_it(&at.store, sealed, size), WEFT_OK);
}

static void those_who_have_the_secret_join(void **state)
{
    bench *at = secret_bench(8);
    bench_join_all(at, 8);
    for (uint64_t line = 1; line <= 8; line++) {
        assert_int_equal(at->lines[line].world.world_size, 8);
        assert_int_equal(at->lines[line].world.job_key[3], 0x5a);
        assert_int_equal(at->lines[line].challenges + at->lines[line].frames, 2); /* and two of its own: 4 N */
    }
    assert_int_equal(bench_refused(at), 0);
    bench_destroy(at);
}

static void one_side_without_a_secret_is_named(void **state)
{
    bench *at = secret_bench(2);
    at->secret = NULL;
    bench_greet(at, 1);
    assert_string_equal(bench_last(at, 1, WFI_STORE_REFUSE)->text,
                        "this worker has no secret, rank 0's job has one: set WEFT_SECRET_FILE");
    assert_int_equal(at->lines[1].challenges, 0);
    bench_destroy(at);
    at = bench_create(2, 2000);
    at->secret = SECRET;
    bench_greet(at, 1);
    assert_string_equal(bench_last(at, 1, WFI_STORE_REFUSE)->text,
                        "this worker has a secret, rank 0's job has none: set WEFT_SECRET_FILE on all");
    assert_int_equal(bench_refused(at), 1);
    bench_destroy(at);
}

/* Greets with the right secret, so that the bench accepts the challenge, then speaks under keys of another one. */
static void a_wrong_secret_gets_nothing_and_is_counted(void **state)
{
    bench *at = secret_bench(2);
    wfi_store_message join = {.type = WFI_STORE_JOIN, .rank = 1, .world_size = 2, .text = "thief"};
    bench_greet(at, 1);
    bench_line *line = &at->lines[1];
    wfi_seal_begin(&line->seal, WFI_SIDE_WORKER, (const uint8_t *)OTHER, strlen(OTHER), &line->greeting);
    bench_say(at, 1, &join);
    assert_true(line->closed);
    assert_int_equal(line->frames, 0);
    assert_int_equal(bench_refused(at), 1);
    assert_int_equal(wfi_store_alive(at->store), 0);
    bench_destroy(at);
}

static char last_warning[512];

static void keep_warning(weft_log_level level, const char *line, void *arg)
{
    (void)arg;
    if (level <= WEFT_LOG_WARN)
        snprintf(last_warning, sizeof(last_warning), "%s", line);
}

/* A worker with another secret finds the store's proof wrong, says so in the clear, and goes. */
static void who_refuses_the_proof_is_counted(void **state)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    wfi_store_message refuse = {.type = WFI_STORE_REFUSE, .status = WEFT_ERR_INVALID};
    bench *at = secret_bench(2);
    bench_greet(at, 1);
    weft_logging_set_sink(keep_warning, NULL);
    wfi_store_received(at->store, 1, at->now_ns, frame, wfi_store_encode(&refuse, frame));
    weft_logging_set_sink(NULL, NULL);
    assert_true(at->lines[1].closed);
    assert_int_equal(bench_refused(at), 1);
    assert_non_null(strstr(last_warning, "it has another secret than this job"));
    bench_destroy(at);
}

/* They may be slow, killed or given up, or this process lacked descriptors: nobody knows that they are no members. */
static void who_proves_nothing_is_no_warning(void **state)
{
    bench *at = secret_bench(2);
    last_warning[0] = 0;
    weft_logging_set_sink(keep_warning, NULL);
    for (uint64_t line = 1; line <= 6; line++) {
        if (line % 2)
            bench_greet(at, line);
        else
            wfi_store_opened(at->store, line);
        wfi_store_closed(at->store, line,
                         line < 3   ? WFI_STORE_ENDED
                         : line < 5 ? WFI_STORE_RESET
                                    : WFI_STORE_CUT,
                         at->now_ns);
    }
    weft_logging_set_sink(NULL, NULL);
    assert_string_equal(last_warning, "");
    assert_int_equal(bench_refused(at), 0);
    bench_destroy(at);
    at = secret_bench(2);
    bench_join_all(at, 2);
    wfi_store_closed(at->store, 2, WFI_STORE_CUT, at->now_ns); /* a member's is no stranger's */
    assert_int_equal(bench_refused(at), 0);
    bench_destroy(at);
}

/* What a worker said when it joined is said again, on a connection of its own: the store's nonce is another by then. */
static void a_recorded_join_is_worth_nothing(void **state)
{
    uint8_t hello[WFI_STORE_SMALL_MAX], frame[WFI_STORE_SMALL_MAX], sealed[WFI_STORE_SMALL_MAX + WFI_SEAL_BYTES];
    wfi_store_message greet = {.type = WFI_STORE_HELLO, .on = true};
    wfi_store_message join = {.type = WFI_STORE_JOIN, .rank = 1, .world_size = 2, .timeout_ms = 1000, .text = "true"};
    bench *at = secret_bench(2);
    memset(greet.nonce, 3, sizeof(greet.nonce));
    memset(at->lines[1].greeting.worker_nonce, 3, sizeof(greet.nonce));
    memset(at->lines[2].greeting.worker_nonce, 3, sizeof(greet.nonce));
    size_t hello_size = wfi_store_encode(&greet, hello);
    wfi_store_opened(at->store, 1);
    wfi_store_received(at->store, 1, at->now_ns, hello, hello_size);
    size_t size = wfi_seal_frame(&at->lines[1].seal, frame, wfi_store_encode(&join, frame), sealed);
    wfi_store_received(at->store, 1, at->now_ns, sealed, size);
    assert_int_equal(wfi_store_alive(at->store), 1);
    bench_end(at, 1);
    wfi_store_opened(at->store, 2);
    wfi_store_received(at->store, 2, at->now_ns, hello, hello_size);
    wfi_store_received(at->store, 2, at->now_ns, sealed, size);
    assert_true(at->lines[2].closed);
    assert_int_equal(wfi_store_alive(at->store), 0);
    assert_int_equal(bench_refused(at), 1);
    bench_destroy(at);
}

static void a_frame_without_a_seal_is_not_a_members(void **state)
{
    bench *at = secret_bench(2);
    bench_join_all(at, 2);
    uint8_t frame[WFI_STORE_SMALL_MAX];
    wfi_store_message goodbye = {.type = WFI_STORE_GOODBYE};
    size_t size = wfi_store_encode(&goodbye, frame);
    wfi_store_received(at->store, 2, at->now_ns, frame, size);
    assert_true(at->lines[2].closed); /* somebody is on its connection: it goes on on another */
    assert_int_equal(bench_heard(at, 1, WFI_STORE_LEFT) + bench_heard(at, 1, WFI_STORE_DIED), 0);
    assert_int_equal(wfi_store_alive(at->store), 2);
    bench_resume(at, 3, 2, 0);
    bench_last(at, 3, WFI_STORE_RESUMED);
    bench_destroy(at);
}

UNIT_MAIN(a_proof_is_good_for_one_greeting_and_one_secret, frames_open_once_in_order_and_in_one_direction,
          a_frame_changed_anywhere_does_not_open, those_who_have_the_secret_join, one_side_without_a_secret_is_named,
          a_wrong_secret_gets_nothing_and_is_counted, who_refuses_the_proof_is_counted,
          who_proves_nothing_is_no_warning, a_recorded_join_is_worth_nothing, a_frame_without_a_seal_is_not_a_members)
