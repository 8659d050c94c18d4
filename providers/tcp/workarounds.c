/* SPDX-License-Identifier: Apache-2.0 */
/*
 * workarounds.c - what weft does about defects of libfabric's tcp provider; docs/libfabric.md says how each shows, and
 * docs/upstream has the reports.
 *
 * ACCEPTED SOCKETS: requests are read blocking from accepted sockets (1.13 to 2.6).
 * SILENT CALLERS: a caller without a request costs a descriptor (1.13 to 2.6).
 * LOST SOCKETS: half a request costs a descriptor (1.18 to 2.6).
 * READS IN FLIGHT: closing an endpoint during a read frees the read's record twice (1.13 to 1.17).
 * CLOSING: sockets that were not announced leak (1.13 to 2.6).
 *
 * 2.6 is the newest version whose sources were read; later ones are taken for 2.6.
 *
 * libfabric does not expose its sockets, so they are searched for among the descriptors of this process. No state is
 * kept between two searches. The owner of a found descriptor may close it at any time; each section says why it does
 * not.
 *
 * The functions of `wfi_tcp_workarounds` are called as wfofi_hooks (ofi/objects.h) says, with the locks named there.
 */
#include "tcp/tcp.h"

#include "base/clock.h"
#include "base/text/log.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#define NUMBERS_MAX (1 << 20) /* the most descriptors that are checked */
#define RECEIVE_US 1          /* the kernel rounds up to its tick */
#define SILENT_MAX 256        /* connections watched at a time */
#define LATE_NS UINT64_C(200000000)
#define EXHAUSTED_MS 20  /* between two attempts to accept while descriptors have run out */
#define LATE_MAX 4       /* late searches in a row that begin anew */
#define LOOK_MS 1000     /* between two searches; a peer must send its request within one to two such intervals */
#define LOST_MAX 64      /* sockets that are closed at a time */
#define DRAIN_TURNS 4096 /* calls; the fullest buffers are empty after a hundred */
#define WAIT_MS 1

/* The state of a fabric: wfofi_fabric.state. */
typedef struct tcp_state {
    int listen_fd; /* libfabric's descriptor; -1: not found */

    wfi_list parked; /* lanes that their owners closed, but whose reads have not ended; events_lock */
    atomic_size_t parked_count;

    /* Used only by the event thread. */
    bool exhausted; /* no connection can be accepted, because descriptors have run out */
    bool silent_suspected;
    uint64_t silent_due_ns;
    uint64_t silent[SILENT_MAX]; /* hashes of the silent connections that the last search found */
    size_t silent_count;
    unsigned silent_late; /* searches in a row that were late, and began anew */
    size_t silent_ended;  /* connections closed and not yet reported by poll_events */
} tcp_state;

static tcp_state *state_of(const wfofi_fabric *fabric)
{
    return fabric->state;
}

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

typedef bool visit_fn(int fd, void *arg); /* true: stop */

/* Listing descriptors needs a free one, and none may be left: then all numbers are tried. */
static void try_all_numbers(visit_fn *visit, void *arg)
{
    struct rlimit limit = {0};
    int most =
        getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < NUMBERS_MAX ? (int)limit.rlim_cur : NUMBERS_MAX;
    for (int fd = 0; fd < most; fd++)
        if (fcntl(fd, F_GETFD) != -1 && visit(fd, arg))
            return;
}

static void each_descriptor(visit_fn *visit, void *arg)
{
    DIR *dir = opendir("/proc/self/fd");
    if (!dir) {
        try_all_numbers(visit, arg);
        return;
    }
    bool enough = false;
    for (struct dirent *entry; !enough && (entry = readdir(dir));) {
        char *end;
        long fd = strtol(entry->d_name, &end, 10);
        if (end != entry->d_name && !*end && fd != dirfd(dir))
            enough = visit((int)fd, arg);
    }
    closedir(dir);
}

static bool is_inet(const wfofi_sockaddr *address)
{
    return address->storage.ss_family == AF_INET || address->storage.ss_family == AF_INET6;
}

