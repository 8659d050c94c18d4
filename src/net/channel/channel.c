/* SPDX-License-Identifier: Apache-2.0 */
/*
 * channel.c - how a peer's lines get their connections, and lose them.
 *
 * Attempts are numbered per line (generation). When two cross, the higher number stays; equal numbers, the lower rank's.
 * A request that is not newer than the connection that is up was overtaken by it and is refused; a newer one means that
 * the peer lost what we still believe in, and replaces it. Both sides come to the same answer, whatever the order in
 * which they see things.
 *
 * ONE WAY. A firewall may let one of two workers dial the other and not the reverse. Where an attempt at a bulk lane fails, or takes
 * long (detector.c), a note on the control lane asks the peer to try as well; the peer does so for WFI_WANTED_NS, though it needs no
 * such lane itself. Once that was how the lane came up, the next attempts ask at once. A control lane is asked for by way of the
 * store, which passes on whom each worker suspects (DIAL in job/protocol/wire.h). Where neither gets through, detector.c ends what waits.
 */
#include "net/net_internal.h"

#define STARVED_AFTER 4 /* attempts */
#define JUMP_MAX (UINT32_C(1) << 30)

/* For our own sake, and not because the peer wants it. */
static bool line_has_use(const wfi_line *line)
{
    const wfi_peer *peer = line->peer;
    return line->kind == WFI_CONTROL ? wfi_peer_has_to_send(peer) : !wfi_list_empty(&peer->works);
}

static bool line_needed(const wfi_line *line)
{
    const wfi_peer *peer = line->peer;
    if (peer->status || peer->net->closing)
        return false;
    return line_has_use(line) || line->wanted_ns > wfi_net_now(peer->net);
}

/*
 * How long an attempt may take: twice as long after each that failed. Many workers that connect at once on few processors
 * would else tear down what is about to be answered, again and again.
 */
static uint64_t attempt_limit(const wfi_line *line)
{
    return WFI_CONNECT_LIMIT_NS << (line->failures < WFI_CONNECT_DOUBLINGS ? line->failures : WFI_CONNECT_DOUBLINGS);
}

static void line_retry(wfi_line *line)
{
    wfi_net *net = line->peer->net;
    if (line->conn || !line_needed(line))
        return;
    uint64_t delay = 0;
    if (line->failures) {
        unsigned doublings = line->failures > 10 ? 10 : line->failures - 1;
        delay = WFI_BACKOFF_FIRST_NS << doublings;
        delay = delay > WFI_BACKOFF_LAST_NS ? WFI_BACKOFF_LAST_NS : delay;
    }
    (void)wfi_net_timer_set(net, &line->timer, wfi_now(net->clock) + delay);
}

/*
 * We lack what a connection takes, descriptors or memory, and not for the first time: what has not left yet ends with that,
 * instead of waiting for what we cannot even ask for. What may have arrived goes on waiting for its answer.
 */
static void line_starved(wfi_line *line, weft_status why)
{
    if (line->failures < STARVED_AFTER)
        return;
    if (line->kind == WFI_CONTROL)
        wfi_peer_fail_queued(line->peer, why);
    else
        wfi_works_fail(line->peer, why);
}

/* `lack`: what we ourselves lacked, WEFT_ERR_SYSTEM or _MEMORY; any other status is the peer's doing, or the network's. `why`
 * lasts for ever. */
static void line_failed(wfi_line *line, weft_status lack, const char *why)
{
    bool ours = lack == WEFT_ERR_SYSTEM || lack == WEFT_ERR_MEMORY;
    line->failures++;
    line->why = why;
    line->ask = line->kind == WFI_BULK;
    if ((line->failures & (line->failures - 1)) == 0) /* the 1st, 2nd, 4th, ...: it may go on for ever */
        wfi_log_net(line->peer->net, WEFT_LOG_DEBUG, "no %s lane to peer %d, %u times in a row: %s",
                    line->kind == WFI_BULK ? "bulk" : "control", line->peer->rank, line->failures, why);
    if (ours)
        line_starved(line, lack);
    else if (line->failures >= 2 && line_has_use(line)) /* or two who cannot dial would send each other for ever */
        wfi_peer_suspect(line->peer, why);
    line_retry(line);
}

static void line_hello(const wfi_line *line, const wfi_conn *conn, wfi_hello *out)
{
    const wfi_net *net = line->peer->net;
    *out = (wfi_hello){.kind = line->kind,
                       .answer = !conn->ours,
                       .rank = net->rank,
                       .incarnation = net->self.incarnation,
                       .generation = conn->generation,
                       .nonce = conn->nonce,
                       .asked = conn->ours ? 0 : conn->peer_nonce,
                       .position = line->kind == WFI_CONTROL ? line->peer->received : line->peer->ended};
}

