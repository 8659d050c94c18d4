/* SPDX-License-Identifier: Apache-2.0 */
/* notify.h - notifications: small messages that free themselves and cannot fail for lack of memory. See notify.c. */
#ifndef WFI_NOTIFY_H
#define WFI_NOTIFY_H

#include "rpc/agent/agent.h"

/* All [agent lock], except wfi_notifications_fini. */

/* Sends an urgent message of at most 64 bytes. Uses one of the promised notifications *reserved; `reserved` is NULL if
 * none was promised. Fails if the peer is gone, or if memory is out and none was promised. Memory cannot be out in an
 * answer to a message that was accepted after wfi_notifications_ready. */
weft_status wfi_post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved);
/* The same, but it is sent after the calls that are queued for that peer. */
weft_status wfi_post_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes,
                             unsigned *reserved);
/* Like wfi_post. `arrived` is called when the peer has the message; not called if the peer is gone. */
weft_status wfi_post_then(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes,
                          void (*arrived)(weft_agent *agent, int rank));
/* Like wfi_post, for an answer to a message of that peer. It is dropped if wfi_post_may_answer is false, unless it
 * was promised. */
void wfi_post_answer(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved);
/* The same, but it is sent after the messages that are queued for that peer. */
void wfi_post_answer_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes);
/* False if the peer has too many answers that it has not acknowledged. */
bool wfi_post_may_answer(const weft_agent *agent, const wfi_peer *to);
/* Reserves `count` notifications, and adds `count` to *reserved: they can be posted later even if memory is out then.
 * WEFT_ERR_MEMORY. */
weft_status wfi_notifications_promise(weft_agent *agent, unsigned count, unsigned *reserved);
void wfi_notifications_release(weft_agent *agent, unsigned *reserved); /* the rest of *reserved is not needed */
bool wfi_notifications_ready(weft_agent *agent);                       /* whether one can be posted without a promise */
void wfi_notifications_fini(weft_agent *agent);                        /* not locked */

#endif
