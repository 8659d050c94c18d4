/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - small messages that own themselves: DONE, CANCEL, TOOK, refusals, and those of references.
 *
 * BOUNDS. Letters that we send of ourselves are as many as we have calls and references. Those that answer what a peer said are
 * as many as it likes, and one that takes none of them would make us keep them all: so these are counted, and beyond ANSWERS_MAX
 * what the peer said goes unanswered, but for what was promised. One that takes what is sent to it never has so many. Calls are
 * always answered: see refuse.c.
 *
 * MEMORY. A lost one of these would leave something with a peer for ever, so they must not fail for want of memory. Whoever
 * will have to send some has them promised first, while it can still fail (a call, a reference, a part that comes in), and
 * a message from a peer is taken in only if there is a letter for its answer (wfi_letters_ready). Letters that came back are
 * kept for that, FLOOR of them beyond what is promised.
 */
#include "base/alloc.h"
#include "rpc/agent/notify.h"

#include <stdlib.h>
#include <string.h>

#define ANSWERS_MAX 65536 /* to one peer */
#define FLOOR 32
#define KEEP_MOST ((size_t)8 * FLOOR) /* beyond what is promised */

typedef struct wfi_letter {
    wfi_message message; /* its link is also that of the spare ones */
    weft_agent *agent;
    size_t *counted;                              /* among the answers to somebody; NULL: it is none */
    void (*arrived)(weft_agent *agent, int rank); /* NULL: nobody asks */
    int rank;
    uint8_t room[64];
} wfi_letter;

/* ---- Spare letters ------------------------------------------------------------------------------------------------- */

static wfi_letter *pop(weft_agent *agent)
{
    agent->spare_letter_count--;
    return wfi_container_of(wfi_list_pop_front(&agent->spare_letters), wfi_letter, message.link);
}

static void keep(weft_agent *agent, wfi_letter *letter)
{
    if (agent->spare_letter_count >= agent->promised_letters + KEEP_MOST) {
        free(letter);
        return;
    }
    wfi_list_push_front(&agent->spare_letters, &letter->message.link);
    agent->spare_letter_count++;
}

static bool have(weft_agent *agent, size_t count)
{
    while (agent->spare_letter_count < count) {
        wfi_letter *letter = wfi_calloc(1, sizeof *letter);
        if (!letter)
            return false;
        keep(agent, letter);
    }
    return true;
}

weft_status wfi_letters_promise(weft_agent *agent, unsigned count, unsigned *share)
{
    if (!have(agent, agent->promised_letters + count + FLOOR))
        return WEFT_ERR_MEMORY;
    agent->promised_letters += count;
    *share += count;
    return WEFT_OK;
}

void wfi_letters_release(weft_agent *agent, unsigned *share)
{
    agent->promised_letters -= *share;
    *share = 0;
    while (agent->spare_letter_count > agent->promised_letters + KEEP_MOST)
        free(pop(agent));
}

bool wfi_letters_ready(weft_agent *agent)
{
    return agent->spare_letter_count > agent->promised_letters || have(agent, agent->promised_letters + 1);
}

void wfi_letters_fini(weft_agent *agent)
{
    while (agent->spare_letter_count)
        free(pop(agent));
}

/* One that was promised; else a new one, while there is memory; else one of the floor's. */
static wfi_letter *take(weft_agent *agent, unsigned *share)
{
    if (share && *share) {
        --*share;
        agent->promised_letters--;
        return pop(agent);
    }
    if (have(agent, agent->promised_letters + FLOOR + 1) || agent->spare_letter_count > agent->promised_letters)
        return pop(agent);
    return NULL;
}

/* ---- Posting ------------------------------------------------------------------------------------------------------- */

static void letter_done(wfi_message *message, weft_status status)
{
    wfi_letter *letter = wfi_container_of(message, wfi_letter, message);
    weft_agent *agent = letter->agent;
    void (*arrived)(weft_agent *, int) = status ? NULL : letter->arrived; /* a peer that is gone needs no letters */
    int rank = letter->rank;
    agent->letters--;
    if (letter->counted)
        --*letter->counted;
    keep(agent, letter);
    if (arrived)
        arrived(agent, rank);
}

typedef struct how_to_post {
    bool urgent;
    size_t *counted;
    void (*arrived)(weft_agent *agent, int rank);
} how_to_post;

static weft_status post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *share,
                        how_to_post how)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    assert(bytes->size <= sizeof((wfi_letter *)0)->room);
    wfi_letter *letter = take(agent, share);
    if (!letter) {
        wfi_log_agent(agent, WEFT_LOG_ERROR, 0,
                      "no memory for a message to rank %d: it may keep something for us too long", wfi_peer_rank(to));
        return WEFT_ERR_MEMORY;
    }
    memcpy(letter->room, bytes->data, bytes->size);
    letter->agent = agent;
    letter->counted = how.counted;
    letter->arrived = how.arrived;
    letter->rank = wfi_peer_rank(to);
    letter->message = (wfi_message){.type = type,
                                    .urgent = how.urgent,
                                    .owed = true, /* it was promised */
                                    .lasts = true,
                                    .head = letter->room,
                                    .head_size = bytes->size,
                                    .keeps = how.urgent ? 0 : sizeof *letter,
                                    .done = letter_done};
    weft_status st = wfi_peer_send(to, &letter->message);
    if (st) {
        keep(agent, letter);
        if (share) { /* it goes back where it came from, or is promised from now on */
            agent->promised_letters++;
            ++*share;
        }
        return st;
    }
    agent->letters++;
    if (how.counted && ++*how.counted == ANSWERS_MAX)
        wfi_log_agent(agent, WEFT_LOG_WARN, 0, "rank %d asks and takes no answers: it gets no more of them",
                      wfi_peer_rank(to));
    return WEFT_OK;
}

weft_status wfi_post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *share)
{
    return post(agent, to, type, bytes, share, (how_to_post){.urgent = true});
}

weft_status wfi_post_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *share)
{
    return post(agent, to, type, bytes, share, (how_to_post){.urgent = false});
}

bool wfi_may_answer(const weft_agent *agent, const wfi_peer *to)
{
    return agent->peers[wfi_peer_rank(to)].answers < ANSWERS_MAX;
}

void wfi_post_answer(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *share)
{
    size_t *answers = &agent->peers[wfi_peer_rank(to)].answers;
    if (share || wfi_may_answer(agent, to))
        (void)post(agent, to, type, bytes, share, (how_to_post){.urgent = true, .counted = answers});
}

weft_status wfi_post_and_hear(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes,
                              void (*arrived)(weft_agent *agent, int rank))
{
    return post(agent, to, type, bytes, NULL, (how_to_post){.urgent = true, .arrived = arrived});
}

void wfi_post_id(weft_agent *agent, wfi_peer *to, uint8_t type, uint64_t id, unsigned *share)
{
    uint8_t room[8];
    wfi_writer writer;
    wfi_writer_init(&writer, room, sizeof room);
    wfi_write_u64(&writer, id);
    wfi_post(agent, to, type, &writer, share);
}
