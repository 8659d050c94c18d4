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
 * store, which passes on whom each worker suspects (DIAL in job/protocol/protocol.h). Where neither gets through, detector.c ends what waits.
 */
#include "net/net_internal.h"

#define STARVED_AFTER 4 /* attempts */

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
    return line_has_use(line) || line->wanted_ns > wfi_progress_now(&peer->net->progress);
}

/*
 * How long an attempt may take: twice as long after each that failed. Many workers that connect at once on few processors
 * would else tear down what is about to be answered, again and again.
 */
uint64_t wfi_line_limit(const wfi_line *line)
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
    (void)wfi_timer_set(&net->progress, &line->timer, wfi_now(net->progress.clock) + delay);
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

void wfi_line_failed(wfi_line *line, weft_status lack, const char *why)
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

void wfi_line_hello(const wfi_line *line, const wfi_conn *conn, wfi_hello *out)
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
        (void)wfi_timer_set(&net->progress, &net->turn_timer,
                            wfi_now(net->progress.clock)); /* not from in here: lanes are changing */
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
        wfi_line_failed(line, WEFT_ERR_MEMORY, "out of memory");
        return;
    }
    conn->attempt = true;
    net->attempts++;
    uint8_t data[WFI_CONNECT_DATA_MAX];
    wfi_hello hello;
    wfi_line_hello(line, conn, &hello);
    size_t size = wfi_hello_write(net->keys, wfi_peer_pair_key(peer), &hello, &peer->member, data);
    line->conn = conn;
    weft_status status = net->ops->connect(net->fabric, peer->member.address, peer->member.address_size, data, size,
                                           (void *)(uintptr_t)conn->id, &conn->lane);
    if (!status)
        status = wfi_conn_post_receives(conn);
    if (!status)
        status = wfi_timer_set(&net->progress, &line->timer, wfi_now(net->progress.clock) + wfi_line_limit(line));
    if (status) {
        wfi_conn_close(conn);
        wfi_line_failed(line, status, weft_status_text(status));
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
    uint64_t now = wfi_progress_now(&net->progress);
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

void wfi_attempt_failed(wfi_conn *conn, const char *why)
{
    wfi_line *line = conn->line;
    wfi_conn_close(conn);
    wfi_line_failed(line, WEFT_ERR_UNREACHABLE, why);
}

void wfi_line_broken(wfi_conn *conn)
{
    wfi_line *line = conn->line;
    if (conn->closed)
        return;
    if (!conn->up) {
        wfi_attempt_failed(conn, "the connection was refused");
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
    if (!idle || until > net->progress.now_ns) {
        uint64_t next = until > net->progress.now_ns ? until : net->progress.now_ns + WFI_BULK_IDLE_NS;
        (void)wfi_timer_set(&net->progress, &line->timer, next);
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
        wfi_attempt_failed(conn, "the connection was not answered");
    } else if (line->kind == WFI_BULK) {
        line_idle(line);
    }
}

void wfi_line_is_up(wfi_line *line)
{
    wfi_peer *peer = line->peer;
    wfi_net *net = peer->net;
    uint64_t now = wfi_now(net->progress.clock);
    line->conn->up = true;
    line->ask = line->ask && !line->conn->ours; /* where the peer had to dial it will have to again */
    line->why = NULL;
    line->wanted_ns = 0;
    wfi_attempt_over(line->conn);
    wfi_timer_clear(&net->progress, &line->timer);
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
    (void)wfi_timer_set(&net->progress, &line->timer, now + WFI_BULK_IDLE_NS);
    wfi_works_doubt(peer);
    wfi_works_pump(peer);
}

void wfi_peer_nonsense(wfi_conn *conn, const char *what)
{
    wfi_peer *peer = conn->line->peer;
    wfi_net_refused(peer->net, "peer %d: %s; its lane is closed", peer->rank, what);
    if (++peer->nonsense >= WFI_NONSENSE_MAX)
        wfi_peer_suspect(peer, what);
    wfi_line_broken(conn);
}