static bool local_is(int fd, const wfofi_sockaddr *address)
{
    wfofi_sockaddr local = {.size = sizeof(local.storage)};
    return getsockname(fd, (struct sockaddr *)&local.storage, &local.size) == 0 && is_inet(&local) &&
           wfofi_address_equal(&local, address);
}

static bool peer_of(int fd, wfofi_sockaddr *out)
{
    *out = (wfofi_sockaddr){.size = sizeof(out->storage)};
    return getpeername(fd, (struct sockaddr *)&out->storage, &out->size) == 0 && is_inet(out);
}

typedef bool caller_fn(int fd, const wfofi_sockaddr *peer, void *arg); /* true: stop */

typedef struct listener_search {
    const wfofi_sockaddr *local;
    int found; /* -1 */
} listener_search;

static bool bound_listener(int fd, void *arg)
{
    listener_search *search = arg;
    int listening = 0;
    socklen_t size = sizeof(listening);
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || !listening || !local_is(fd, search->local))
        return false;
    const struct timeval limit = {.tv_usec = RECEIVE_US};
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0)
        search->found = fd;
    return true;
}

/* Finds the socket that listens on `local`, and bounds the time of a read on a socket accepted from it: an accepted
 * socket inherits SO_RCVTIMEO. -1: not found. */
static int bound_listener_at(const wfofi_sockaddr *local)
{
    listener_search search = {.local = local, .found = -1};
    each_descriptor(bound_listener, &search);
    return search.found;
}

typedef struct connected_search {
    const wfofi_sockaddr *local, *peer;
    int found; /* -1 */
} connected_search;

static bool shutdown_connected(int fd, void *arg)
{
    connected_search *search = arg;
    wfofi_sockaddr peer;
    if (!local_is(fd, search->local) || !peer_of(fd, &peer) || !wfofi_address_equal(&peer, search->peer))
        return false;
    shutdown(fd, SHUT_RDWR);
    search->found = fd;
    return true;
}

/* Shuts down the connection between these two ends. Returns its descriptor; -1: not found, or already dead. */
static int shutdown_between(const wfofi_sockaddr *local, const wfofi_sockaddr *peer)
{
    connected_search search = {.local = local, .peer = peer, .found = -1};
    each_descriptor(shutdown_connected, &search);
    return search.found;
}

/* Whether it is a connected socket with that local address. */
static bool is_caller(int fd, const wfofi_sockaddr *local)
{
    wfofi_sockaddr peer;
    return local_is(fd, local) && peer_of(fd, &peer);
}

/* Whether this process has shut the socket down, or it is dead. */
static bool is_ended(int fd)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof(info);
    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0)
        return false;
    switch (info.tcpi_state) {
    case TCP_FIN_WAIT1:
    case TCP_FIN_WAIT2:
    case TCP_CLOSING:
    case TCP_TIME_WAIT:
    case TCP_LAST_ACK:
    case TCP_CLOSE:
        return true;
    default:
        return false;
    }
}

typedef struct caller_search {
    const wfofi_sockaddr *local;
    int listen_fd;
    caller_fn *visit;
    void *arg;
} caller_search;

static bool visit_caller(int fd, void *arg)
{
    const caller_search *search = arg;
    wfofi_sockaddr peer;
    return local_is(fd, search->local) && peer_of(fd, &peer) && search->visit(fd, &peer, search->arg);
}

/* Calls `visit` for every connected socket with that local address, until `visit` returns true. */
static void each_caller(const wfofi_sockaddr *local, caller_fn *visit, void *arg)
{
    caller_search search = {.local = local, .visit = visit, .arg = arg};
    each_descriptor(visit_caller, &search);
}

/* A listening socket that was shut down has the state of a dead connection, but is none. */
static bool visit_ended(int fd, void *arg)
{
    const caller_search *search = arg;
    wfofi_sockaddr peer;
    if (fd == search->listen_fd || !local_is(fd, search->local) || !is_ended(fd))
        return false;
    return search->visit(fd, peer_of(fd, &peer) ? &peer : NULL, search->arg);
}

