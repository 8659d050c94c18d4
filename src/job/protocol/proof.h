/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proof.h - how a worker and the store prove to each other that they know the job's secret, and how their messages
 * are encrypted after that.
 *
 * Each side sends a nonce (a random number, never used again); the store adds a counter that it never repeats. These
 * (the greeting), the version of the protocol, and a word that names the purpose are hashed with HMAC-SHA-256 under
 * the secret. That gives the store's proof and one key for each direction. The worker's proof is its first frame,
 * which can be opened only with the key of its direction.
 *
 * Each purpose has its own word, so no proof can be sent back to its maker. Nonces and counter are fresh, so recorded
 * messages cannot be used again. An eavesdropper learns neither the job's key nor the table of members.
 *
 * After the proof the body of every frame is sealed: encrypted and authenticated by ChaCha20-Poly1305, with the
 * frame's head as associated data and its number in its direction as the nonce. A frame that was lost, repeated,
 * moved or changed cannot be opened. In a job without a secret nothing is encrypted.
 *
 * LOCKING. None: a wfi_seal belongs to one connection, whose lock guards it. It holds keys: wipe it (wfi_seal_wipe)
 * when done.
 */
#ifndef WFI_PROOF_H
#define WFI_PROOF_H

#include <weft/status.h>

#define WFI_NONCE_BYTES 32
#define WFI_PROOF_BYTES 32
#define WFI_SEAL_BYTES 16 /* how much longer a sealed frame is */

typedef struct wfi_greeting {
    uint8_t worker_nonce[WFI_NONCE_BYTES], store_nonce[WFI_NONCE_BYTES];
    uint64_t counter;
    int64_t death_timeout_ms; /* the store's bound, which applies while a worker waits to join */
} wfi_greeting;

typedef enum wfi_side { WFI_SIDE_WORKER, WFI_SIDE_STORE } wfi_side;

typedef struct wfi_seal {
    bool on; /* there is a secret */
    uint8_t send_key[32], receive_key[32];
    uint64_t sent, received; /* numbers of frames */
} wfi_seal;

/* The store's proof. All zero without a secret. */
void wfi_proof_make(const uint8_t *secret, size_t size, const wfi_greeting *greeting, uint8_t proof[WFI_PROOF_BYTES]);
bool wfi_proof_holds(const uint8_t *secret, size_t size, const wfi_greeting *greeting,
                     const uint8_t proof[WFI_PROOF_BYTES]);

void wfi_seal_begin(wfi_seal *seal, wfi_side ours, const uint8_t *secret, size_t size, const wfi_greeting *greeting);
void wfi_seal_wipe(wfi_seal *seal);
/* Seals one frame, head included, to out[size + WFI_SEAL_BYTES]; returns the size there. */
size_t wfi_seal_frame(wfi_seal *seal, const uint8_t *frame, size_t size, uint8_t *out);
/*
 * Opens a sealed frame to out[size] and sets *out_size. WEFT_ERR_PROTOCOL if it is not the next frame of the other
 * side.
 */
weft_status wfi_seal_open(wfi_seal *seal, const uint8_t *sealed, size_t size, uint8_t *out, size_t *out_size);

#endif
