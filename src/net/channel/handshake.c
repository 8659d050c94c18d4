/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handshake.c - the hello, and the keys of a connection's frames.
 *
 * The hello is the private data of a connection: sender, channel, position, and two MACs.
 *
 *   0 u16 magic   2 u8 version   3 u8 lane (1: bulk) + 2 if it is an answer   4 u32 rank   8 u32 incarnation
 *  12 u32 generation   16 u64 position   24 u64 nonce   32 proof, 12 bytes   44 sign of a member, 4 bytes
 *
 * position: on the control channel the last sequence number received; on the bulk channel the number of its connections
 * that the sender closed on purpose.
 *
 * The proof is a MAC with the pair key, which only these two workers have (pair.c). It covers the fields above, rank
 * and incarnation of the receiver, and in an answer the nonce of the request. So no third worker can make it. It is
 * invalid in another job or incarnation, in the other direction, or as an answer to another request. A recorded request
 * is invalid too, because its generation is not new (accept.c).
 *
 * The sign is a MAC with the job key over the same fields. It shows only that a member of the job wrote them. It is
 * needed for a worker that the store has not announced here yet: its public key is unknown, so its proof cannot be
 * checked. Its connection is rejected, and the worker tries again. A connection without a valid sign is counted as an
 * unauthenticated peer.
 *
 * The keys of the frames are keyed hashes with the pair key over both workers and both nonces, one for each direction.
 * So a frame of one connection is invalid on every other. Frames of a private connection have no MAC.
 */
#include "net/channel/channel.h"

#include "base/codec.h"

#include <string.h>

#define MAGIC 0x5748
#define VERSION 4
#define FIELDS 32
#define PROOF 12
#define SIGN 4
#define HASH 16 /* a proof or a sign is the beginning of a hash of this size */

static_assert(FIELDS + PROOF + SIGN <= WFI_CONNECT_DATA_MAX, "fits the private data of verbs");
static_assert(PROOF <= HASH && SIGN <= HASH && HASH >= crypto_generichash_BYTES_MIN, "a hash that libsodium makes");
static_assert(WFI_PAIR_KEY_BYTES >= crypto_generichash_KEYBYTES_MIN, "a key that libsodium takes");
static_assert(crypto_shorthash_KEYBYTES >= crypto_generichash_BYTES_MIN, "a key that libsodium makes");

/* In steps, so that the state, which contains the key, can be wiped. */
static void keyed_hash(const uint8_t *key, size_t key_size, const wfi_writer *text, uint8_t *out, size_t out_size)
{
    crypto_generichash_state state;
    assert(!text->failed);
    crypto_generichash_init(&state, key, key_size, out_size);
    crypto_generichash_update(&state, text->data, text->size);
    crypto_generichash_final(&state, out, out_size);
    sodium_memzero(&state, sizeof(state));
    sodium_stackzero(WFI_STACK_WIPED);
}

static void write_who(wfi_writer *writer, const wfi_member *who)
{
    wfi_write_u32(writer, (uint32_t)who->rank);
    wfi_write_u32(writer, who->incarnation);
}

static void direction_key(const wfi_conn *conn, const wfi_member *from, const wfi_member *to, uint8_t *out)
{
    uint8_t text[56];
    wfi_writer writer;
    wfi_writer_init(&writer, text, sizeof(text));
    wfi_write_u64(&writer, UINT64_C(0x656d617266)); /* differs from the text of any proof */
    write_who(&writer, from);
    write_who(&writer, to);
    wfi_write_u32(&writer, conn->channel->kind);
    wfi_write_u32(&writer, conn->generation);
    wfi_write_u64(&writer, conn->ours ? conn->nonce : conn->peer_nonce);
    wfi_write_u64(&writer, conn->ours ? conn->peer_nonce : conn->nonce);
    keyed_hash(wfi_peer_pair_key(conn->peer), WFI_PAIR_KEY_BYTES, &writer, out, crypto_shorthash_KEYBYTES);
}

void wfi_conn_make_keys(wfi_conn *conn)
{
    const wfi_member *us = &conn->transport->self, *them = &conn->channel->peer->member;
    direction_key(conn, us, them, conn->keys->out);
    direction_key(conn, them, us, conn->keys->in);
    conn->keyed = true;
}

