/* SPDX-License-Identifier: Apache-2.0 */
/* notify.h - small messages that own themselves: they are posted and forgotten, and do not fail for want of memory. See
 * notify.c. */
#ifndef WFI_NOTIFY_H
#define WFI_NOTIFY_H

#include "rpc/agent/agent.h"

/* All [agent lock], but for the last. */

/* Sends an urgent message of at most 64 bytes. `reserved`: takes it out of these promised notifications; NULL: none was
 * promised. Fails if the peer is gone; and, if none was promised, if memory is out. That cannot happen in an answer to
 * a message that was taken in after wfi_notifications_ready. */
weft_status wfi_post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved);
/* The same, but it is sent after the calls that wait for that peer. */
weft_status wfi_post_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes,
                             unsigned *reserved);
/* As wfi_post; `arrived` is called when the peer has it, unless it is gone. */
weft_status wfi_post_and_hear(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes,
                              void (*arrived)(weft_agent *agent, int rank));
/* As wfi_post, for an answer to a message of that peer's. It is dropped, unless it was promised, if wfi_may_answer is
 * false: then the peer has too many answers that it did not acknowledge. */
void wfi_post_answer(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved);
/* The same, behind what was said to that peer before. */
void wfi_post_answer_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes);
bool wfi_may_answer(const weft_agent *agent, const wfi_peer *to);
/* Adds `count` to *reserved: so many notifications can be posted later, whatever memory there is then.
 * WEFT_ERR_MEMORY. */
weft_status wfi_notifications_promise(weft_agent *agent, unsigned count, unsigned *reserved);
void wfi_notifications_release(weft_agent *agent, unsigned *reserved); /* what is left of it will not be needed */
bool wfi_notifications_ready(weft_agent *agent);                       /* one can be posted that nobody promised */
void wfi_notifications_fini(weft_agent *agent);                        /* not locked */

#endif
