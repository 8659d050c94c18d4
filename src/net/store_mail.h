/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_mail.h - what one side of a store link has said and the other has not acknowledged: said again after a resume.
 *
 * Letters are numbered from 1, without gaps; the other side says how many it has received. Bounded in bytes.
 */
#ifndef WFI_STORE_MAIL_H
#define WFI_STORE_MAIL_H

#include "base/list.h"

#include <weft/status.h>

#define WFI_MAIL_LIMIT (1u << 20) /* bytes kept for one reader */

typedef struct wfi_letter {
    wfi_list link;
    size_t size;
    uint8_t frame[];
} wfi_letter;

typedef struct wfi_mail {
    wfi_list letters; /* not acknowledged, oldest first */
    uint64_t sent, acknowledged;
    size_t bytes;
} wfi_mail;

void wfi_mail_init(wfi_mail *mail);
void wfi_mail_fini(wfi_mail *mail);
weft_status wfi_mail_keep(wfi_mail *mail, const uint8_t *frame, size_t size); /* WEFT_ERR_MEMORY, WEFT_ERR_TOO_LARGE */
/* The other side has received so many. False: it claims what was never sent, or takes back what it said. */
bool wfi_mail_acknowledge(wfi_mail *mail, uint64_t received);
const wfi_letter *wfi_mail_next(const wfi_mail *mail, const wfi_letter *after); /* NULL: the first; NULL at the end */

#endif
