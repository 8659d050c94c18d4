/* SPDX-License-Identifier: Apache-2.0 */
/* pieces.c - ranges of memory, in steps of at most a chunk. */
#include "coll/algorithm/algorithm.h"

#define ROOMS 4 /* of a chunk each, in scratch */

#define FOR_PIECES(at, piece, size, collective)                                                                        \
    for (size_t at = 0, piece;                                                                                         \
         at < (size) && ((piece) = (size)-at < (collective)->chunk ? (size)-at : (collective)->chunk); at += (piece))

void wfi_pieces_send(const wfi_collective *collective, wfi_schedule *schedule, size_t peer, wfi_operand from,
                     size_t size)
{
    FOR_PIECES (at, piece, size, collective)
        wfi_schedule_send(schedule, wfi_member_at(collective, peer), wfi_beyond(from, at), piece);
}

void wfi_pieces_recv(const wfi_collective *collective, wfi_schedule *schedule, size_t peer, wfi_operand to, size_t size)
{
    FOR_PIECES (at, piece, size, collective)
        wfi_schedule_recv(schedule, wfi_member_at(collective, peer), wfi_beyond(to, at), piece);
}

void wfi_pieces_recv_combine(const wfi_collective *collective, wfi_schedule *schedule, size_t peer, wfi_operand room,
                             wfi_operand to, wfi_operand b, size_t size)
{
    FOR_PIECES (at, piece, size, collective) {
        wfi_operand theirs = wfi_beyond(room, at), ours = wfi_beyond(b, at);
        wfi_schedule_recv(schedule, wfi_member_at(collective, peer), theirs, piece);
        wfi_schedule_combine(schedule, wfi_beyond(to, at), theirs, ours, piece);
    }
}

/*
 * Received data pass through the same few chunks of scratch, so that they are added while they are in the cache. Each
 * piece uses the next chunk, so the next round's data can arrive while this round's are being added.
 */
void wfi_pieces_recv_add(const wfi_collective *collective, wfi_schedule *schedule, size_t peer, wfi_operand to,
                         size_t size)
{
    size_t bytes = wfi_part_bytes(collective), most = bytes < collective->chunk ? bytes : collective->chunk;
    FOR_PIECES (at, piece, size, collective) {
        wfi_operand room = wfi_at(WFI_SCRATCH, schedule->rooms++ % ROOMS * ((most + 63) / 64 * 64));
        wfi_schedule_recv(schedule, wfi_member_at(collective, peer), room, piece);
        wfi_schedule_combine(schedule, wfi_beyond(to, at), room, wfi_beyond(to, at), piece);
    }
}

void wfi_pieces_copy(const wfi_collective *collective, wfi_schedule *schedule, wfi_operand to, wfi_operand from,
                     size_t size)
{
    FOR_PIECES (at, piece, size, collective)
        wfi_schedule_copy(schedule, wfi_beyond(to, at), wfi_beyond(from, at), piece);
}

void wfi_pieces_divide(const wfi_collective *collective, wfi_schedule *schedule, wfi_operand at, size_t size)
{
    FOR_PIECES (from, piece, size, collective)
        wfi_schedule_divide(schedule, wfi_beyond(at, from), piece);
}
