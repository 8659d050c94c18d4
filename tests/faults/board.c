/* SPDX-License-Identifier: Apache-2.0 */
/*
 * board.c - the memory that all processes of a program of faults share: seats, lives, the quiet clock, epochs, and the
 * faults found.
 */
#include "faults/faults.h"

#include <stdarg.h>
#include <stdio.h>

#define BOOK_AT ((sizeof(faults_board) + 4095) / 4096 * 4096)

faults_board *board;

void board_begin(size_t book_bytes)
{
    board = child_memory(BOOK_AT + book_bytes);
}

void *board_book(void)
{
    return (char *)board + BOOK_AT;
}

void board_new_job(int port)
{
    memset(board->seats, 0, sizeof(board->seats));
    for (int i = 0; i < SEATS_MOST; i++)
        atomic_store(&board->group_lives[i], 0);
    atomic_store(&board->phase, PHASE_ON);
    board->port = port;
    board->job++;
    board->small_budget = board->job % 3 == 0;
}

unsigned board_faults(void)
{
    return atomic_load(&board->fault_count);
}

void board_count(int kind, weft_status status)
{
    if (status <= 0 && status > -STATUSES)
        atomic_fetch_add(&board->outcomes[kind][-status], 1);
    else
        fault(FAULT_WRONG, "a status %d", (int)status);
}

void fault(faults_fault_kind kind, const char *format, ...)
{
    static const char *const kinds[FAULT_KINDS] = {"WRONG", "HANG", "LEAK"};
    char text[sizeof(*board->texts)];
    int length = snprintf(text, sizeof(text), "%s: job %d, rank %d, life %u: ", kinds[kind], board->job,
                          self.seat ? self.rank : -1, self.life);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + length, sizeof(text) - (size_t)length, format, arguments);
    va_end(arguments);
    if (self.seat) /* into its log; the driver prints them all */
        fprintf(stderr, "%s\n", text);
    atomic_fetch_add(&board->faults[kind], 1);
    unsigned number = atomic_fetch_add(&board->fault_count, 1);
    if (number >= sizeof(board->texts) / sizeof(*board->texts))
        return;
    memcpy(board->texts[number], text, sizeof(text));
    atomic_store(&board->readable[number], true);
}

/* ---- Waits ------------------------------------------------------------------------------------------------------- */

/* NULL: more threads wait than there are places. Such a wait is not watched. */
faults_wait *wait_begins(int64_t limit_ms, const char *format, ...)
{
    for (int i = 0; i < WAITS_MOST; i++) {
        faults_wait *wait = &self.seat->waits[i];
        if (atomic_exchange(&wait->taken, true))
            continue;
        va_list arguments;
        va_start(arguments, format);
        vsnprintf(wait->text, sizeof(wait->text), format, arguments);
        va_end(arguments);
        atomic_store(&wait->shown, false);
        atomic_store(&wait->limit_ms, limit_ms < 0 ? DEFAULT_MS : limit_ms);
        atomic_store(&wait->since, atomic_load(&board->quiet) + 1);
        return wait;
    }
    return NULL;
}

void wait_ends(faults_wait *wait)
{
    if (!wait)
        return;
    atomic_store(&wait->since, 0);
    atomic_store(&wait->taken, false);
}

void board_check_waits(int rank)
{
    for (int i = 0; i < WAITS_MOST; i++) {
        faults_wait *wait = &board->seats[rank].waits[i];
        unsigned since = atomic_load(&wait->since), now = atomic_load(&board->quiet) + 1;
        int64_t age_ms = (int64_t)(now - since) * TICK_MS;
        if (!since || now < since || age_ms <= atomic_load(&wait->limit_ms) + PATIENCE_MS ||
            atomic_exchange(&wait->shown, true))
            continue;
        fault(FAULT_HANG, "rank %d: %s has not ended after %lld ms in which all was quiet", rank, wait->text,
              (long long)age_ms);
        atomic_fetch_add(&board->dump, 1);
    }
}

/* ---- Epochs ------------------------------------------------------------------------------------------------------ */

bool epoch_read(faults_epoch *out)
{
    *out = (faults_epoch){.number = atomic_load(&board->group_epoch)};
    for (int rank = 0; rank < board->size; rank++) {
        uint32_t life = out->lives[rank] = atomic_load(&board->group_lives[rank]);
        if (life)
            out->ranks[out->count++] = rank;
        out->ours |= rank == self.rank && life == self.life;
    }
    return out->number % 2 == 0 && out->number == atomic_load(&board->group_epoch);
}

bool epoch_is_current(const faults_epoch *e)
{
    return goes_on() && atomic_load(&board->group_epoch) == e->number;
}

bool epoch_was_disturbed(const faults_epoch *e, int rank)
{
    if (rank < 0 || rank >= board->size || !e->lives[rank])
        return false;
    const faults_life *life = &board->lives[e->lives[rank]];
    return atomic_load(&life->killed) || atomic_load(&life->disturbed) || atomic_load(&life->over);
}

bool epoch_is_undisturbed(const faults_epoch *e)
{
    for (int rank = 0; rank < board->size; rank++)
        if (epoch_was_disturbed(e, rank))
            return false;
    return !weft_agent_status(self.agent);
}

void epoch_says_dead(const faults_epoch *e, int rank, uint32_t incarnation)
{
    if (rank < 0 || rank >= board->size || !e->lives[rank])
        return;
    faults_life *life = &board->lives[e->lives[rank]];
    if (incarnation && atomic_load(&life->incarnation) == incarnation)
        atomic_store(&life->said_dead, true);
}
