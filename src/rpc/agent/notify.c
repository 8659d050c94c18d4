/* SPDX-License-Identifier: Apache-2.0 */
/*
 * notify.c - notifications, small messages that free themselves: DONE, CANCEL, TOOK, refusals, and those of references.
 *
 * LIMITS. The number of notifications about this worker's calls and references is limited by the number of these.
 * Answers to a peer's messages have no such limit: a peer that never acknowledges could make this worker keep any
 * number. So answers are counted, and a peer with ANSWERS_MAX unacknowledged answers gets only promised ones
 * (wfi_post_may_answer). A peer that acknowledges its messages never reaches that number. Calls are always answered:
 * see refuse.c.
 *
 * MEMORY. If a notification were lost, the peer would keep something forever. So notifications must not fail for lack
 * of memory. Code that will send one reserves it first (wfi_notifications_promise), where it can still fail: when a
 * call starts, a reference is made, or an item arrives. A message from a peer is accepted only if there is a
 * notification for its answer (wfi_notifications_ready). Sent notifications are kept for reuse: as many as are
 * promised, and at least FLOOR more.
 */
#include "base/alloc.h"
#include "rpc/agent/notify.h"

#include <stdlib.h>
#include <string.h>

#define ANSWERS_MAX 65536 /* to one peer */
#define FLOOR 32
#define KEEP_MOST ((size_t)8 * FLOOR) /* beyond what is promised */

typedef struct wfi_notification {
    wfi_message message; /* its link also links spare notifications */
    weft_agent *agent;
    size_t *counted;                              /* of an answer: the peer's counter; otherwise NULL */
    void (*arrived)(weft_agent *agent, int rank); /* may be NULL */
    int rank;
    uint8_t room[64];
} wfi_notification;

/* ---- Spare notifications ----------------------------------------------------------------------------------------- */

static wfi_notification *take_spare(weft_agent *agent)
{
    agent->spare_notification_count--;
    return wfi_container_of(wfi_list_pop_front(&agent->spare_notifications), wfi_notification, message.link);
}

static void keep_spare(weft_agent *agent, wfi_notification *notification)
{
    if (agent->spare_notification_count >= agent->promised_notifications + KEEP_MOST) {
        free(notification);
        return;
    }
    wfi_list_push_front(&agent->spare_notifications, &notification->message.link);
    agent->spare_notification_count++;
}

static bool have_spare(weft_agent *agent, size_t count)
{
    while (agent->spare_notification_count < count) {
        wfi_notification *notification = wfi_calloc(1, sizeof(*notification));
        if (!notification)
            return false;
        keep_spare(agent, notification);
    }
    return true;
}

weft_status wfi_notifications_promise(weft_agent *agent, unsigned count, unsigned *reserved)
{
    if (!have_spare(agent, agent->promised_notifications + count + FLOOR))
        return WEFT_ERR_MEMORY;
    agent->promised_notifications += count;
    *reserved += count;
    return WEFT_OK;
}

void wfi_notifications_release(weft_agent *agent, unsigned *reserved)
{
    agent->promised_notifications -= *reserved;
    *reserved = 0;
    while (agent->spare_notification_count > agent->promised_notifications + KEEP_MOST)
        free(take_spare(agent));
}

bool wfi_notifications_ready(weft_agent *agent)
{
    return agent->spare_notification_count > agent->promised_notifications ||
           have_spare(agent, agent->promised_notifications + 1);
}

void wfi_notifications_fini(weft_agent *agent)
{
    while (agent->spare_notification_count)
        free(take_spare(agent));
}

/* Takes a promised one; without a promise a new one or, if memory is out, one of FLOOR. */
static wfi_notification *take(weft_agent *agent, unsigned *reserved)
{
    if (reserved && *reserved) {
        --*reserved;
        agent->promised_notifications--;
        return take_spare(agent);
    }
    if (have_spare(agent, agent->promised_notifications + FLOOR + 1) ||
        agent->spare_notification_count > agent->promised_notifications)
        return take_spare(agent);
    return NULL;
}

/* ---- Posting ----------------------------------------------------------------------------------------------------- */

static void notification_done(wfi_message *message, weft_status status)
{
    wfi_notification *notification = wfi_container_of(message, wfi_notification, message);
    weft_agent *agent = notification->agent;
    void (*arrived)(weft_agent *, int) = status ? NULL : notification->arrived;
    int rank = notification->rank;
    agent->notifications--;
    if (notification->counted)
        --*notification->counted;
    keep_spare(agent, notification);
    if (arrived)
        arrived(agent, rank);
}

typedef struct how_to_post {
    bool urgent;
    size_t *counted;
    void (*arrived)(weft_agent *agent, int rank);
} how_to_post;

static weft_status post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved,
                        how_to_post how)
{
    wfi_assert_held(wfi_net_mutex(agent->net));
    assert(bytes->size <= sizeof((wfi_notification *)0)->room);
    wfi_notification *notification = take(agent, reserved);
    if (!notification) {
        wfi_agent_log(agent, WEFT_LOG_ERROR, 0,
                      "no memory for a message to rank %d: that worker may keep memory for too long",
                      wfi_peer_rank(to));
        return WEFT_ERR_MEMORY;
    }
    memcpy(notification->room, bytes->data, bytes->size);
    notification->agent = agent;
    notification->counted = how.counted;
    notification->arrived = how.arrived;
    notification->rank = wfi_peer_rank(to);
    notification->message = (wfi_message){.type = type,
                                          .urgent = how.urgent,
                                          .exempt = true, /* it was promised */
                                          .persistent = true,
                                          .head = notification->room,
                                          .head_size = bytes->size,
                                          .keeps = how.urgent ? 0 : sizeof(*notification),
                                          .done = notification_done};
    weft_status status = wfi_peer_send(to, &notification->message);
    if (status) {
        keep_spare(agent, notification);
        if (reserved) { /* it is promised again */
            agent->promised_notifications++;
            ++*reserved;
        }
        return status;
    }
    agent->notifications++;
    if (how.counted && ++*how.counted == ANSWERS_MAX)
        wfi_agent_log(agent, WEFT_LOG_WARN, 0, "rank %d does not acknowledge answers: it gets no more of them",
                      wfi_peer_rank(to));
    return WEFT_OK;
}

weft_status wfi_post(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved)
{
    return post(agent, to, type, bytes, reserved, (how_to_post){.urgent = true});
}

weft_status wfi_post_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved)
{
    return post(agent, to, type, bytes, reserved, (how_to_post){.urgent = false});
}

bool wfi_post_may_answer(const weft_agent *agent, const wfi_peer *to)
{
    return agent->peers[wfi_peer_rank(to)].answers < ANSWERS_MAX;
}

static void answer(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved,
                   bool urgent)
{
    size_t *answers = &agent->peers[wfi_peer_rank(to)].answers;
    if (reserved || wfi_post_may_answer(agent, to))
        (void)post(agent, to, type, bytes, reserved, (how_to_post){.urgent = urgent, .counted = answers});
}

void wfi_post_answer(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes, unsigned *reserved)
{
    answer(agent, to, type, bytes, reserved, true);
}

void wfi_post_answer_in_turn(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes)
{
    answer(agent, to, type, bytes, NULL, false);
}

weft_status wfi_post_then(weft_agent *agent, wfi_peer *to, uint8_t type, const wfi_writer *bytes,
                          void (*arrived)(weft_agent *agent, int rank))
{
    return post(agent, to, type, bytes, NULL, (how_to_post){.urgent = true, .arrived = arrived});
}