/* Calls `visit` for every accepted socket with that local address that has ended, except listen_fd. A dead one has no
 * peer: NULL. */
static void each_ended(const wfofi_sockaddr *local, int listen_fd, caller_fn *visit, void *arg)
{
    caller_search search = {.local = local, .listen_fd = listen_fd, .visit = visit, .arg = arg};
    each_descriptor(visit_ended, &search);
}

/* ---- ACCEPTED SOCKETS -------------------------------------------------------------------------------------------- */

/*
 * libfabric reads requests from the sockets that it has accepted, one after another, blocking, on the thread that reads
 * events. Fifty peers that each send half a request would block all others fifty times. A non-blocking socket blocks
 * nobody. libfabric accepts a connection in one round and reads from it in a later one. So before each round the next
 * descriptor (the lowest free one) is found; after the round that descriptor, and those after it, are made non-blocking
 * if they are accepted sockets. If another thread took the number meanwhile, all descriptors are checked. The receive
 * timeout of the listening socket bounds what is still missed. Report: libfabric-tcp-accepted-sockets.md. Test:
 * test_tcp_strangers.
 */

static void listening(wfofi_fabric *fabric)
{
    tcp_state *tcp = state_of(fabric);
    tcp->listen_fd = bound_listener_at(&fabric->local);
    if (tcp->listen_fd < 0)
        wfofi_log(fabric, WEFT_LOG_WARN,
                  "no receive timeout on the listening socket: a silent caller can hold up connections");
}

/* Returns the next descriptor; -1: there is none. */
static int accept_begin(wfofi_fabric *fabric)
{
    if (state_of(fabric)->listen_fd < 0)
        return -1;
    int next = fcntl(state_of(fabric)->listen_fd, F_DUPFD_CLOEXEC, 0);
    struct pollfd listener = {.fd = state_of(fabric)->listen_fd, .events = POLLIN};
    bool exhausted = next < 0 && (errno == EMFILE || errno == ENFILE) && poll(&listener, 1, 0) == 1;
    if (exhausted)
        wfofi_log_exhausted(fabric);
    state_of(fabric)->exhausted = exhausted;
    if (next >= 0)
        close(next);
    return next;
}

static bool unblock(int fd, const wfofi_sockaddr *peer, void *arg)
{
    (void)peer;
    (void)arg;
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0 && !(flags & O_NONBLOCK))
        (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    return false;
}

static void accept_end(wfofi_fabric *fabric, int next)
{
    if (next < 0 || fcntl(next, F_GETFD) < 0)
        return;
    int fd = next;
    while (is_caller(fd, &fabric->local))
        (void)unblock(fd++, NULL, NULL);
    if (fd == next)
        each_caller(&fabric->local, unblock, NULL);
}

/* ---- LOST SOCKETS ------------------------------------------------------------------------------------------------ */

/*
 * libfabric stops watching an accepted socket before it reads the request from it. If that read returns EAGAIN,
 * libfabric forgets the socket, and its descriptor stays open forever. That happens with half a request, and with a
 * connection that ended while errno held an old EAGAIN. A peer that connects often enough would use up all descriptors
 * of the process.
 *
 * A socket is certainly lost if all three are true:
 *   - It has ended, by this worker (SILENT CALLERS) or by the peer.
 *   - The event queue's descriptor is not readable. An ended socket stays readable, so libfabric does not watch it.
 *   - It belongs neither to a lane nor to a request that waits for its answer.
 * Report: libfabric-tcp-accepted-sockets.md. Test: test_tcp_forgotten.
 */

typedef struct lost {
    const wfofi_fabric *fabric;
    int fds[LOST_MAX];
    size_t count;
} lost;

static bool has_peer(const wfi_list *lanes, const wfofi_sockaddr *peer)
{
    for (const wfi_list *at = lanes->next; at != lanes; at = at->next) {
        const wfi_lane *lane = wfi_container_of(at, wfi_lane, link);
        if (lane->peer.size && wfofi_address_equal(&lane->peer, peer))
            return true;
    }
    return false;
}

