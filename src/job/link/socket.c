/* SPDX-License-Identifier: Apache-2.0 */
/*
 * socket.c - the link to the store over TCP, with its own thread or without one (wfi_rendezvous_pump).
 *
 * The thread that calls wfi_rendezvous_open connects repeatedly, because rank 0 may start later; it joins and reads
 * the answer. From then on the link belongs to its own thread, or to the thread that pumps it: reading, heartbeats,
 * upcalls. Other threads only send on the current connection, under the lock. To resume, the link connects to the
 * address that it found first: the name is not resolved again, because that might block.
 */
#include "base/thread.h"
#include "base/alloc.h"
#include "job/launch/launch.h"
#include "job/link/connection.h"
#include "job/link/link.h"
#include "job/store/server.h"

#include "base/descriptors.h"
#include "base/list.h"
#include "base/text/log.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sodium.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_MS 1000000ull
#define RETRY_FIRST_MS 2
#define SAY_FIRST_MS 5000
#define RETRY_LAST_MS 100
#define CONNECT_NS (5000 * NS_PER_MS)      /* for one attempt to connect, if packets are dropped */
#define ONE_OF_PORTS_NS (1000 * NS_PER_MS) /* for an answer of one of several ports, before the next is tried */
#define ANSWER_GRACE_MS 2000      /* added to the timeout if the store answers: its refusal names the missing ranks */
#define FAREWELL_MS 1000          /* to send the goodbye */
#define REFUSING_MS 2000          /* for the other workers to learn that rank 0 cannot join */
#define PENDING_RETRY_NS 1000000u /* pumped: how often unsent bytes and a connecting wire are checked */

typedef struct socket_link {
    wfi_rendezvous base;
    int wake_fd;
    bool threaded;
    pthread_t thread;
    atomic_bool released, stopping; /* open has returned; close has begun */
    uint64_t leave_by_ns;           /* once close has begun */
    wfi_store_server *server;       /* rank 0 */
    wfi_endpoint store;             /* the address where it was found */
    wfi_pipe pipes[2];              /* the current one's output and descriptor: under base.lock */
} socket_link;

static socket_link *socket_of(wfi_rendezvous *link)
{
    return wfi_container_of(link, socket_link, base);
}

static void wake(socket_link *link)
{
    uint64_t one = 1;
    if (link->wake_fd >= 0)
        (void)!write(link->wake_fd, &one, sizeof(one));
}

/* ---- What the link asks for ------------------------------------------------------------------------------------ */

static void socket_wake(wfi_rendezvous *base)
{
    wake(socket_of(base));
}

static void socket_send(wfi_rendezvous *base, wfi_which which, const uint8_t *frame, size_t size)
{
    socket_link *link = socket_of(base);
    wfi_pipe *pipe = &link->pipes[which];
    wfi_pipe_send(pipe, frame, size);
    if (pipe->output_size > 0 || pipe->overflowed)
        wake(link);
}

static void socket_dial(wfi_rendezvous *base)
{
    socket_link *link = socket_of(base);
    int errnum = wfi_pipe_dial(&link->pipes[WFI_NEXT], &link->store);
    if (errnum)
        wfi_link_wire_lost(base, WFI_NEXT, errnum == ECONNREFUSED, strerrordesc_np(errnum));
}

static void socket_hang_up(wfi_rendezvous *base, wfi_which which)
{
    wfi_pipe_close(&socket_of(base)->pipes[which]);
}

static void socket_adopt(wfi_rendezvous *base)
{
    wfi_pipe *pipes = socket_of(base)->pipes;
    wfi_pipe_close(&pipes[WFI_CURRENT]);
    pipes[WFI_CURRENT] = pipes[WFI_NEXT];
    pipes[WFI_CURRENT].input_limit = WFI_STORE_SMALL_MAX; /* the table has arrived */
    wfi_pipe_init(&pipes[WFI_NEXT]);
}

