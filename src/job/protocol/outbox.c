/* SPDX-License-Identifier: Apache-2.0 */
/* outbox.c - see outbox.h. */
#include "job/protocol/outbox.h"

#include "base/alloc.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- The reserve ----------------------------------------------------------------------------------------------- */

weft_status wfi_mail_reserve_init(wfi_mail_reserve *reserve, size_t count, size_t frame_size)
{
    size_t unit = _Alignof(max_align_t), bytes = sizeof(wfi_letter) + frame_size;
    *reserve = (wfi_mail_reserve){.letter_bytes = (bytes + unit - 1) / unit * unit, .count = count};
    wfi_list_init(&reserve->back);
    reserve->room = wfi_calloc(count, reserve->letter_bytes); /* of which the system gives nothing before it is used */
    return reserve->room ? WEFT_OK : WEFT_ERR_MEMORY;
}

void wfi_mail_reserve_fini(wfi_mail_reserve *reserve)
{
    free(reserve->room);
    *reserve = (wfi_mail_reserve){0};
}

static wfi_letter *take_from(wfi_mail_reserve *reserve, size_t size)
{
    if (!reserve || sizeof(wfi_letter) + size > reserve->letter_bytes)
        return NULL;
    wfi_list *back = wfi_list_pop_front(&reserve->back);
    void *room = back ? wfi_container_of(back, wfi_letter, link) : NULL;
    if (!room && reserve->fresh < reserve->count)
        room = reserve->room + reserve->letter_bytes * reserve->fresh++;
    wfi_letter *letter = room;
    if (letter)
        letter->reserve = reserve;
    return letter;
}

static void let_go(wfi_letter *letter)
{
    if (letter->reserve)
        wfi_list_push_front(&letter->reserve->back, &letter->link);
    else
        free(letter);
}

/* ---- Mail ------------------------------------------------------------------------------------------------------ */

void wfi_mail_init(wfi_mail *mail, wfi_mail_reserve *reserve)
{
    *mail = (wfi_mail){.reserve = reserve};
    wfi_list_init(&mail->letters);
}

static void drop_first(wfi_mail *mail)
{
    wfi_letter *letter = wfi_container_of(wfi_list_pop_front(&mail->letters), wfi_letter, link);
    mail->bytes -= sizeof *letter + letter->size;
    let_go(letter);
}

void wfi_mail_fini(wfi_mail *mail)
{
    while (mail->letters.next && !wfi_list_empty(&mail->letters))
        drop_first(mail);
}

weft_status wfi_mail_keep(wfi_mail *mail, const uint8_t *frame, size_t size, bool matters)
{
    if (mail->bytes + sizeof(wfi_letter) + size > WFI_MAIL_LIMIT)
        return WEFT_ERR_TOO_LARGE;
    wfi_letter *letter = malloc(sizeof *letter + size);
    if (letter)
        letter->reserve = NULL;
    else if (matters)
        letter = take_from(mail->reserve, size);
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
