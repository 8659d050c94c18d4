/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello.c - the private data of a connection: who, which lane, how far it has received, and a proof of the job's key.
 *
 *   0 u16 magic   2 u8 version   3 u8 lane (1: bulk) + 2 if it is an answer   4 u32 rank   8 u32 incarnation
 *  12 u32 generation   16 u64 position   24 proof, 16 bytes
 *
 * position: on control lanes the last sequence received; on bulk lanes how many of them the sender closed on purpose.
 *
 * The proof is a hash under the job's key over these fields and over rank and incarnation of the one that is spoken to,
 * so that it is worth nothing to a third worker, in another job, or in the other direction. A recorded request can be
 * replayed within the job's life; it then meets frames whose keyed hash the replayer cannot make.
 */
#include "net/net_internal.h"

#include "base/codec.h"

#define MAGIC 0x5748
#define VERSION 1
#define FIELDS 24
#define PROOF 16

static_assert(FIELDS + PROOF <= WFI_CONNECT_DATA_MAX, "fits what verbs offers");
static_assert(PROOF >= crypto_generichash_BYTES_MIN, "a hash that libsodium makes");
static_assert(WFI_JOB_KEY_BYTES >= crypto_generichash_KEYBYTES_MIN, "a key that libsodium takes");

static void keyed_hash(const wfi_net *net, const uint8_t *text, size_t size, uint8_t *out, size_t out_size)
{
    crypto_generichash(out, out_size, text, size, net->job_key, WFI_JOB_KEY_BYTES);
}

/* The key of frames from `from` to `to`. */
static void pair_key(const wfi_net *net, const wfi_member *from, const wfi_member *to,
                     uint8_t out[crypto_shorthash_KEYBYTES])
{
    uint8_t text[24];
    wfi_writer writer;
    wfi_writer_init(&writer, text, sizeof(text));
    wfi_write_u64(&writer, UINT64_C(0x656d617266)); /* another text than any proof's */
    wfi_write_u32(&writer, (uint32_t)from->rank);
    wfi_write_u32(&writer, from->incarnation);
    wfi_write_u32(&writer, (uint32_t)to->rank);
    wfi_write_u32(&writer, to->incarnation);
    keyed_hash(net, text, writer.size, out, crypto_shorthash_KEYBYTES);
}

void wfi_peer_keys(wfi_peer *peer)
{
    pair_key(peer->net, &peer->net->self, &peer->member, peer->key_out);
    pair_key(peer->net, &peer->member, &peer->net->self, peer->key_in);
}

static void prove(const wfi_net *net, const uint8_t fields[FIELDS], const wfi_member *to, uint8_t out[PROOF])
{
    uint8_t text[FIELDS + 8];
    wfi_writer writer;
    wfi_writer_init(&writer, text, sizeof(text));
    wfi_write_bytes(&writer, fields, FIELDS);
    wfi_write_u32(&writer, (uint32_t)to->rank);
    wfi_write_u32(&writer, to->incarnation);
    keyed_hash(net, text, writer.size, out, PROOF);
}

size_t wfi_hello_write(const wfi_net *net, const wfi_hello *hello, const wfi_member *to,
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
    assert(!writer.failed && writer.size == FIELDS);
    prove(net, out, to, out + FIELDS);
    return FIELDS + PROOF;
}

bool wfi_hello_read(const wfi_net *net, const uint8_t *data, size_t size, wfi_hello *out)
{
    if (size < FIELDS + PROOF)
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
    if (magic != MAGIC || version != VERSION || lane > 3 || rank >= (uint32_t)net->world_size)
        return false;
    out->kind = lane & 1 ? WFI_BULK : WFI_CONTROL;
    out->answer = lane & 2;
    out->rank = (int)rank;
    if (out->rank == net->rank)
        return false;
    uint8_t proof[PROOF];
    prove(net, data, &net->self, proof);
    return sodium_memcmp(proof, data + FIELDS, PROOF) == 0;
}
