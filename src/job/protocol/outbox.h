/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outbox.h - the messages that one side of a link to the store has sent and the other has not acknowledged. After a
 * reconnect they are sent again.
 *
 * Messages (letters) are numbered from 1 without gaps; the other side tells how many it has received. An outbox
 * (wfi_mail) is bounded in bytes. If memory is out, a message that must not be lost is stored in a reserve, which was
 * allocated beforehand and to which its place returns once it is acknowledged.
 *
 * LOCKING. None: the caller's lock guards it. LIFETIME. A reserve may be shared by several outboxes and must outlive
 * them.
 */
#ifndef WFI_OUTBOX_H
#define WFI_OUTBOX_H

#include "base/list.h"

#include <weft/status.h>

#define WFI_MAIL_LIMIT (1u << 20) /* bytes kept for one reader */

/* Room for so many letters of a size, taken beforehand; several mails may share it. */
typedef struct wfi_mail_reserve {
    uint8_t *room;
    size_t letter_bytes, count, fresh; /* fresh: never used so far */
    wfi_list back;                     /* used, and free again */
} wfi_mail_reserve;

typedef struct wfi_letter {
    wfi_list link;
    wfi_mail_reserve *reserve; /* that it goes back to; NULL: it is malloc'ed */
    size_t size;
    uint8_t frame[];
} wfi_letter;

typedef struct wfi_mail {
    wfi_list letters;          /* not acknowledged, oldest first */
    wfi_mail_reserve *reserve; /* outlives it; NULL: none */
    uint64_t sent, acknowledged;
    size_t bytes;
} wfi_mail;

weft_status wfi_mail_reserve_init(wfi_mail_reserve *reserve, size_t count, size_t frame_size); /* WEFT_ERR_MEMORY */
void wfi_mail_reserve_fini(wfi_mail_reserve *reserve); /* after the mails; no-op if it is zeroed */
void wfi_mail_init(wfi_mail *mail, wfi_mail_reserve *reserve);
void wfi_mail_fini(wfi_mail *mail);
/* `matters`: out of the reserve, if it must be. WEFT_ERR_MEMORY, WEFT_ERR_TOO_LARGE. */
weft_status wfi_mail_keep(wfi_mail *mail, const uint8_t *frame, size_t size, bool matters);
/* The other side has received so many. False: it claims what was never sent, or takes back what it said. */
bool wfi_mail_acknowledge(wfi_mail *mail, uint64_t received);
const wfi_letter *wfi_mail_next(const wfi_mail *mail, const wfi_letter *after); /* NULL: the first; NULL at the end */

#endif