static void socket_random(wfi_rendezvous *base, void *out, size_t size)
{
    (void)base;
    randombytes_buf(out, size);
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

/*
 * Processes a copy of one frame: an upcall may take long, and the wire may change meanwhile. False: there is no
 * frame.
 */
static bool handle_frame(socket_link *link, wfi_which which)
{
    wfi_pipe *pipe = &link->pipes[which];
    uint8_t small[WFI_STORE_SMALL_MAX];
    int64_t size = pipe->fd < 0 ? 0 : wfi_pipe_frame(pipe);
    if (size < 0)
        wfi_link_protocol_error(&link->base, which);
    if (size <= 0)
        return false;
    uint8_t *frame = (size_t)size <= sizeof(small) ? small : malloc((size_t)size);
    if (!frame) {
        wfi_link_wire_lost(&link->base, which, false, "out of memory for the store's messages");
        return false;
    }
    memcpy(frame, pipe->input, (size_t)size);
    wfi_pipe_drop(pipe, (size_t)size);
    wfi_link_received(&link->base, which, frame, (size_t)size);
    if (frame != small)
        free(frame);
    return true;
}

/* Reads everything available before the clock is read, so that a worker that was stopped learns the true reason. */
static void read_all(socket_link *link, wfi_which which)
{
    const char *why = NULL;
    int got = 1;
    while (got > 0 && !wfi_link_is_out(&link->base)) {
        while (!wfi_link_is_out(&link->base) && handle_frame(link, which))
            continue;
        wfi_pipe *pipe = &link->pipes[which];
        got = pipe->fd < 0 || pipe->connecting ? 0 : wfi_pipe_read(pipe, &why);
    }
    while (got < 0 && !wfi_link_is_out(&link->base) && handle_frame(link, which))
        continue;
    if (got < 0 && link->pipes[which].fd >= 0 && !wfi_link_is_out(&link->base))
        wfi_link_wire_lost(&link->base, which, false, why);
}

static void see_next(socket_link *link)
{
    wfi_pipe *next = &link->pipes[WFI_NEXT];
    int errnum = next->fd >= 0 && next->connecting ? wfi_pipe_dialled(next) : EINPROGRESS;
    if (!errnum)
        wfi_link_dialled(&link->base);
    else if (errnum != EINPROGRESS)
        wfi_link_wire_lost(&link->base, WFI_NEXT, errnum == ECONNREFUSED, strerrordesc_np(errnum));
    read_all(link, WFI_NEXT);
}

/* One turn of the loop, without waiting. Returns when the next is due. */
static uint64_t socket_serve(socket_link *link)
{
    wfi_pipe *current = &link->pipes[WFI_CURRENT];
    read_all(link, WFI_CURRENT);
    see_next(link);
    uint64_t due_ns = wfi_link_tick(&link->base);
    wfi_mutex_lock(&link->base.lock);
    wfi_pipe_flush(current);
    wfi_pipe_flush(&link->pipes[WFI_NEXT]);
    bool overflowed = current->overflowed;
    wfi_mutex_unlock(&link->base.lock);
    if (overflowed)
        wfi_link_wire_lost(&link->base, WFI_CURRENT, false, "the store does not read");
    return due_ns;
}

static struct pollfd wait_for(const wfi_pipe *pipe)
{
    bool writes = pipe->connecting || pipe->output_size > 0;
    return (struct pollfd){.fd = pipe->fd, .events = (short)(writes ? POLLIN | POLLOUT : POLLIN)};
}

/* Waits until input arrives on either wire, or another thread wakes this one. */
static void socket_sleep(socket_link *link, uint64_t due_ns)
{
    struct pollfd waits[3] = {{.fd = link->wake_fd, .events = POLLIN}};
    uint64_t counted;
    wfi_mutex_lock(&link->base.lock);
    waits[1] = wait_for(&link->pipes[WFI_CURRENT]);
    waits[2] = wait_for(&link->pipes[WFI_NEXT]);
    wfi_mutex_unlock(&link->base.lock);
    (void)poll(waits, 3, wfi_poll_timeout(wfi_now(link->base.clock), due_ns));
    (void)!read(link->wake_fd, &counted, sizeof(counted));
}

/* Serves until the link is out, or close has begun and the goodbye can be sent. */
static void serve_on(socket_link *link)
{
    while (!wfi_link_is_out(&link->base)) {
        uint64_t due_ns = socket_serve(link);
        bool is_leaving = atomic_load(&link->stopping);
        /*
         * A goodbye sent while the link changes its wire would be lost with the old one, and the store would see a
         * death.
         */
        bool may_leave = is_leaving && /* leave_by_ns is set before stopping */
                         (wfi_link_is_steady(&link->base) || wfi_now(link->base.clock) >= link->leave_by_ns);
        if (wfi_link_is_out(&link->base) || may_leave)
            return;
        socket_sleep(link, is_leaving && link->leave_by_ns < due_ns ? link->leave_by_ns : due_ns);
    }
}

static void *run_link(void *arg)
{
    socket_link *link = arg;
    struct pollfd released = {.fd = link->wake_fd, .events = POLLIN};
    while (!atomic_load(&link->released) && !atomic_load(&link->stopping))
        (void)poll(&released, 1, -1);
    serve_on(link);
    return NULL;
}

static int socket_pump(wfi_rendezvous *base, uint64_t *due_ns)
{
    socket_link *link = socket_of(base);
    *due_ns = socket_serve(link);
    if (wfi_link_is_out(base)) {
        *due_ns = WFI_NEVER;
        return -1;
    }
    wfi_mutex_lock(&base->lock);
    int fd = link->pipes[WFI_CURRENT].fd;
    bool pending = fd < 0 || link->pipes[WFI_CURRENT].output_size > 0 || link->pipes[WFI_NEXT].fd >= 0;
    wfi_mutex_unlock(&base->lock);
    uint64_t retry_ns = wfi_now(base->clock) + PENDING_RETRY_NS;
    if (pending && retry_ns < *due_ns)
        *due_ns = retry_ns;
    return fd;
}

/* ---- The end --------------------------------------------------------------------------------------------------- */

/*
 * Waits until the store has the goodbye: closing with unread bytes would reset the connection, and the goodbye might
 * be lost.
 */
static void send_farewell(socket_link *link)
{
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, FAREWELL_MS), now_ns;
    wfi_pipe *pipe = &link->pipes[WFI_CURRENT];
    struct pollfd wait = {.fd = pipe->fd};
    bool shut = false;
    ssize_t got = 1;
    while (got != 0 && (now_ns = wfi_now(&wfi_clock_real)) < deadline_ns) {
        wfi_mutex_lock(&link->base.lock);
        wfi_pipe_flush(pipe);
        bool pending = pipe->output_size > 0;
        wfi_mutex_unlock(&link->base.lock);
        if (!pending && !shut)
            shut = shutdown(pipe->fd, SHUT_WR) == 0;
        wait.events = (short)(POLLIN | (pending ? POLLOUT : 0));
        if (poll(&wait, 1, wfi_poll_timeout(now_ns, deadline_ns)) < 0)
            continue;
        char waste[1024];
        got = recv(pipe->fd, waste, sizeof(waste), MSG_DONTWAIT);
        if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)
            return;
    }
}

