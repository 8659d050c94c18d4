/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_pairs.c - a member, with all that a member has, speaks in another's name: it is refused and counted, and
 * the other is heard as before. And what the keys of pairs are made of.
 */
#include "net/net_host.h"

#define GENERATION 1000000 /* above all that the true worker will ever ask with: taken, it would lock that out */

/* ---- In another's name ----------------------------------------------------------------------------------------- */

/* The keys that a member could try: made of its own private key as if it were the other, and the one that it has
 * itself. */
static void best_key(net_host *host, unsigned n, uint8_t out[WFI_PAIR_KEY_BYTES])
{
    const wfi_member *victim = wfi_net_member(host->net, 0), *other = wfi_net_member(host->net, 1);
    if (n % 2)
        memcpy(out, wfi_peer_pair_key(host_peer(host, 0)), WFI_PAIR_KEY_BYTES);
    else
        assert_true(inside_pair_key(host->net, other, victim, out));
}

/* Asks rank 0 for a lane as rank 1 would. */
static void ask_as_other(net_host *host, unsigned n)
{
    uint8_t data[WFI_CONNECT_DATA_MAX], pair_key[WFI_PAIR_KEY_BYTES];
    wfi_net_lock(host->net);
    const wfi_member *victim = wfi_net_member(host->net, 0);
    wfi_hello hello = {.kind = n / 2 % 2 ? WFI_BULK : WFI_CONTROL,
                       .rank = 1,
                       .incarnation = wfi_net_member(host->net, 1)->incarnation,
                       .generation = GENERATION + n,
                       .nonce = n};
    best_key(host, n, pair_key);
    size_t size = inside_write_hello(host->net, &hello, pair_key, victim, data);
    wfi_lane *lane = inside_ask(host->net, 0, data, size);
    wfi_net_unlock(host->net);
    net_host *at = &host->world->hosts[0];
    while (host_refused(at) < n + 1) /* a time-out of the test: it was taken for rank 1 */
        host_pause(host, 1000000);
    wfi_net_lock(host->net);
    inside_hang_up(host->net, lane);
    wfi_net_unlock(host->net);
}

static void forge_names(net_host *host)
{
    if (host->rank != 0) { /* both are known to rank 0 */
        assert_int_equal(host_send_free(host, 0, 0, 50), WEFT_OK);
        host_until(host, &host->done_ok, 1);
    }
    host_meet(host, &host->world->turns[0]);
    for (unsigned n = 0; host->rank == 2 && n < 4; n++)
        ask_as_other(host, n);
    host_meet(host, &host->world->turns[1]);
    if (host->rank == 1) { /* it asks again, and is not locked out */
        inside_break(host->net, 0);
        assert_int_equal(host_send_free(host, 0, 1, 50), WEFT_OK);
        host_until(host, &host->done_ok, 2);
    } else if (host->rank == 0) {
        host_until(host, &host->arrived, 3);
        assert_int_equal(host_refused(host), 4);
        for (int kind = WFI_CONTROL; kind < WFI_LANE_KINDS; kind++)
            assert_true(inside_asked(host->net, 1, kind) < GENERATION);
    }
    assert_int_equal(host->gone + host->done_failed, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(a_member_cannot_speak_as_another, forge_names, 3, 10, true, .on_message = host_check_order,
         .death_timeout_ms = 20000)

/* ---- An invalid public key ------------------------------------------------------------------------------------- */

/* As rank 0 would have it from the store, if rank 1 had told that one. */
static void meet_without_key(net_host *host)
{
    if (host->rank == 0) {
        wfi_net_lock(host->net);
        memset(host_peer(host, 1)->member.public_key, 0, WFI_PUBLIC_KEY_BYTES);
        wfi_net_unlock(host->net);
    }
    host_meet(host, &host->world->turns[0]);
    if (host->rank == 1)
        assert_int_equal(host_send_free(host, 0, 0, 50), WEFT_OK);
    while (host_refused(&host->world->hosts[0]) < 3)
        host_pause(host, 1000000);
    assert_int_equal(host->arrived + host->done_ok, 0);
    host_meet(host, &host->world->finished);
}

NET_TEST(who_has_no_key_is_not_believed, meet_without_key, 2, 1, false, .on_message = host_check_order,
         .death_timeout_ms = 20000)

/* ---- What it is made of ---------------------------------------------------------------------------------------- */

typedef struct person {
    wfi_member member;
    wfi_net_keys keys;
} person;

static person make(int rank)
{
    person made = {.member = {.rank = rank, .incarnation = (uint32_t)rank + 1}};
    memset(made.keys.job, 7, sizeof(made.keys.job));
    wfi_net_keys_make(&made.keys, NULL);
    memcpy(made.member.public_key, made.keys.public_key, sizeof(made.keys.public_key));
    return made;
}

static bool same_key(const person *a, const person *b, const person *c, const person *d)
{
    uint8_t first[WFI_PAIR_KEY_BYTES], second[WFI_PAIR_KEY_BYTES];
    assert_true(wfi_pair_derive(&a->keys, &a->member, &b->member, first));
    assert_true(wfi_pair_derive(&c->keys, &c->member, &d->member, second));
    return memcmp(first, second, sizeof(first)) == 0;
}

static void a_key_is_that_of_two_lives_in_one_job(void **state)
{
    person a = make(0), b = make(1), c = make(2), other = b;
    assert_true(same_key(&a, &b, &b, &a));
    assert_false(same_key(&a, &b, &a, &c));
    assert_false(same_key(&a, &b, &c, &b));
    other.member.incarnation++;
    assert_false(same_key(&a, &b, &a, &other));
    other = b;
    other.member.rank++;
    assert_false(same_key(&a, &b, &a, &other));
    other = a;
    other.keys.job[0]++;
    assert_false(same_key(&a, &b, &other, &b));
    other = c; /* a member that says that b's public key is its own */
    memcpy(other.member.public_key, b.member.public_key, sizeof(b.member.public_key));
    assert_false(same_key(&a, &b, &a, &other));
    assert_false(same_key(&a, &other, &other, &a));
}

static void a_point_of_low_order_is_no_key(void **state)
{
    uint8_t out[WFI_PAIR_KEY_BYTES];
    person a = make(0), b = make(1);
    for (uint8_t point = 0; point < 2; point++) {
        memset(b.member.public_key, 0, sizeof(b.member.public_key));
        b.member.public_key[0] = point;
        assert_false(wfi_pair_derive(&a.keys, &a.member, &b.member, out));
    }
}

UNIT_MAIN(a_member_cannot_speak_as_another, who_has_no_key_is_not_believed, a_key_is_that_of_two_lives_in_one_job,
          a_point_of_low_order_is_no_key)