/* ---- Turns ----------------------------------------------------------------------------------------------------- */

/*
 * Few attempts are under way at a time, of those that failed before fewer still: peers that do not answer keep nobody from
 * those that do, and hundreds of workers that connect to each other at once do not wear each other out.
 */
static bool has_turn(const wfi_line *line)
{
    return line->peer->net->attempts < (line->failures ? WFI_ATTEMPTS_AGAIN : WFI_ATTEMPTS_MAX);
}

static void await_turn(wfi_line *line)
{
    wfi_net *net = line->peer->net;
    if (wfi_list_empty(&line->turn))
        wfi_list_push_back(line->failures ? &net->turns_again : &net->turns, &line->turn);
}

void wfi_attempt_over(wfi_conn *conn)
{
    wfi_net *net = conn->net;
    if (!conn->attempt)
        return;
    conn->attempt = false;
    net->attempts--;
    bool waiting = !wfi_list_empty(&net->turns) || !wfi_list_empty(&net->turns_again);
    if (waiting && !net->turn_timer.heap_index && !net->closing)
        (void)wfi_net_timer_set(net, &net->turn_timer, wfi_now(net->clock)); /* not from in here: lanes are changing */
}

static void give_turns(wfi_net *net, wfi_list *turns, unsigned limit)
{
    while (net->attempts < limit && !wfi_list_empty(turns)) {
        wfi_line *line = wfi_container_of(turns->next, wfi_line, turn);
        wfi_list_remove(&line->turn);
        wfi_line_want(line);
    }
}

void wfi_turns_due(wfi_timer *timer)
{
    wfi_net *net = wfi_container_of(timer, wfi_net, turn_timer);
    give_turns(net, &net->turns, WFI_ATTEMPTS_MAX);
    give_turns(net, &net->turns_again, WFI_ATTEMPTS_AGAIN);
}

/* ---- Attempts ---------------------------------------------------------------------------------------------------- */

static void line_connect(wfi_line *line)
{
    wfi_peer *peer = line->peer;
    wfi_net *net = peer->net;
    if (!has_turn(line)) {
        await_turn(line);
        return;
    }
    wfi_conn *conn = wfi_conn_create(line, true, ++line->generation);
    if (!conn) {
        line_failed(line, WEFT_ERR_MEMORY, "out of memory");
        return;
    }
    conn->attempt = true;
    net->attempts++;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    wfi_hello hello;
    line_hello(line, conn, &hello);
    size_t size = wfi_hello_write(net->keys, wfi_peer_pair_key(peer), &hello, &peer->member, data);
    line->conn = conn;
    weft_status status = net->ops->connect(net->fabric, peer->member.address, peer->member.address_size, data, size,
                                           (void *)(uintptr_t)conn->id, &conn->lane);
    if (!status)
        status = wfi_conn_post_receives(conn);
    if (!status)
        status = wfi_net_timer_set(net, &line->timer, wfi_now(net->clock) + attempt_limit(line));
    if (status) {
        wfi_conn_close(conn);
        line_failed(line, status, weft_status_text(status));
    }
}

void wfi_line_want(wfi_line *line)
{
    if (line->conn || line->timer.heap_index || !line_needed(line))
        return;
    if (line->ask && !wfi_list_empty(&line->peer->works))
        wfi_line_ask(line);
    line_connect(line);
}

void wfi_line_ask(wfi_line *line)
{
    line->ask = true;
    wfi_note_dial(line->peer);
}

/*
 * A bulk lane that is up here is one that the peer has lost, unless the two crossed on their way. A control lane may also be
 * wanted by a peer to whom we were slow to answer: a ping finds out, and detector.c breaks the lane if nobody acknowledges it.
 */
void wfi_line_wanted(wfi_line *line)
{
    wfi_net *net = line->peer->net;
    wfi_conn *up = wfi_line_up(line);
    uint64_t now = wfi_net_now(net);
    if (up && line->kind == WFI_CONTROL) {
        wfi_note_ping(line->peer);
        return;
    }
    if (up && now - line->used_ns < WFI_CONNECT_LIMIT_NS)
        return;
    line->wanted_ns = now + WFI_WANTED_NS;
    if (up)
        wfi_line_broken(up);
    wfi_line_want(line);
}

static void attempt_failed(wfi_conn *conn, const char *why)
{
    wfi_line *line = conn->line;
    wfi_conn_close(conn);
    line_failed(line, WEFT_ERR_UNREACHABLE, why);
}