static void socket_free(socket_link *link)
{
    wfi_pipe_close(&link->pipes[WFI_CURRENT]);
    wfi_pipe_close(&link->pipes[WFI_NEXT]);
    if (link->wake_fd >= 0)
        close(link->wake_fd);
    wfi_link_fini(&link->base);
    free(link);
}

/* Serves, in the link's own thread or here, until the goodbye can be sent. */
static void end_service(socket_link *link)
{
    link->leave_by_ns = wfi_deadline(link->base.clock, FAREWELL_MS);
    atomic_store(&link->stopping, true);
    if (!link->threaded) {
        serve_on(link);
        return;
    }
    wake(link);
    pthread_join(link->thread, NULL);
    link->threaded = false;
}

static void socket_close(wfi_rendezvous *base)
{
    socket_link *link = socket_of(base);
    end_service(link);
    bool was_member = wfi_link_send_goodbye(base);
    if (was_member)
        send_farewell(link);
    wfi_store_server_end(link->server, wfi_link_grace_ms(base));
    socket_free(link);
}

static void socket_count(const wfi_rendezvous *base, wfi_store_counts *out)
{
    wfi_store_server_count(wfi_container_of(base, const socket_link, base)->server, out);
}

static const wfi_link_shell socket_shell = {.send = socket_send,
                                            .dial = socket_dial,
                                            .hang_up = socket_hang_up,
                                            .adopt = socket_adopt,
                                            .wake = socket_wake,
                                            .random = socket_random,
                                            .close = socket_close,
                                            .pump = socket_pump,
                                            .count = socket_count};