/* Whether an accepted lane or a request that waits for its answer has this other end. events_lock held. */
static bool is_known(const wfofi_fabric *fabric, const wfofi_sockaddr *peer)
{
    wfi_assert_held((wfi_mutex *)(uintptr_t)&fabric->events_lock);
    if (has_peer(&fabric->lanes, peer) || has_peer(&state_of(fabric)->parked, peer))
        return true;
    for (const wfi_list *at = fabric->requests.next; at != &fabric->requests; at = at->next) {
        const struct fi_info *info = wfi_container_of(at, wfi_connect_request, link)->info;
        wfofi_sockaddr asking = {.size = (socklen_t)info->dest_addrlen};
        if (info->dest_addrlen > sizeof(asking.storage))
            continue;
        memcpy(&asking.storage, info->dest_addr, info->dest_addrlen);
        if (wfofi_address_equal(&asking, peer))
            return true;
    }
    return false;
}

/*
 * getpeername fails on the socket of a dead lane, so that socket cannot be distinguished from a lost one. events_lock
 * held.
 */
static bool every_lane_is_alive(const wfofi_fabric *fabric)
{
    wfi_assert_held((wfi_mutex *)(uintptr_t)&fabric->events_lock);
    for (const wfi_list *at = fabric->lanes.next; at != &fabric->lanes; at = at->next) {
        const wfi_lane *lane = wfi_container_of(at, wfi_lane, link);
        struct sockaddr_storage peer;
        size_t size = sizeof(peer);
        if (lane->peer.size && fi_getpeer(lane->ep, &peer, &size) != 0)
            return false;
    }
    return true;
}

static bool note_lost(int fd, const wfofi_sockaddr *peer, void *arg)
{
    lost *found = arg;
    if (!peer || !is_known(found->fabric, peer))
        found->fds[found->count++] = fd;
    return found->count == LOST_MAX;
}

static bool queue_is_quiet(wfofi_fabric *fabric)
{
    struct fid *queue = &fabric->eq->fid;
    struct pollfd readable = {.fd = fabric->eq_fd, .events = POLLIN};
    int next = accept_begin(fabric);
    int ret = fi_trywait(fabric->fabric, &queue, 1); /* also makes eq_fd unreadable if all events were read */
    accept_end(fabric, next);
    return ret == FI_SUCCESS && poll(&readable, 1, 0) == 0;
}

/*
 * Returns true if the sockets were closed. The order of the checks matters. A socket that has ended stays so. If every
 * lane is alive now, it was alive during the search, so no socket found belongs to a lane. If the event queue is quiet
 * after that, libfabric does not watch these sockets.
 */
static bool close_noted(wfofi_fabric *fabric, const lost *found, bool all_were_read)
{
    wfi_assert_held((wfi_mutex *)(uintptr_t)&fabric->events_lock);
    if (!wfi_list_empty(&fabric->requests) || !every_lane_is_alive(fabric))
        return false;
    if (!all_were_read && !queue_is_quiet(fabric))
        return false;
    for (size_t i = 0; i < found->count; i++)
        close(found->fds[i]);
    return true;
}

/*
 * Closes the accepted sockets that libfabric has lost. False: some may be lost, but that is not certain yet: call again
 * later. `all_were_read`: no connection is accepted any longer, and libfabric has read from every socket since it
 * ended.
 */
static bool close_lost(wfofi_fabric *fabric, bool all_were_read)
{
    lost found;
    bool done;
    if (fi_version() < FI_VERSION(1, 18))
        return true;
    wfi_mutex_lock(&fabric->events_lock);
    do {
        found = (lost){.fabric = fabric};
        each_ended(&fabric->local, state_of(fabric)->listen_fd, note_lost, &found);
        done = !found.count || close_noted(fabric, &found, all_were_read);
    } while (done && found.count == LOST_MAX);
    wfi_mutex_unlock(&fabric->events_lock);
    return done;
}

/* ---- SILENT CALLERS ---------------------------------------------------------------------------------------------- */

