/* SPDX-License-Identifier: Apache-2.0 */
/* post.c - small messages that own themselves: DONE, CANCEL, and those of references. */
#include "rpc/call.h"

#include <stdlib.h>
#include <string.h>

typedef struct wfi_letter {
    wfi_message message;
    weft_agent *agent;
    uint8_t room[64];
} wfi_letter;

static void letter_done(wfi_message *message, weft_status status)
{
    (void)status; /* a peer that is gone needs no letters */
    wfi_letter *letter = wfi_container_of(message, wfi_letter, message);
    letter->agent->letters--;
    free(letter);
}

static weft_status post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, bool urgent)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    wfi_letter *letter = calloc(1, sizeof *letter);
    if (!letter || bytes->size > sizeof letter->room) {
        wfi_log_agent(agent, WEFT_LOG_ERROR, 0,
                      "no memory for a message to rank %d: it may keep something for us too long", wfi_peer_rank(to));
        free(letter);
        return WEFT_ERR_MEMORY;
    }
    memcpy(letter->room, bytes->data, bytes->size);
    letter->agent = agent;
    letter->message = (wfi_message){
        .type = type, .urgent = urgent, .head = letter->room, .head_size = bytes->size, .done = letter_done};
    weft_status st = wfi_net_send(agent->net, to, &letter->message);
    if (st)
        free(letter);
    else
        agent->letters++;
    return st;
}

weft_status wfi_post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes)
{
    return post(agent, to, type, bytes, true);
}

weft_status wfi_post_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes)
{
    return post(agent, to, type, bytes, false);
}

void wfi_post_id(weft_agent *agent, wfi_peer *to, uint8_t type, uint64_t id)
{
    uint8_t room[8];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof room);
    wfi_write_u64(&writer, id);
    wfi_post(agent, to, type, &writer);
}
