/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello.c - the private data of a connection: who, which lane, how far it has received, and a proof of the job's key; and
 * the keys of the connection's frames.
 *
 *   0 u16 magic   2 u8 version   3 u8 lane (1: bulk) + 2 if it is an answer   4 u32 rank   8 u32 incarnation
 *  12 u32 generation   16 u64 position   24 u64 nonce   32 proof, 16 bytes
 *
 * position: on control lanes the last sequence received; on bulk lanes how many of them the sender closed on purpose.
 *
 * The proof is a hash under the job's key over these fields, over rank and incarnation of the one that is spoken to, and in
 * an answer over the nonce of the request: so it is worth nothing to a third worker, in another job or life, in the other
 * direction, or as an answer to another request. A recorded request is worth nothing either: its generation is no longer
 * new (connect.c).
 *
 * The keys are hashes under the job's key over both workers and both nonces, one for each direction: a frame of one
 * connection is noise on every other.
 */
#include "net/net_internal.h"

#include "base/codec.h"

#define MAGIC 0x5748
#define VERSION 2
#define FIELDS 32
#define PROOF 16

static_assert(FIELDS + PROOF <= WFI_CONNECT_DATA_MAX, "fits what verbs offers");
static_assert(PROOF >= crypto_generichash_BYTES_MIN, "a hash that libsodium makes");
static_assert(WFI_JOB_KEY_BYTES >= crypto_generichash_KEYBYTES_MIN, "a key that libsodium takes");
static_assert(crypto_shorthash_KEYBYTES >= crypto_generichash_BYTES_MIN, "a key that libsodium makes");

static void keyed_hash(const wfi_net *net, const wfi_writer *text, uint8_t *out, size_t out_size)
{
    assert(!text->failed);
    crypto_generichash(out, out_size, text->data, text->size, net->job_key, WFI_JOB_KEY_BYTES);
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
    wfi_write_u64(&writer, UINT64_C(0x656d617266)); /* another text than any proof's */
    write_who(&writer, from);
    write_who(&writer, to);
    wfi_write_u32(&writer, conn->line->kind);
    wfi_write_u32(&writer, conn->generation);
    wfi_write_u64(&writer, conn->ours ? conn->nonce : conn->peer_nonce);
    wfi_write_u64(&writer, conn->ours ? conn->peer_nonce : conn->nonce);
    keyed_hash(conn->net, &writer, out, crypto_shorthash_KEYBYTES);
}

void wfi_conn_make_keys(wfi_conn *conn)
{
    const wfi_member *us = &conn->net->self, *them = &conn->line->peer->member;
    direction_key(conn, us, them, conn->key_out);
    direction_key(conn, them, us, conn->key_in);
    conn->keyed = true;
}

static void prove(const wfi_net *net, const uint8_t fields[FIELDS], const wfi_member *to, uint64_t asked,
                  uint8_t out[PROOF])
{
    uint8_t text[FIELDS + 16];
    wfi_writer writer;
    wfi_writer_init(&writer, text, sizeof(text));
    wfi_write_bytes(&writer, fields, FIELDS);
    write_who(&writer, to);
    wfi_write_u64(&writer, asked);
    keyed_hash(net, &writer, out, PROOF);
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
    wfi_write_u64(&writer, hello->nonce);
    assert(!writer.failed && writer.size == FIELDS);
    prove(net, out, to, hello->asked, out + FIELDS);
    return FIELDS + PROOF;
}

bool wfi_hello_read(const wfi_net *net, const uint8_t *data, size_t size, uint64_t asked, wfi_hello *out)
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
    out->nonce = wfi_read_u64(&reader);
    out->asked = asked;
    if (magic != MAGIC || version != VERSION || lane > 3 || rank >= (uint32_t)net->world_size)
        return false;
    out->kind = lane & 1 ? WFI_BULK : WFI_CONTROL;
    out->answer = lane & 2;
    out->rank = (int)rank;
    if (out->rank == net->rank)
        return false;
    uint8_t proof[PROOF];
    prove(net, data, &net->self, asked, proof);
    return sodium_memcmp(proof, data + FIELDS, PROOF) == 0;
}