/*
 * libfabric keeps an accepted socket until it has read a request from it: a silent peer would use a descriptor
 * forever. So, some time after events were read, the descriptors are searched for sockets of the listening address
 * whose other end belongs neither to a lane nor to a pending request. Those that the previous search also found are
 * shut down; libfabric then reads their end and closes them. Only the thread that reads events does this, and no other
 * thread closes such sockets. So a descriptor that was found to be a silent connection still is one when it is shut
 * down.
 * Report: libfabric-tcp-accepted-sockets.md. Test: test_tcp_strangers.
 */

typedef struct look {
    wfofi_fabric *fabric;
    bool all; /* also shuts down connections that the previous search did not find */
    uint64_t seen[SILENT_MAX];
    size_t count, ended;
} look;

static bool was_there(const wfofi_fabric *fabric, uint64_t hash)
{
    for (size_t i = 0; i < state_of(fabric)->silent_count; i++) {
        if (state_of(fabric)->silent[i] == hash)
            return true;
    }
    return false;
}

static bool look_at(int fd, const wfofi_sockaddr *peer, void *arg)
{
    look *now = arg;
    if (is_known(now->fabric, peer) || is_ended(fd))
        return false;
    uint64_t hash = wfofi_address_hash(peer);
    if (now->all || was_there(now->fabric, hash)) {
        shutdown(fd, SHUT_RDWR);
        now->ended++;
    } else {
        now->seen[now->count++] = hash;
    }
    return now->count == SILENT_MAX;
}

static size_t look_now(wfofi_fabric *fabric, bool all)
{
    look now = {.fabric = fabric, .all = all};
    wfi_mutex_lock(&fabric->events_lock);
    each_caller(&fabric->local, look_at, &now);
    wfi_mutex_unlock(&fabric->events_lock);
    memcpy(state_of(fabric)->silent, now.seen, now.count * sizeof(now.seen[0]));
    state_of(fabric)->silent_count = now.count;
    state_of(fabric)->silent_suspected = now.count > 0 || now.ended > 0;
    state_of(fabric)->silent_due_ns = wfi_deadline(&wfi_clock_real, LOOK_MS);
    return now.ended;
}

/*
 * A late search discards what the previous one found: this process had no CPU time, and perhaps the peers had none
 * either. At most LATE_MAX searches in a row do so, because a program without threads may poll rarely.
 */
static void begin_anew_if_late(wfofi_fabric *fabric, uint64_t late_ns)
{
    bool is_late = late_ns > LATE_NS && state_of(fabric)->silent_late < LATE_MAX;
    state_of(fabric)->silent_late = is_late ? state_of(fabric)->silent_late + 1 : 0;
    if (is_late)
        state_of(fabric)->silent_count = 0;
}

static void look_if_due(wfofi_fabric *fabric)
{
    uint64_t now = wfi_now(&wfi_clock_real);
    tcp_state *tcp = state_of(fabric);
    if (!tcp->silent_suspected) { /* events were read, perhaps of a new connection */
        tcp->silent_suspected = true;
        tcp->silent_due_ns = now + LOOK_MS * UINT64_C(1000000);
        return;
    }
    if (now < tcp->silent_due_ns)
        return;
    begin_anew_if_late(fabric, now - state_of(fabric)->silent_due_ns);
    state_of(fabric)->silent_ended += look_now(fabric, false);
    if (!close_lost(fabric, false))
        state_of(fabric)->silent_suspected = true;
}

static size_t events_after(wfofi_fabric *fabric, wfi_event *out, size_t room)
{
    tcp_state *tcp = state_of(fabric);
    look_if_due(fabric);
    if (!tcp->silent_ended || room == 0)
        return 0;
    *out = (wfi_event){.kind = WFI_EVENT_SILENT, .count = tcp->silent_ended};
    tcp->silent_ended = 0;
    return 1;
}

static void make_earlier(uint64_t *due_ns, uint64_t time_ns)
{
    *due_ns = time_ns < *due_ns ? time_ns : *due_ns;
}

