/* SPDX-License-Identifier: Apache-2.0 */
/*
 * post.c - small messages that own themselves: DONE, CANCEL, and those of references.
 *
 * Letters that we send of ourselves are as many as we have calls and references. Those that answer what a peer said are as
 * many as it likes, and one that takes none of them would make us keep them all: so these are counted, and beyond ANSWERS_MAX
 * what the peer said goes unanswered. One that takes what is sent to it never has so many.
 */
#include "rpc/call.h"

#include "rpc/budget.h"

#include <stdlib.h>
#include <string.h>

#define ANSWERS_MAX WFI_KEPT_REPLIES_MAX /* to one peer */

typedef struct wfi_letter {
    wfi_message message;
    weft_agent *agent;
    size_t *counted; /* among the answers to somebody; NULL: it is none */
    uint8_t room[64];
} wfi_letter;

static void letter_done(wfi_message *message, weft_status status)
{
    (void)status; /* a peer that is gone needs no letters */
    wfi_letter *letter = wfi_container_of(message, wfi_letter, message);
    letter->agent->letters--;
    if (letter->counted)
        --*letter->counted;
    free(letter);
}

static weft_status post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, bool urgent,
                        size_t *counted)
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
    letter->counted = counted;
    letter->message = (wfi_message){
        .type = type, .urgent = urgent, .head = letter->room, .head_size = bytes->size, .done = letter_done};
    weft_status st = wfi_net_send(agent->net, to, &letter->message);
    if (st) {
        free(letter);
        return st;
    }
    agent->letters++;
    if (counted && ++*counted == ANSWERS_MAX)
        wfi_log_agent(agent, WEFT_LOG_WARN, 0, "rank %d asks and takes no answers: it gets no more of them",
                      wfi_peer_rank(to));
    return WEFT_OK;
}

weft_status wfi_post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes)
{
    return post(agent, to, type, bytes, true, NULL);
}

weft_status wfi_post_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes)
{
    return post(agent, to, type, bytes, false, NULL);
}

bool wfi_may_answer(const weft_agent *agent, const wfi_peer *to)
{
    return agent->peers[wfi_peer_rank(to)].answers < ANSWERS_MAX;
}

void wfi_post_answer(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes)
{
    if (wfi_may_answer(agent, to))
        (void)post(agent, to, type, bytes, true, &agent->peers[wfi_peer_rank(to)].answers);
}

void wfi_post_id(weft_agent *agent, wfi_peer *to, uint8_t type, uint64_t id)
{
    uint8_t room[8];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof room);
    wfi_write_u64(&writer, id);
    wfi_post(agent, to, type, &writer);
}