void wfi_line_broken(wfi_conn *conn)
{
    wfi_line *line = conn->line;
    if (conn->closed)
        return;
    if (!conn->up) {
        attempt_failed(conn, "the connection was refused");
        return;
    }
    wfi_log_net(line->peer->net, WEFT_LOG_DEBUG, "%s lane to peer %d broke",
                line->kind == WFI_BULK ? "bulk" : "control", line->peer->rank);
    line->lost = true;
    line->failures = conn->useful ? 0 : line->failures + 1;
    wfi_conn_close(conn);
    line_retry(line);
}

void wfi_line_end(wfi_line *line)
{
    if (!line->conn)
        return;
    if (line->kind == WFI_BULK) {
        line->peer->ended++;
        line->peer->excused = true;
    }
    wfi_conn_close(line->conn);
}

/* A bulk lane that nobody uses any more goes; either side may see that first. */
static void line_idle(wfi_line *line)
{
    wfi_peer *peer = line->peer;
    wfi_net *net = peer->net;
    uint64_t until = line->used_ns + WFI_BULK_IDLE_NS;
    bool idle = wfi_list_empty(&peer->works) && wfi_list_empty(&peer->exposed);
    if (!idle || until > net->now_ns) {
        uint64_t next = until > net->now_ns ? until : net->now_ns + WFI_BULK_IDLE_NS;
        (void)wfi_net_timer_set(net, &line->timer, next);
        return;
    }
    wfi_line_end(line);
}

void wfi_line_timer(wfi_timer *timer)
{
    wfi_line *line = wfi_container_of(timer, wfi_line, timer);
    wfi_conn *conn = line->conn;
    if (!conn) {
        wfi_line_want(line);
    } else if (!conn->up) {
        attempt_failed(conn, "the connection was not answered");
    } else if (line->kind == WFI_BULK) {
        line_idle(line);
    }
}

static void line_is_up(wfi_line *line)
{
    wfi_peer *peer = line->peer;
    wfi_net *net = peer->net;
    uint64_t now = wfi_now(net->clock);
    line->conn->up = true;
    line->ask = line->ask && !line->conn->ours; /* where the peer had to dial it will have to again */
    line->why = NULL;
    line->wanted_ns = 0;
    wfi_attempt_over(line->conn);
    wfi_net_timer_clear(net, &line->timer);
    bool excused = line->kind == WFI_BULK && peer->excused;
    if (excused)
        line->failures = 0;
    else if (line->lost)
        net->stats.lanes_lost++;
    line->lost = false;
    if (line->kind == WFI_BULK)
        peer->excused = false;
    line->used_ns = now;
    peer->heard_ns = now;
    wfi_reach_regained(peer);
    if (line->kind == WFI_CONTROL) {
        wfi_peer_flush(peer);
        return;
    }
    (void)wfi_net_timer_set(net, &line->timer, now + WFI_BULK_IDLE_NS);
    wfi_works_doubt(peer);
    wfi_works_pump(peer);
}

/* ---- Events ---------------------------------------------------------------------------------------------------- */

/* Whether the peer's request takes the place of what the line has. */
static bool request_wins(const wfi_line *line, uint32_t generation)
{
    const wfi_conn *conn = line->conn;
    if (!conn)
        return true;
    if (generation != conn->generation)
        return generation > conn->generation;
    return conn->ours && !conn->up && line->peer->rank < line->peer->net->rank;
}

static weft_status take_request(wfi_line *line, wfi_connect_request *request, const wfi_hello *asked)
{
    wfi_net *net = line->peer->net;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    wfi_hello hello;
    wfi_conn *conn = wfi_conn_create(line, false, asked->generation);
    if (!conn) {
        net->ops->reject(net->fabric, request);
        return WEFT_ERR_MEMORY;
    }
    conn->peer_nonce = asked->nonce;
    wfi_conn_make_keys(conn);
    line_hello(line, conn, &hello);
    size_t size = wfi_hello_write(net->keys, wfi_peer_pair_key(line->peer), &hello, &line->peer->member, data);
    line->conn = conn;
    weft_status status = net->ops->accept(net->fabric, request, data, size, (void *)(uintptr_t)conn->id, &conn->lane);
    if (!status)
        status = wfi_conn_post_receives(conn);
    if (!status)
        status = wfi_net_timer_set(net, &line->timer, wfi_now(net->clock) + attempt_limit(line));
    if (status)
        wfi_conn_close(conn);
    return status;
}

static bool position_makes_sense(const wfi_peer *peer, const wfi_hello *hello)
{
    if (hello->kind == WFI_BULK)
        return true; /* a count of its own */
    return hello->position >= peer->acknowledged && hello->position <= peer->sequence;
}

/* What the hello says besides. */
static void take_position(wfi_peer *peer, const wfi_hello *hello)
{
    if (hello->kind == WFI_CONTROL) {
        wfi_peer_acknowledge(peer, hello->position);
        return;
    }
    peer->excused = peer->excused || hello->position != peer->ended_by_peer;
    peer->ended_by_peer = hello->position;
}