static bool events_arm(wfofi_fabric *fabric, uint64_t *due_ns)
{
    const tcp_state *tcp = state_of(fabric);
    if (tcp->exhausted)
        make_earlier(due_ns, wfi_deadline(&wfi_clock_real, EXHAUSTED_MS));
    if (tcp->silent_suspected)
        make_earlier(due_ns, tcp->silent_due_ns);
    return !tcp->silent_ended;
}

/* While descriptors have run out, a pending connection keeps the queue's descriptor readable: the thread would not
 * sleep. */
static bool events_watch(const wfofi_fabric *fabric)
{
    return !state_of(fabric)->exhausted;
}

/* ---- READS IN FLIGHT --------------------------------------------------------------------------------------------- */

/*
 * If an endpoint is closed while it receives the answer to a read, libfabric frees that read's record twice. Operations
 * after that share records. A read that ends normally leaves the record intact. So the socket is shut down: after that
 * the kernel adds nothing to the socket's buffer. Then libfabric is called until it has read the buffer to its end. The
 * number of calls is limited, not the time, because a process can be stopped at any point.
 *
 * PARKED LANES. A lane whose reads have not ended after DRAIN_TURNS calls is parked: the rest of its socket's buffer is
 * discarded, so that nothing is written to local memory after lane_close has returned. The endpoint stays open, and
 * the lane's operations stay in flight, until poll finds that the reads have ended. If the fabric is closed before
 * that, the endpoint stays open until the process ends. No case is known in which a lane is parked. Report:
 * libfabric-tcp-read-twice.md. Tests: test_tcp_drain, test_tcp_read_twice.
 */

static unsigned reads_of(wfi_lane *lane)
{
    wfi_mutex_lock(&lane->lock);
    unsigned reads = lane->reads;
    wfi_mutex_unlock(&lane->lock);
    return reads;
}

/* Calls libfabric until the reads have ended. In each call it reads once from every socket that has data. */
static bool give_turns(wfi_lane *lane)
{
    wfofi_fabric *fabric = lane->fabric;
    for (int i = 0; i < DRAIN_TURNS && reads_of(lane) > 0; i++) {
        wfi_mutex_lock(&fabric->cq_lock);
        wfofi_cq_progress(fabric);
        wfi_mutex_unlock(&fabric->cq_lock);
    }
    return reads_of(lane) == 0;
}

static void throw_away(int fd)
{
    uint8_t scratch[16384];
    while (recv(fd, scratch, sizeof(scratch), MSG_DONTWAIT | MSG_TRUNC) > 0)
        ;
}

static void park(wfi_lane *lane)
{
    wfofi_fabric *fabric = lane->fabric;
    wfofi_log(
        fabric, WEFT_LOG_ERROR,
        "a closed connection still has %u reads under way: libfabric does not see the end of its socket, which is "
        "kept until it does",
        reads_of(lane));
    wfi_mutex_lock(&fabric->events_lock);
    wfi_list_remove(&lane->link);
    wfi_list_push_back(&state_of(fabric)->parked, &lane->link);
    atomic_fetch_add(&state_of(fabric)->parked_count, 1);
    wfi_mutex_unlock(&fabric->events_lock);
    wfofi_wake(fabric); /* the polling thread reports the completions that these calls found */
}

/* Returns the lane's descriptor; -1: not found, or already dead. */
static int shutdown_socket(const wfi_lane *lane)
{
    wfofi_sockaddr local, peer;
    size_t local_size = sizeof(local.storage), peer_size = sizeof(peer.storage);
    if (fi_getname(&lane->ep->fid, &local.storage, &local_size) != 0 ||
        fi_getpeer(lane->ep, &peer.storage, &peer_size) != 0)
        return -1;
    return shutdown_between(&local, &peer);
}

/*
 * For a socket that was not found, or is already dead. The peer's answers still arrive over a socket that was not
 * found, so this function can only wait for them.
 */
static void wait_for_reads(wfi_lane *lane)
{
    wfofi_log(lane->fabric, WEFT_LOG_ERROR, "the socket of a connection was not found: waiting for its %u reads",
              reads_of(lane));
    while (!give_turns(lane)) {
        wfofi_wake(lane->fabric); /* these calls find completions of other lanes too */
        (void)poll(NULL, 0, WAIT_MS);
    }
}

