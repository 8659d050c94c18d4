/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server/stream.h - results that stream: parts sent ahead of the reply.
 *
 * The callee (server/stream.c) numbers them from 0, exposes their large tensors and keeps each until the caller said TOOK, at most
 * WFI_PARTS_MAX of them. The caller (client/stream.c) takes them in side by side, hands them to on_part in order, one at a time,
 * and says TOOK after each: so a slow on_part slows the sender down, and neither side ever holds more. The reply says how many
 * parts there are; the call's future completes after the last of them, and never while on_part runs.
 *
 * A call to ourselves has the second half only: its parts are handed over by reference.
 */
#ifndef WFI_PARTS_H
#define WFI_PARTS_H

#include "rpc/client/client.h"
#include "rpc/server/server.h"

#define WFI_PARTS_MAX 16

typedef struct wfi_parts_out wfi_parts_out;
typedef struct wfi_parts_in wfi_parts_in;

/* ---- The callee's. A call without parts (NULL) answers as one that has sent none. -------------------------------------- */

weft_status wfi_parts_out_create(wfi_parts_out **out);
void wfi_parts_out_free(wfi_parts_out *parts);             /* not locked */
bool wfi_parts_out_busy(const weft_call *call);            /* some are not taken; [agent lock] */
uint32_t wfi_parts_out_count(const weft_call *call);       /* sent so far; [agent lock] */
void wfi_parts_out_took(weft_call *call, uint32_t number); /* [agent lock] */
void wfi_parts_out_drop(weft_call *call);                  /* nobody will take them; [agent lock] */

/* ---- The caller's ------------------------------------------------------------------------------------------------------ */

weft_status wfi_parts_in_create(weft_agent *agent, weft_part_fn fn, void *arg, wfi_parts_in **out);
void wfi_parts_in_of_call(wfi_parts_in *parts, wfi_outcall *call); /* whose they are: one of these two, once */
void wfi_parts_in_of_local(wfi_parts_in *parts, weft_call *call);
void wfi_parts_in_free(wfi_parts_in *parts);                                      /* not locked */
void wfi_parts_in_on_part(weft_agent *agent, wfi_peer *from, wfi_reader *reader); /* [agent lock] */
/* A part of a call to ourselves, which moves in; WEFT_ERR_AGAIN. [agent lock] */
weft_status wfi_parts_in_give(wfi_parts_in *parts, weft_values *values);
/* How many there will be. False: it was told before. [agent lock] */
bool wfi_parts_in_expect(wfi_parts_in *parts, uint32_t count);
void wfi_parts_in_expect_given(wfi_parts_in *parts); /* of a call to ourselves: no more than were given. [agent lock] */
/*
 * Whether the call's end has to wait for parts; then it comes again when they are through, by wfi_call_complete or
 * wfi_local_complete with the same arguments (`values` stays the caller's; of `error` a reference is kept). `stop`: it ends
 * without the parts that have not been handed over; only an on_part that runs, or a payload under way, is waited for.
 * [agent lock]
 */
bool wfi_parts_in_wait(wfi_parts_in *parts, const weft_values *values, const weft_error *error, bool quiet, bool stop);

#endif
