/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proof.h - the mutual proof of the job's secret, and what protects a connection to the store after it.
 *
 * Both sides say a fresh nonce, the store also a counter that it never uses twice. All that (the greeting), the protocol's
 * version and a word for the purpose go through HMAC-SHA-256 under the secret; the results are the store's proof and a key
 * for each direction. The worker's proof is its first frame, which only the key of its direction opens. Different words for
 * each purpose leave nothing to reflect; fresh nonces and the counter leave nothing to replay; and who listens learns
 * neither the job's key nor the table.
 *
 * After that every frame's body is sealed (ChaCha20-Poly1305 over the body, with the head as associated data) under the
 * number of the frame in its direction: one that is lost, doubled, moved or changed does not open. Without a secret frames
 * travel as they are.
 */
#ifndef WFI_PROOF_H
#define WFI_PROOF_H

#include <weft/status.h>

#define WFI_NONCE_BYTES 32
#define WFI_PROOF_BYTES 32
#define WFI_SEAL_BYTES 16 /* a sealed frame is longer by so many */

typedef struct wfi_greeting {
    uint8_t worker_nonce[WFI_NONCE_BYTES], store_nonce[WFI_NONCE_BYTES];
    uint64_t counter;
    int64_t death_timeout_ms; /* the store's bound, which rules while a worker waits to join */
} wfi_greeting;

typedef enum wfi_side { WFI_SIDE_WORKER, WFI_SIDE_STORE } wfi_side;

typedef struct wfi_seal {
    bool on; /* there is a secret */
    uint8_t send_key[32], receive_key[32];
    uint64_t sent, received; /* frames */
} wfi_seal;

/* The store's proof. All zero without a secret. */
void wfi_proof_make(const uint8_t *secret, size_t size, const wfi_greeting *greeting, uint8_t proof[WFI_PROOF_BYTES]);
bool wfi_proof_holds(const uint8_t *secret, size_t size, const wfi_greeting *greeting,
                     const uint8_t proof[WFI_PROOF_BYTES]);

void wfi_seal_begin(wfi_seal *seal, wfi_side ours, const uint8_t *secret, size_t size, const wfi_greeting *greeting);
void wfi_seal_wipe(wfi_seal *seal);
/* One frame, head included, to out[size + WFI_SEAL_BYTES]; returns the size there. */
size_t wfi_seal_frame(wfi_seal *seal, const uint8_t *frame, size_t size, uint8_t *out);
/* The other way, to out[size]. WEFT_ERR_PROTOCOL if it is not the next frame of the other side; *out_size else. */
weft_status wfi_seal_open(wfi_seal *seal, const uint8_t *sealed, size_t size, uint8_t *out, size_t *out_size);

#endif
