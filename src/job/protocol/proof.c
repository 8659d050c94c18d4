/* SPDX-License-Identifier: Apache-2.0 */
/* proof.c - see proof.h: proofs and keys by HMAC-SHA-256, frames by ChaCha20-Poly1305. */
#include "job/protocol/proof.h"

#include "job/protocol/protocol.h"

#include <assert.h>
#include <sodium.h>
#include <string.h>

static_assert(WFI_PROOF_BYTES == crypto_auth_hmacsha256_BYTES, "what HMAC-SHA-256 makes");
static_assert(WFI_PROOF_BYTES == crypto_aead_chacha20poly1305_ietf_KEYBYTES, "which is a key of the seal's size");
static_assert(WFI_SEAL_BYTES == crypto_aead_chacha20poly1305_ietf_ABYTES, "the seal's tag");

static void update_u64(crypto_auth_hmacsha256_state *state, uint64_t value)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
    crypto_auth_hmacsha256_update(state, bytes, sizeof(bytes));
}

/* Every part has a fixed size except the purpose, which a NUL ends: no two greetings give the same bytes. */
static void derive(const char *purpose, const uint8_t *secret, size_t size, const wfi_greeting *greeting,
                   uint8_t out[WFI_PROOF_BYTES])
{
    crypto_auth_hmacsha256_state state;
    crypto_auth_hmacsha256_init(&state, secret, size);
    crypto_auth_hmacsha256_update(&state, (const uint8_t *)purpose, strlen(purpose) + 1);
    update_u64(&state, WFI_STORE_VERSION);
    update_u64(&state, greeting->counter);
    update_u64(&state, (uint64_t)greeting->death_timeout_ms);
    crypto_auth_hmacsha256_update(&state, greeting->worker_nonce, WFI_NONCE_BYTES);
    crypto_auth_hmacsha256_update(&state, greeting->store_nonce, WFI_NONCE_BYTES);
    crypto_auth_hmacsha256_final(&state, out);
    sodium_memzero(&state, sizeof(state));
}

void wfi_proof_make(const uint8_t *secret, size_t size, const wfi_greeting *greeting, uint8_t proof[WFI_PROOF_BYTES])
{
    memset(proof, 0, WFI_PROOF_BYTES);
    if (size)
        derive("weft rendezvous: proof of the store", secret, size, greeting, proof);
}

bool wfi_proof_holds(const uint8_t *secret, size_t size, const wfi_greeting *greeting,
                     const uint8_t proof[WFI_PROOF_BYTES])
{
    uint8_t expected[WFI_PROOF_BYTES];
    wfi_proof_make(secret, size, greeting, expected);
    return sodium_memcmp(expected, proof, sizeof(expected)) == 0;
}

void wfi_seal_begin(wfi_seal *seal, wfi_side ours, const uint8_t *secret, size_t size, const wfi_greeting *greeting)
{
    *seal = (wfi_seal){.on = size > 0};
    if (!seal->on)
        return;
    uint8_t *up = ours == WFI_SIDE_WORKER ? seal->send_key : seal->receive_key;
    uint8_t *down = ours == WFI_SIDE_WORKER ? seal->receive_key : seal->send_key;
    derive("weft rendezvous: key of the worker's frames", secret, size, greeting, up);
    derive("weft rendezvous: key of the store's frames", secret, size, greeting, down);
}

void wfi_seal_wipe(wfi_seal *seal)
{
    sodium_memzero(seal, sizeof(*seal));
}

static void set_length(uint8_t *frame, size_t size)
{
    size_t length = size - WFI_STORE_HEAD;
    for (size_t i = 0; i < 4; i++)
        frame[4 + i] = (uint8_t)(length >> (8 * i));
}

static void number_nonce(uint64_t number, uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES])
{
    memset(nonce, 0, crypto_aead_chacha20poly1305_ietf_NPUBBYTES);
    for (size_t i = 0; i < 8; i++)
        nonce[4 + i] = (uint8_t)(number >> (8 * i));
}

size_t wfi_seal_frame(wfi_seal *seal, const uint8_t *frame, size_t size, uint8_t *out)
{
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    memcpy(out, frame, seal->on ? WFI_STORE_HEAD : size);
    if (!seal->on)
        return size;
    set_length(out, size + WFI_SEAL_BYTES);
    number_nonce(seal->sent++, nonce);
    (void)crypto_aead_chacha20poly1305_ietf_encrypt(out + WFI_STORE_HEAD, NULL, frame + WFI_STORE_HEAD,
                                                    size - WFI_STORE_HEAD, out, WFI_STORE_HEAD, NULL, nonce,
                                                    seal->send_key);
    return size + WFI_SEAL_BYTES;
}

weft_status wfi_seal_open(wfi_seal *seal, const uint8_t *sealed, size_t size, uint8_t *out, size_t *out_size)
{
    uint8_t nonce[crypto_aead_chacha20poly1305_ietf_NPUBBYTES];
    if (!seal->on) {
        memcpy(out, sealed, size);
        *out_size = size;
        return WEFT_OK;
    }
    if (size < WFI_STORE_HEAD + WFI_SEAL_BYTES)
        return WEFT_ERR_PROTOCOL;
    number_nonce(seal->received, nonce);
    if (crypto_aead_chacha20poly1305_ietf_decrypt(out + WFI_STORE_HEAD, NULL, NULL, sealed + WFI_STORE_HEAD,
                                                  size - WFI_STORE_HEAD, sealed, WFI_STORE_HEAD, nonce,
                                                  seal->receive_key) != 0)
        return WEFT_ERR_PROTOCOL;
    seal->received++;
    memcpy(out, sealed, WFI_STORE_HEAD);
    *out_size = size - WFI_SEAL_BYTES;
    set_length(out, *out_size);
    return WEFT_OK;
}
