/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pair.c - the key of two workers that no third can compute.
 *
 * Each worker makes an X25519 key pair when it opens, so each incarnation has a new one. JOIN carries the public key to
 * the store. All members get it from there: with the table, or when the store announces a worker that joins later. Two
 * workers compute the same shared secret, each from its own private key and the other's public key. The pair's key is a
 * keyed hash (with the job's key) of that secret, and of rank, incarnation and public key of both. So it can be made
 * only by a member of the job that has the private key of one of the two.
 *
 * Some public keys (points of low order) give the same shared secret with every private key. With such a key the pair
 * gets a random key instead, so that no proof between the two is valid.
 */
#include "base/guarded.h"
#include "net/channel/channel.h"

#include "base/codec.h"
#include "base/simulation.h"

static_assert(WFI_PUBLIC_KEY_BYTES == crypto_scalarmult_BYTES, "the size of a public key of X25519");
static_assert(WFI_PUBLIC_KEY_BYTES == crypto_scalarmult_SCALARBYTES, "the size of a private key of X25519");
static_assert(WFI_JOB_KEY_BYTES >= crypto_generichash_KEYBYTES_MIN, "a key that libsodium takes");

#define WORD UINT64_C(0x72696170) /* no other text that is hashed with the job's key begins with it */

void wfi_net_random_bytes(weft_sim *sim, void *out, size_t size)
{
    if (sim)
        wfi_simulation->random_bytes(sim, out, size);
    else
        randombytes_buf(out, size);
}

void wfi_net_keys_make(wfi_net_keys *keys, weft_sim *sim)
{
    wfi_net_random_bytes(sim, keys->private_key, sizeof(keys->private_key));
    (void)crypto_scalarmult_base(keys->public_key, keys->private_key);
}

static void write_identity(wfi_writer *writer, const wfi_member *member)
{
    wfi_write_u32(writer, (uint32_t)member->rank);
    wfi_write_u32(writer, member->incarnation);
    wfi_write_bytes(writer, member->public_key, sizeof(member->public_key));
}

bool wfi_pair_derive(const wfi_net_keys *keys, const wfi_member *us, const wfi_member *them,
                     uint8_t out[WFI_PAIR_KEY_BYTES])
{
    uint8_t shared[crypto_scalarmult_BYTES], text[8 + 2 * (8 + WFI_PUBLIC_KEY_BYTES)];
    crypto_generichash_state state;
    wfi_writer writer;
    if (crypto_scalarmult(shared, keys->private_key, them->public_key) != 0)
        return false;
    wfi_writer_init(&writer, text, sizeof(text));
    wfi_write_u64(&writer, WORD);
    write_identity(&writer, us->rank < them->rank ? us : them);
    write_identity(&writer, us->rank < them->rank ? them : us);
    assert(!writer.failed && writer.size == sizeof(text));
    crypto_generichash_init(&state, keys->job, sizeof(keys->job), WFI_PAIR_KEY_BYTES);
    crypto_generichash_update(&state, text, sizeof(text));
    crypto_generichash_update(&state, shared, sizeof(shared));
    crypto_generichash_final(&state, out, WFI_PAIR_KEY_BYTES);
    sodium_memzero(&state, sizeof(state));
    sodium_stackzero(WFI_STACK_WIPED);
    sodium_memzero(shared, sizeof(shared));
    return true;
}

const uint8_t *wfi_peer_pair_key(wfi_peer *peer)
{
    wfi_transport *transport = peer->transport;
    wfi_assert_held(&transport->progress->lock);
    if (peer->pair_key)
        return peer->pair_key;
    peer->pair_key = wfi_guarded_calloc(WFI_PAIR_KEY_BYTES);
    if (peer->pair_key && !wfi_pair_derive(transport->keys, &transport->self, &peer->member, peer->pair_key)) {
        wfi_log_net(transport, WEFT_LOG_WARN,
                    "worker %d joined with an invalid public key: all its connections will be refused", peer->rank);
        wfi_net_random_bytes(transport->sim, peer->pair_key, WFI_PAIR_KEY_BYTES);
    }
    return peer->pair_key;
}