/* ---- Joining --------------------------------------------------------------------------------------------------- */

typedef struct attempt {
    const wfi_rendezvous_options *options;
    uint64_t deadline_ns;
    int port;         /* which of port_count is tried, from 0 */
    int stranger;     /* the last port on which a store of weft's could not prove that it is this job's; 0: none */
    int errnum;       /* of the last connect */
    bool reached;     /* connected at least once */
    int64_t waits_ms; /* the time until the log says what this worker waits for, and then between two such lines */
    uint64_t log_at_ns;
} attempt;

static bool has_several_ports(const attempt *at)
{
    return at->options->port_count > 1 && at->options->rank != 0;
}

/* When this attempt ends without an answer. */
static uint64_t answer_by_ns(const socket_link *link, const attempt *at, uint64_t from_ns)
{
    uint64_t by_ns = wfi_link_answer_by_ns(&link->base, ANSWER_GRACE_MS);
    bool goes_on = has_several_ports(at) && !link->base.greeted;
    return goes_on && by_ns > from_ns + ONE_OF_PORTS_NS ? from_ns + ONE_OF_PORTS_NS : by_ns;
}

/* Reads and ticks until there is an answer. False: the wire was lost, or the time is over. */
static bool await_answer(socket_link *link, const attempt *at)
{
    wfi_pipe *next = &link->pipes[WFI_NEXT];
    uint64_t now_ns, deadline_ns, from_ns = wfi_now(&wfi_clock_real);
    while (!link->base.answered && next->fd >= 0 &&
           (now_ns = wfi_now(&wfi_clock_real)) < (deadline_ns = answer_by_ns(link, at, from_ns))) {
        uint64_t due_ns = wfi_link_tick(&link->base);
        struct pollfd wait = wait_for(next);
        if (next->fd < 0)
            break;
        if (poll(&wait, 1, wfi_poll_timeout(now_ns, due_ns < deadline_ns ? due_ns : deadline_ns)) > 0)
            read_all(link, WFI_NEXT);
    }
    return link->base.answered;
}

static bool socket_attempt(socket_link *link, attempt *at)
{
    const wfi_rendezvous_options *options = at->options;
    wfi_pipe *next = &link->pipes[WFI_NEXT];
    int fd = -1;
    /* Between two attempts the log says what this worker waits for, and the next port has its turn. */
    uint64_t by_ns = wfi_now(&wfi_clock_real) + (has_several_ports(at) ? ONE_OF_PORTS_NS : CONNECT_NS);
    by_ns = by_ns < at->deadline_ns ? by_ns : at->deadline_ns;
    int errnum = options->rank == 0 ? wfi_connect_endpoint(&link->store, by_ns, &fd)
                                    : wfi_connect_to(options->master_addr, options->master_port + at->port, by_ns, &fd);
    if (errnum != ETIMEDOUT || !at->errnum || by_ns < at->deadline_ns)
        at->errnum = errnum; /* an attempt that the end of the time cut short says nothing new */
    if (errnum)
        return false;
    at->reached = true;
    next->fd = fd;
    next->input_limit = WFI_STORE_WORLD_MAX;
    link->store.size = sizeof(link->store.address);
    (void)getpeername(fd, (struct sockaddr *)&link->store.address, &link->store.size);
    link->base.store_is_here = wfi_endpoint_is_loopback(&link->store);
    wfi_link_dialled(&link->base);
    bool answered = await_answer(link, at);
    bool is_other = answered && !link->base.greeted && link->base.refusal && has_several_ports(at);
    if (answered && !is_other)
        return true;
    if (is_other) { /* another job's store, or another service: the next port may be the right one */
        if (link->base.refusal != WEFT_ERR_PROTOCOL)
            at->stranger = options->master_port + at->port;
        link->base.answered = false;
        link->base.refusal = WEFT_OK;
    }
    wfi_pipe_close(next);
    return false;
}