/*
 * Returns false if the reads have not ended; then the lane is parked. Posts an empty receive: without a posted receive,
 * an incoming message would keep libfabric from reading the answers behind it. A message that takes the empty receive
 * ends the connection.
 */
static bool lane_drain(wfi_lane *lane)
{
    if (fi_version() >= FI_VERSION(1, 18) || reads_of(lane) == 0)
        return true;
    int fd = shutdown_socket(lane);
    (void)fi_recv(lane->ep, NULL, 0, NULL, FI_ADDR_UNSPEC, NULL);
    if (give_turns(lane))
        return true;
    if (fd < 0) {
        wait_for_reads(lane);
        return true;
    }
    throw_away(fd);
    park(lane);
    return false;
}

static wfi_lane *take_ended(wfofi_fabric *fabric)
{
    wfi_lane *ended = NULL;
    wfi_mutex_lock(&fabric->events_lock);
    for (wfi_list *at = state_of(fabric)->parked.next; at != &state_of(fabric)->parked && !ended; at = at->next) {
        wfi_lane *lane = wfi_container_of(at, wfi_lane, link);
        ended = reads_of(lane) == 0 ? lane : NULL;
    }
    if (ended) {
        wfi_list_remove(&ended->link);
        /* listed until its socket is closed: otherwise it would be taken for a silent caller's */
        wfi_list_push_back(&fabric->lanes, &ended->link);
        atomic_fetch_sub(&state_of(fabric)->parked_count, 1);
    }
    wfi_mutex_unlock(&fabric->events_lock);
    return ended;
}

static void polled(wfofi_fabric *fabric)
{
    wfi_lane *lane;
    if (atomic_load_explicit(&state_of(fabric)->parked_count, memory_order_relaxed) == 0)
        return;
    while ((lane = take_ended(fabric))) {
        wfofi_log(fabric, WEFT_LOG_INFO, "the reads of a closed connection have ended");
        wfofi_lane_end(lane);
    }
}

static bool end_parked(wfofi_fabric *fabric)
{
    for (int i = 0; i < DRAIN_TURNS && atomic_load(&state_of(fabric)->parked_count) > 0; i++) {
        wfi_mutex_lock(&fabric->cq_lock);
        wfofi_cq_progress(fabric);
        wfi_mutex_unlock(&fabric->cq_lock);
        polled(fabric);
    }
    return atomic_load(&state_of(fabric)->parked_count) == 0;
}

/* ---- CLOSING ----------------------------------------------------------------------------------------------------- */

static void created(wfofi_fabric *fabric)
{
    state_of(fabric)->listen_fd = -1;
    wfi_list_init(&state_of(fabric)->parked);
}

/*
 * libfabric leaks sockets that it has accepted and not announced, with their records. So this function stops
 * accepting, and shuts these sockets down. Then it calls libfabric once for each of them: one call may end several, but
 * not all.
 */
static bool closing(wfofi_fabric *fabric)
{
    const tcp_state *tcp = state_of(fabric);
    if (tcp->listen_fd >= 0)
        (void)shutdown(tcp->listen_fd, SHUT_RDWR);
    wfofi_requests_drop(fabric);
    for (size_t rounds = look_now(fabric, true) + 1; rounds; rounds--)
        wfofi_requests_drop(fabric);
    (void)close_lost(fabric, true);
    if (end_parked(fabric))
        return true;
    wfofi_log(fabric, WEFT_LOG_ERROR, "%zu closed connections still have reads under way: fabric 'tcp' stays in memory",
              atomic_load(&tcp->parked_count));
    return false;
}

const wfofi_hooks wfi_tcp_workarounds = {
    .state_bytes = sizeof(tcp_state),
    .created = created,
    .listening = listening,
    .accept_begin = accept_begin,
    .accept_end = accept_end,
    .events_after = events_after,
    .events_arm = events_arm,
    .events_watch = events_watch,
    .lane_drain = lane_drain,
    .polled = polled,
    .closing = closing,
};
