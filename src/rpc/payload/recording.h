/* SPDX-License-Identifier: Apache-2.0 */
/*
 * recording.h - how a call under a distributed context tells the peer which of its tensors were recorded, and their
 * numbers.
 *
 * rpc knows neither tapes nor contexts. src/dist, if it is linked in, registers one table of functions
 * (wfi_recording_ops_set). A call whose options name a tape uses these functions in this order:
 *
 *   caller   from_tape, is_linked (while arguments are encoded), open, add_sends, write; then read_reply, add_recvs,
 *            free; for each item add_recvs
 *   callee   read_request, add_recvs; then is_linked (while results are encoded), add_sends, write, free;
 *            for each item is_linked, add_sends
 *   both     open without a peer, for a call to this worker itself: there is only one graph, so nothing is linked
 *
 * A recording is one side of one attempt of a call. A source is the caller's side of all attempts of one call: the
 * context that the tape records into, and the call's place in the order of that tape. A source is reference-counted.
 */
#ifndef WFI_RECORDING_H
#define WFI_RECORDING_H

#include "net/net.h"
#include "value/decode.h"

typedef struct wfi_recording wfi_recording;
typedef struct wfi_recording_source wfi_recording_source;

#define WFI_RECORDING_BYTES 128 /* most bytes that `write` writes, without the holders of a reply: docs/wire.md */

typedef struct wfi_recording_ops {
    /* Gives the source of a tape, with a reference. Afterwards other threads see what the tape recorded. Fails with
     * WEFT_ERR_INVALID if the tape records into no context, WEFT_ERR_STATE if the context is closed, or the tape's
     * failure; `problem` says which. Called on the thread that uses the tape. */
    weft_status (*from_tape)(weft_agent *agent, weft_tape *tape, wfi_recording_source **out, char *problem,
                             size_t room);
    wfi_recording_source *(*ref)(wfi_recording_source *source);
    void (*unref)(wfi_recording_source *source); /* not locked. NULL does nothing */
    bool (*is_linked)(const void *source, const weft_tensor *tensor);
    const wfi_recording_source *(*source)(const wfi_recording *recording);

    /* Begins the caller's side. [agent lock] `peer` NULL: a call to this worker itself, not locked. */
    weft_status (*open)(wfi_recording_source *source, wfi_peer *peer, wfi_recording **out);
    /* Numbers the recorded tensors of the next message, in their order, from *first on. If `first` is NULL, `write`
     * writes the first number. [agent lock] */
    weft_status (*add_sends)(wfi_recording *recording, wfi_peer *peer, weft_tensor *const *tensors, size_t count,
                             uint64_t *first);
    void (*write)(wfi_recording *recording,
                  wfi_writer *blob); /* writes the recording's part of the message. [agent lock] */
    /* Reads the blob of a reply. Returns false if it is malformed. [agent lock] */
    bool (*read_reply)(wfi_recording *recording, wfi_reader *blob);

    /* Begins the callee's side. WEFT_ERR_STATE if the context is over, WEFT_ERR_PROTOCOL, WEFT_ERR_MEMORY.
     * [agent lock] */
    weft_status (*read_request)(weft_agent *agent, wfi_peer *from, wfi_reader *blob, wfi_recording **out);

    /* Replaces the `linked` ones among all tensors of `values` by recorded ones. Their numbers begin with `first` (0:
     * as the blob said). [agent lock] */
    weft_status (*add_recvs)(wfi_recording *recording, wfi_peer *from, uint64_t first, weft_values *values,
                             const wfi_decoded_link *linked, size_t count);
    void (*free)(wfi_recording *recording); /* NULL does nothing. Not locked */

    /* Decides whether the arguments of a call of a WFI_RESERVED function, about `bytes` with tensors, are accepted,
     * and charges them. If `meta` is NULL, `bytes` are metadata that are still to be pulled. src/dist/pass_calls.c
     * implements it: wfi_pass_admit. On failure `problem` says why. [agent lock] */
    weft_status (*admit)(weft_call *call, const uint8_t *meta, size_t size, uint64_t bytes, char *problem, size_t room);
} wfi_recording_ops;

void wfi_recording_ops_set(const wfi_recording_ops *ops); /* before any agent is opened */
const wfi_recording_ops *wfi_recording_ops_get(void);     /* NULL: this process has no contexts */

#endif