/* Names the likely causes and the settings that count, after connecting failed with this errno value. */
static const char *hint_of(const char *host, int errnum)
{
    if (errnum == ECONNREFUSED)
        return "; rank 0 does not listen there, or a firewall rejects the port (MASTER_ADDR, MASTER_PORT)";
    if (errnum == ETIMEDOUT)
        return "; that host is down, or a firewall drops what is sent to the port (MASTER_ADDR, MASTER_PORT)";
    if (errnum == ENETUNREACH && host && wfi_hostname_says_loopback(host))
        return "; " WFI_LOOPBACK_HINT;
    if (errnum == EHOSTUNREACH || errnum == ENETUNREACH)
        return "; the name does not resolve, no route leads there, or a firewall rejects the port (MASTER_ADDR, "
               "MASTER_PORT)";
    if (errnum == EACCES || errnum == EPERM)
        return "; a firewall rejects the port (MASTER_ADDR, MASTER_PORT)";
    if (errnum == EINVAL)
        return "; a link-local address needs its interface: MASTER_ADDR=fe80::1%eth0";
    return "";
}

/* weft_job_open listens before it starts this worker, so nobody will listen there again. */
static bool has_lost_its_starter(const attempt *at)
{
    return at->errnum == ECONNREFUSED && at->options->is_spawned;
}

static weft_status join_failed(const socket_link *link, const attempt *at, weft_error **error)
{
    const wfi_rendezvous_options *options = at->options;
    const char *host = options->master_addr ? options->master_addr : "this machine";
    int port = options->master_port;
    long long waited_ms = options->join_timeout_ms;
    if (has_lost_its_starter(at))
        return wfi_error_fail(error, options->elastic ? WEFT_ERR_JOB_ENDED : WEFT_ERR_RENDEZVOUS,
                              "rank 0's store on %s port %d is closed: rank 0, which started this worker, has %s, "
                              "and its output says why",
                              host, port, options->elastic ? "ended the job or failed" : "failed");
    if (has_several_ports(at) && !link->base.greeted && at->stranger)
        return wfi_error_fail(
            error, WEFT_ERR_RENDEZVOUS,
            "rank 0's store on %s was on none of the ports %d to %d within %lld ms. What listens on port %d could not "
            "prove that it has this job's secret: it belongs to another job, or rank 0 has another secret "
            "(WEFT_SECRET_FILE)",
            host, port, port + options->port_count - 1, waited_ms, at->stranger);
    if (has_several_ports(at) && !link->base.greeted)
        return wfi_error_fail(
            error, WEFT_ERR_RENDEZVOUS,
            "rank 0's store on %s was on none of the ports %d to %d within %lld ms; the last attempt: "
            "%s. A firewall must let these ports pass; set MASTER_PORT to use one fixed port",
            host, port, port + options->port_count - 1, waited_ms,
            at->errnum ? strerrordesc_np(at->errnum) : "what answers belongs to another job");
    if (link->base.greeted)
        return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS, "the store on %s port %d did not answer within %lld ms", host,
                              port, waited_ms);
    if (at->reached && at->errnum)
        return wfi_error_fail(
            error, WEFT_ERR_RENDEZVOUS,
            "rank 0's store on %s port %d went away before it answered: rank 0 has probably failed, and "
            "its output says why; the last attempt to connect, within %lld ms: %s",
            host, port, waited_ms, strerrordesc_np(at->errnum));
    if (at->reached)
        return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS,
                              "what listens on %s port %d is no store of weft's, or hangs: it did not answer within "
                              "%lld ms. If it is rank 0, its log says whether it is out of file descriptors",
                              host, port, waited_ms);
    return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS,
                          "rank 0's store on %s port %d could not be reached within %lld ms: %s%s", host, port,
                          waited_ms, strerrordesc_np(at->errnum), hint_of(options->master_addr, at->errnum));
}