/*
 * Who says that it asks; NULL if the answer is no. One that is newer than what the store has told us asks again, and by then we have
 * been told, its public key too; one that is older is dead, and whoever speaks in its name gets nowhere.
 */
static wfi_peer *asker(wfi_net *net, const wfi_hello *hello)
{
    wfi_peer *peer = net->peers[hello->rank];
    if (peer && hello->incarnation == peer->member.incarnation)
        return peer;
    if (peer && hello->incarnation < peer->member.incarnation) {
        wfi_net_refused(net, "a connection of an incarnation of worker %d that is over was refused", hello->rank);
    }
    return NULL;
}

/* A worker numbers its requests upwards: an old number is a recording, a very large one wants to use the numbers up. */
static bool is_new(const wfi_line *line, uint32_t generation)
{
    return generation > line->asked && (generation < line->generation || generation - line->generation < JUMP_MAX);
}

/* Who asks, and has proved it; NULL: the answer is no. */
static wfi_peer *proven_asker(wfi_net *net, const wfi_event *event, wfi_hello *hello)
{
    if (!wfi_hello_read(net, event->data, event->data_size, 0, hello) || hello->answer) {
        wfi_net_refused(net, "a connection without proof of the job's key was refused");
        return NULL;
    }
    wfi_peer *peer = asker(net, hello);
    const uint8_t *pair_key = peer ? wfi_peer_pair_key(peer) : NULL;
    if (!pair_key || wfi_hello_is_proven(pair_key, &net->self, event->data, 0))
        return pair_key ? peer : NULL;
    wfi_net_refused(net, "a connection in the name of worker %d, without proof of its key, was refused", hello->rank);
    return NULL;
}

static void on_request(wfi_net *net, const wfi_event *event)
{
    wfi_hello hello;
    wfi_peer *peer = proven_asker(net, event, &hello);
    if (!peer) {
        net->ops->reject(net->fabric, event->request);
        return;
    }
    wfi_line *line = &peer->lines[hello.kind];
    if (!is_new(line, hello.generation)) {
        wfi_net_refused(net, "a connection that was asked for before was refused; worker %d", hello.rank);
        net->ops->reject(net->fabric, event->request);
        return;
    }
    wfi_silent_excuse(net, hello.generation - line->asked - 1);
    line->asked = hello.generation;
    if (peer->status || net->closing || !position_makes_sense(peer, &hello) || !request_wins(line, hello.generation)) {
        net->ops->reject(net->fabric, event->request);
        return;
    }
    if (line->conn) {
        line->lost = line->lost || line->conn->up;
        wfi_conn_close(line->conn);
    }
    if (hello.generation > line->generation)
        line->generation = hello.generation;
    take_position(peer, &hello);
    weft_status status = take_request(line, event->request, &hello);
    if (status)
        line_failed(line, status, "a connection could not be taken");
}

static void on_connected(wfi_net *net, wfi_conn *conn, const wfi_event *event)
{
    wfi_line *line = conn->line;
    wfi_peer *peer = line->peer;
    if (conn->ours) {
        wfi_hello hello;
        bool right = wfi_hello_read(net, event->data, event->data_size, conn->nonce, &hello) && hello.answer &&
                     wfi_hello_is_proven(wfi_peer_pair_key(peer), &net->self, event->data, conn->nonce) &&
                     hello.rank == peer->rank && hello.incarnation == peer->member.incarnation &&
                     hello.kind == line->kind && hello.generation == conn->generation;
        if (!right || !position_makes_sense(peer, &hello)) {
            wfi_net_refused(net, "the answer to a connection had no proof of worker %d's key", peer->rank);
            attempt_failed(conn, "the one who answered could not prove its key");
            return;
        }
        take_position(peer, &hello);
        conn->peer_nonce = hello.nonce;
        wfi_conn_make_keys(conn);
    }
    conn->outstanding++; /* keeps it while it may close under us */
    line_is_up(line);
    wfi_frames_early(conn);
    wfi_conn_reported(conn);
}

void wfi_net_event(wfi_net *net, const wfi_event *event)
{
    wfi_assert_held(&net->lock);
    if (event->kind == WFI_EVENT_REQUEST) {
        on_request(net, event);
        return;
    }
    if (event->kind == WFI_EVENT_STRANGERS) {
        wfi_silent_came(net, event->count);
        return;
    }
    wfi_conn *conn = wfi_map_get(&net->conns, (uint64_t)(uintptr_t)event->lane_user);
    if (!conn)
        return;
    if (event->kind == WFI_EVENT_CONNECTED)
        on_connected(net, conn, event);
    else if (!conn->up && !conn->closed && event->why)
        attempt_failed(conn, event->why);
    else
        wfi_line_broken(conn);
}
