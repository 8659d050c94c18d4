/* SPDX-License-Identifier: Apache-2.0 */
/* store_mail.c - letters kept until they are acknowledged. */
#include "net/store_mail.h"

#include <stdlib.h>
#include <string.h>

void wfi_mail_init(wfi_mail *mail)
{
    *mail = (wfi_mail){0};
    wfi_list_init(&mail->letters);
}

static void drop_first(wfi_mail *mail)
{
    wfi_letter *letter = wfi_container_of(wfi_list_pop_front(&mail->letters), wfi_letter, link);
    mail->bytes -= sizeof *letter + letter->size;
    free(letter);
}

void wfi_mail_fini(wfi_mail *mail)
{
    while (mail->letters.next && !wfi_list_empty(&mail->letters))
        drop_first(mail);
}

weft_status wfi_mail_keep(wfi_mail *mail, const uint8_t *frame, size_t size)
{
    if (mail->bytes + sizeof(wfi_letter) + size > WFI_MAIL_LIMIT)
        return WEFT_ERR_TOO_LARGE;
    wfi_letter *letter = malloc(sizeof *letter + size);
    if (!letter)
        return WEFT_ERR_MEMORY;
    letter->size = size;
    memcpy(letter->frame, frame, size);
    wfi_list_push_back(&mail->letters, &letter->link);
    mail->bytes += sizeof *letter + size;
    mail->sent++;
    return WEFT_OK;
}

bool wfi_mail_acknowledge(wfi_mail *mail, uint64_t received)
{
    if (received < mail->acknowledged || received > mail->sent)
        return false;
    for (; mail->acknowledged < received; mail->acknowledged++)
        drop_first(mail);
    return true;
}

const wfi_letter *wfi_mail_next(const wfi_mail *mail, const wfi_letter *after)
{
    const wfi_list *next = after ? after->link.next : mail->letters.next;
    return next == &mail->letters ? NULL : wfi_container_of(next, wfi_letter, link);
}