/*
 * Logs what this worker waits for, so that the user of a job that does not begin sees it: after some seconds, then
 * less and less often.
 */
static void log_awaited(attempt *at)
{
    const wfi_rendezvous_options *options = at->options;
    uint64_t now_ns = wfi_now(&wfi_clock_real);
    char others[32] = "";
    if (now_ns < at->log_at_ns)
        return;
    if (has_several_ports(at))
        snprintf(others, sizeof(others), " to %d", options->master_port + options->port_count - 1);
    if (at->log_at_ns)
        wfi_log_in(&(wfi_log_context){.rank = options->rank}, WEFT_LOG_WARN,
                   "waiting for rank 0's store on %s port %d%s: %s%s",
                   options->master_addr ? options->master_addr : "this machine", options->master_port, others,
                   at->errnum ? strerrordesc_np(at->errnum) : "it does not answer",
                   hint_of(options->master_addr, at->errnum));
    /* half of a short timeout; with an even shorter one the error says it */
    int64_t first_ms = options->join_timeout_ms;
    first_ms = first_ms < 0 || first_ms / 2 > SAY_FIRST_MS ? SAY_FIRST_MS : first_ms / 2;
    at->waits_ms = at->log_at_ns ? at->waits_ms * 2 : first_ms;
    at->log_at_ns = now_ns + wfi_ns_of_ms(at->waits_ms);
}

/*
 * A store that closes without an answer belongs to a job that ends, or is no store: tries again until the time is
 * over.
 */
static weft_status socket_join(socket_link *link, attempt *at, weft_error **error)
{
    const wfi_rendezvous_options *options = at->options;
    int64_t pause_ms = RETRY_FIRST_MS;
    log_awaited(at); /* from now on */
    while (!socket_attempt(link, at)) {
        int64_t left_ms = wfi_link_patience_ms(&link->base);
        if (at->errnum == EMFILE)
            return wfi_descriptors_fail("connect to rank 0's store", error);
        if (left_ms == 0 || has_lost_its_starter(at))
            return join_failed(link, at, error);
        log_awaited(at);
        at->port = has_several_ports(at) ? (at->port + 1) % options->port_count : 0;
        if (at->port)
            continue;
        if (left_ms > 0 && left_ms < pause_ms)
            pause_ms = left_ms;
        nanosleep(&(struct timespec){.tv_nsec = (long)pause_ms * (long)NS_PER_MS}, NULL);
        pause_ms = pause_ms * 2 > RETRY_LAST_MS ? RETRY_LAST_MS : pause_ms * 2;
    }
    return link->base.refusal ? wfi_link_refused(&link->base, error) : WEFT_OK;
}

/* ---- The store of rank 0 ---------------------------------------------------------------------------------------- */

static bool have_ended(void *processes)
{
    return wfi_processes_have_ended(processes);
}

static bool is_awaited(const void *store, int rank)
{
    return wfi_store_awaits(store, rank);
}

/* A child of weft_job_open that has ended will not join, even if it exited with 0. */
static bool has_lost_child(void *processes, const wfi_store *store, char *why, size_t room, int *missing)
{
    char ends[WFI_STORE_TEXT_MAX * 2];
    if (wfi_processes_poll(processes) == 0)
        return false;
    *missing = wfi_processes_name(processes, is_awaited, store, ends, sizeof(ends));
    snprintf(why, room, "%.*s before the job began", (int)room - (int)sizeof(" before the job began"), ends);
    return *missing > 0;
}

static void describe_awaited(void *processes, const wfi_store *store, char *out, size_t room)
{
    wfi_processes_describe(processes, is_awaited, store, out, room);
}