/* The MAC for proof and sign, which differ in the key. */
static void hash_hello(const uint8_t *key, size_t key_size, const uint8_t fields[FIELDS], const wfi_member *to,
                       uint64_t asked, uint8_t out[HASH])
{
    uint8_t text[FIELDS + 16];
    wfi_writer writer;
    wfi_writer_init(&writer, text, sizeof(text));
    wfi_write_bytes(&writer, fields, FIELDS);
    write_who(&writer, to);
    wfi_write_u64(&writer, asked);
    keyed_hash(key, key_size, &writer, out, HASH);
}

size_t wfi_hello_write(const wfi_net_keys *keys, const uint8_t *pair_key, const wfi_hello *hello, const wfi_member *to,
                       uint8_t out[WFI_CONNECT_DATA_MAX])
{
    wfi_writer writer;
    wfi_writer_init(&writer, out, FIELDS);
    wfi_write_u16(&writer, MAGIC);
    wfi_write_u8(&writer, VERSION);
    wfi_write_u8(&writer, (uint8_t)(hello->kind + (hello->answer ? 2 : 0)));
    wfi_write_u32(&writer, (uint32_t)hello->rank);
    wfi_write_u32(&writer, hello->incarnation);
    wfi_write_u32(&writer, hello->generation);
    wfi_write_u64(&writer, hello->position);
    wfi_write_u64(&writer, hello->nonce);
    assert(!writer.failed && writer.size == FIELDS);
    uint8_t hash[HASH];
    hash_hello(pair_key, WFI_PAIR_KEY_BYTES, out, to, hello->asked, hash);
    memcpy(out + FIELDS, hash, PROOF);
    hash_hello(keys->job, sizeof(keys->job), out, to, hello->asked, hash);
    memcpy(out + FIELDS + PROOF, hash, SIGN);
    return FIELDS + PROOF + SIGN;
}

size_t wfi_conn_hello(const wfi_conn *conn, uint8_t out[WFI_CONNECT_DATA_MAX])
{
    const wfi_transport *transport = conn->transport;
    const wfi_channel *channel = conn->channel;
    wfi_hello hello = {.kind = channel->kind,
                       .answer = !conn->ours,
                       .rank = transport->rank,
                       .incarnation = transport->self.incarnation,
                       .generation = conn->generation,
                       .nonce = conn->nonce,
                       .asked = conn->ours ? 0 : conn->peer_nonce,
                       .position = channel->ops->position(channel)};
    return wfi_hello_write(transport->keys, wfi_peer_pair_key(channel->peer), &hello, &channel->peer->member, out);
}

bool wfi_hello_read(const wfi_transport *transport, const uint8_t *data, size_t size, uint64_t asked, wfi_hello *out)
{
    if (size < FIELDS + PROOF + SIGN)
        return false;
    wfi_reader reader;
    wfi_reader_init(&reader, data, FIELDS);
    uint16_t magic = wfi_read_u16(&reader);
    uint8_t version = wfi_read_u8(&reader);
    uint8_t lane = wfi_read_u8(&reader);
    uint32_t rank = wfi_read_u32(&reader);
    out->incarnation = wfi_read_u32(&reader);
    out->generation = wfi_read_u32(&reader);
    out->position = wfi_read_u64(&reader);
    out->nonce = wfi_read_u64(&reader);
    out->asked = asked;
    if (magic != MAGIC || version != VERSION || lane > 3 || rank >= (uint32_t)transport->world_size)
        return false;
    out->kind = lane & 1 ? WFI_BULK : WFI_CONTROL;
    out->answer = lane & 2;
    out->rank = (int)rank;
    if (out->rank == transport->rank)
        return false;
    uint8_t hash[HASH];
    hash_hello(transport->keys->job, sizeof(transport->keys->job), data, &transport->self, asked, hash);
    return sodium_memcmp(hash, data + FIELDS + PROOF, SIGN) == 0;
}

bool wfi_hello_is_proven(const uint8_t *pair_key, const wfi_member *to, const uint8_t *data, uint64_t asked)
{
    uint8_t hash[HASH];
    hash_hello(pair_key, WFI_PAIR_KEY_BYTES, data, to, asked, hash);
    return sodium_memcmp(hash, data + FIELDS, PROOF) == 0;
}