static weft_status socket_start_store(socket_link *link, const wfi_rendezvous_options *options, weft_error **error)
{
    wfi_store_server_options server = {.listen_fd = options->store_fd,
                                       .world_size = options->world_size,
                                       .elastic = options->elastic,
                                       .secret = options->secret,
                                       .secret_size = options->secret_size,
                                       .death_timeout_ms = options->death_timeout_ms,
                                       .is_alone = options->processes ? have_ended : NULL,
                                       .is_lost = options->processes ? has_lost_child : NULL,
                                       .describe_awaited = options->processes ? describe_awaited : NULL,
                                       .processes_arg = options->processes};
    weft_status status = WEFT_OK;
    if (options->store_fd < 0)
        status = wfi_listen_at(options->master_addr, options->master_port, &server.listen_fd, error);
    if (status)
        return status;
    if (wfi_listens_at(server.listen_fd, &link->store)) {
        close(server.listen_fd);
        return wfi_error_fail(error, WEFT_ERR_INVALID, "the store's descriptor is no listening socket");
    }
    return wfi_store_server_start(&server, &link->server, error);
}

void wfi_rendezvous_refuse(const wfi_rendezvous_options *options, const char *why)
{
    wfi_store_server *server;
    const wfi_store_server_options how = {.listen_fd = options->store_fd,
                                          .world_size = options->world_size,
                                          .elastic = options->elastic,
                                          .secret = options->secret,
                                          .secret_size = options->secret_size,
                                          .death_timeout_ms = -1,
                                          .failure = why,
                                          .is_alone = options->processes ? have_ended : NULL,
                                          .processes_arg = options->processes};
    if (!wfi_store_server_start(&how, &server, NULL))
        wfi_store_server_end(server, REFUSING_MS);
}

static weft_status start_link_thread(socket_link *link, weft_error **error)
{
    link->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (link->wake_fd < 0)
        return wfi_error_fail(error, WEFT_ERR_SYSTEM, "cannot start the link to the store: %s", strerrordesc_np(errno));
    char why[WFI_THREAD_STRERROR];
    int errnum = wfi_thread_start(&link->thread, run_link, link, "weft-link");
    if (errnum)
        return wfi_error_fail(error, WEFT_ERR_SYSTEM, "no thread for the link to the store could be started: %s",
                              wfi_thread_strerror(errnum, why));
    link->threaded = true;
    return WEFT_OK;
}

/*
 * Without this check, each missing descriptor would cause a different error later, or be retried until the time is
 * over.
 */
static weft_status check_descriptors(const wfi_rendezvous_options *options, weft_error **error)
{
    int needed = 2; /* the link's events, and its connection */
    if (options->rank == 0)
        needed += 2; /* the store's events, and what it accepts */
    if (options->rank == 0 && options->store_fd < 0)
        needed++;
    if (!wfi_descriptors_lack(needed))
        return WEFT_OK;
    if (options->store_fd >= 0)
        close(options->store_fd);
    return wfi_descriptors_fail("join the job", error);
}

weft_status wfi_link_open_socket(const wfi_rendezvous_options *given, wfi_rendezvous **out, weft_error **error)
{
    wfi_rendezvous_options options = *given;
    if (!options.clock)
        options.clock = &wfi_clock_real;
    socket_link *link = wfi_calloc(1, sizeof(*link));
    if (!link || wfi_link_init(&link->base, &options, &socket_shell)) {
        free(link);
        if (options.store_fd >= 0)
            close(options.store_fd);
        return wfi_error_fail(error, WEFT_ERR_MEMORY, "out of memory for the link to the store");
    }
    attempt at = {.options = &options, .deadline_ns = wfi_deadline(&wfi_clock_real, options.join_timeout_ms)};
    link->wake_fd = -1;
    wfi_pipe_init(&link->pipes[WFI_CURRENT]);
    wfi_pipe_init(&link->pipes[WFI_NEXT]);
    weft_status status = check_descriptors(&options, error);
    if (!status && options.rank == 0)
        status = socket_start_store(link, &options, error);
    if (status)
        goto free_link;
    status = socket_join(link, &at, error);
    if (!status && !options.no_threads)
        status = start_link_thread(link, error);
    if (status)
        goto end_store;
    *out = &link->base; /* before the first upcall */
    atomic_store(&link->released, true);
    wake(link);
    return WEFT_OK;

end_store: /* children that have not joined yet learn why */
    wfi_store_server_end(link->server, options.processes && link->base.refusal ? REFUSING_MS : 0);
free_link:
    socket_free(link);
    return status;
}
