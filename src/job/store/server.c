/* SPDX-License-Identifier: Apache-2.0 */
/*
 * server.c - the store as a TCP server: its thread, accepting connections, bounding those that have not joined, and
 * ending. See server.h; single connections are in connection.c.
 */
#include "base/alloc.h"
#include "job/store/connection.h"

#include "base/error.h"
#include "base/text/log.h"
#include "base/thread.h"

#include <errno.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#define ALONE_NS 20000000ull /* how often a server that ends asks whether anybody is left who could connect */
#define LOST_NS 50000000ull  /* how often it asks whether a worker that it awaits will never come */
#define ACCEPTS_A_ROUND 64
#define UNAUTHENTICATED_MAX 256 /* one more for each worker of the job */
#define ACCEPT_PAUSE_NS (10ull * 1000 * 1000)

static void note_due(wfi_store_server *server, uint64_t when_ns)
{
    if (when_ns < server->due_ns)
        server->due_ns = when_ns;
}

/* ---- Arrivals -------------------------------------------------------------------------------------------------- */

/* Makes room: closes the oldest connection that has not authenticated. */
static void drop_oldest_unauthenticated(wfi_store_server *server)
{
    for (wfi_list *at = server->peers.next; at != &server->peers; at = at->next) {
        wfi_store_peer *peer = wfi_container_of(at, wfi_store_peer, link);
        if (peer->is_unauthenticated && !peer->is_broken) {
            peer->is_broken = true;
            server->unauthenticated--;
            peer->is_unauthenticated = false;
            return;
        }
    }
}

static void accept_all(wfi_store_server *server, uint64_t now_ns)
{
    for (int i = 0; i < ACCEPTS_A_ROUND; i++) {
        int fd = accept4(server->listen_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            if (wfi_store_peer_create(server, fd, now_ns + WFI_STORE_UNAUTHENTICATED_MS * 1000000ull))
                close(fd);
            else if (server->unauthenticated > UNAUTHENTICATED_MAX + server->world_size)
                drop_oldest_unauthenticated(server);
            continue;
        }
        if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            if (server->store)
                wfi_store_out_of_resources(server->store);
            /* The connection stays in the backlog, so poll would return at once, again and again. */
            drop_oldest_unauthenticated(server);
            server->accept_at_ns = now_ns + ACCEPT_PAUSE_NS;
        }
        if (errno != ECONNABORTED && errno != EINTR)
            return;
    }
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

/* Closes broken peers and peers whose deadline has passed. */
static void sweep_peers(wfi_store_server *server, uint64_t now_ns)
{
    for (wfi_list *at = server->peers.next, *next; at != &server->peers; at = next) {
        next = at->next;
        wfi_store_peer *peer = wfi_container_of(at, wfi_store_peer, link);
        if (!peer->is_broken && peer->deadline_ns > now_ns)
            note_due(server, peer->deadline_ns);
        else
            wfi_store_peer_destroy(peer, now_ns);
    }
}

static bool reserve_polls(wfi_store_server *server, size_t count)
{
    if (count <= server->poll_capacity)
        return true;
    size_t capacity = count + 64;
    struct pollfd *polls = realloc(server->polls, capacity * sizeof(*polls));
    if (polls)
        server->polls = polls;
    wfi_store_peer **polled = realloc(server->polled, capacity * sizeof(*polled));
    if (polled)
        server->polled = polled;
    if (polls && polled)
        server->poll_capacity = capacity;
    return polls && polled;
}

/*
 * Entry 0: the wake-up of this thread; entry 1: the listening socket; then the peers. If memory is exhausted, the
 * peers beyond the array are polled in a later turn.
 */
static size_t fill_polls(wfi_store_server *server, uint64_t now_ns)
{
    size_t count = 2;
    (void)reserve_polls(server, 2 + server->peer_count);
    bool may_accept = server->accept_at_ns <= now_ns;
    if (!may_accept)
        note_due(server, server->accept_at_ns);
    server->polls[0] = (struct pollfd){.fd = server->wake_fd, .events = POLLIN};
    server->polls[1] = (struct pollfd){.fd = may_accept ? server->listen_fd : -1, .events = POLLIN};
    for (wfi_list *at = server->peers.next; at != &server->peers && count < server->poll_capacity; at = at->next) {
        wfi_store_peer *peer = wfi_container_of(at, wfi_store_peer, link);
        server->polled[count] = peer;
        server->polls[count++] = (struct pollfd){.fd = peer->fd, .events = wfi_store_peer_events(peer)};
    }
    return count;
}

/* The others learn at once that a worker will never come, instead of waiting until their patience ends. */
static void check_lost(wfi_store_server *server, uint64_t now_ns)
{
    char why[WFI_STORE_TEXT_MAX];
    int missing = 0;
    if (!server->is_lost || !wfi_store_is_gathering(server->store))
        return;
    note_due(server, now_ns + LOST_NS);
    if (server->is_lost(server->processes_arg, server->store, why, sizeof(why), &missing))
        wfi_store_give_up(server->store, why, missing);
}

static void turn_once(wfi_store_server *server, bool asks)
{
    uint64_t now_ns = wfi_now(&wfi_clock_real);
    server->due_ns = wfi_store_due(server->store);
    if (asks)
        note_due(server, now_ns + ALONE_NS);
    check_lost(server, now_ns);
    sweep_peers(server, now_ns);
    size_t count = fill_polls(server, now_ns);
    int ready = poll(server->polls, count, wfi_poll_timeout(now_ns, server->due_ns));
    /*
     * The time is read before the messages: if this process is stopped here, they must not look older than the clock.
     */
    now_ns = wfi_now(&wfi_clock_real);
    for (size_t i = 2; ready > 0 && i < count; i++)
        wfi_store_peer_serve(server->polled[i], server->polls[i].revents, now_ns);
    if (ready > 0 && server->polls[1].revents)
        accept_all(server, now_ns);
    if (wfi_store_due(server->store) <= now_ns)
        wfi_store_tick(server->store, now_ns);
}

/* Last messages are still buffered. Those that the kernel does not take in time are lost. */
static void flush_all(wfi_store_server *server)
{
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, 500), now_ns;
    bool pending = true;
    while (pending && (now_ns = wfi_now(&wfi_clock_real)) < deadline_ns) {
        pending = false;
        size_t count = fill_polls(server, now_ns);
        for (size_t i = 0; i < 2; i++)
            server->polls[i].fd = -1;
        for (size_t i = 2; i < count; i++) {
            wfi_store_peer *peer = server->polled[i];
            bool wants = !peer->is_broken && peer->output_at < peer->output_size;
            server->polls[i] = (struct pollfd){.fd = wants ? peer->fd : -1, .events = POLLOUT};
            pending |= wants;
        }
        if (pending && poll(server->polls, count, wfi_poll_timeout(now_ns, deadline_ns)) > 0)
            for (size_t i = 2; i < count; i++)
                if (server->polls[i].revents)
                    wfi_store_peer_flush(server->polled[i]);
    }
}

static bool is_alone(const wfi_store_server *server)
{
    return server->is_alone && wfi_store_has_failed(server->store) && server->is_alone(server->processes_arg);
}

static void *run_server(void *arg)
{
    wfi_store_server *server = arg;
    bool draining = false;
    while (!draining || (!wfi_store_is_finished(server->store, wfi_now(&wfi_clock_real)) && !is_alone(server))) {
        turn_once(server, draining && server->is_alone);
        if (!draining && atomic_load(&server->ending)) {
            draining = true;
            uint64_t now_ns = wfi_now(&wfi_clock_real);
            wfi_store_drain(server->store, now_ns, wfi_deadline(&wfi_clock_real, server->grace_ms));
            server->polls[0].revents = 0;
            uint64_t counted;
            (void)!read(server->wake_fd, &counted, sizeof(counted));
        }
    }
    flush_all(server);
    return NULL;
}

/* ---- Life ------------------------------------------------------------------------------------------------------ */

static void free_server(wfi_store_server *server)
{
    wfi_store_destroy(server->store);
    server->store = NULL;
    while (!wfi_list_empty(&server->peers))
        wfi_store_peer_destroy(wfi_container_of(server->peers.next, wfi_store_peer, link), 0);
    wfi_map_fini(&server->by_id);
    free(server->polls);
    free(server->polled);
    if (server->wake_fd >= 0)
        close(server->wake_fd);
    close(server->listen_fd);
    free(server);
}

static weft_status server_create_store(wfi_store_server *server, const wfi_store_server_options *options)
{
    wfi_store_options store = {.world_size = options->world_size,
                               .elastic = options->elastic,
                               .secret = options->secret,
                               .secret_size = options->secret_size,
                               .death_timeout_ms = options->death_timeout_ms,
                               .failure = options->failure,
                               .now_ns = wfi_now(&wfi_clock_real),
                               .outputs = wfi_store_peer_outputs(server),
                               .describe_awaited = options->describe_awaited,
                               .describe_arg = options->processes_arg};
    if (sodium_init() < 0)
        return WEFT_ERR_SYSTEM;
    uint8_t job_key[WFI_JOB_KEY_BYTES];
    if (getrandom(job_key, sizeof(job_key), 0) != (ssize_t)sizeof(job_key))
        return WEFT_ERR_SYSTEM;
    store.job_key = job_key;
    weft_status status = wfi_store_create(&store, &server->store);
    sodium_memzero(job_key, sizeof(job_key));
    return status;
}

/* Writes to `why` what failed, unless it is memory. */
static weft_status start_server_thread(wfi_store_server *server, char why[WFI_THREAD_STRERROR])
{
    server->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (server->wake_fd < 0) {
        snprintf(why, WFI_THREAD_STRERROR, "eventfd: %s", strerrordesc_np(errno));
        return WEFT_ERR_SYSTEM;
    }
    if (!reserve_polls(server, 2))
        return WEFT_ERR_MEMORY;
    int errnum = wfi_thread_start(&server->thread, run_server, server, "weft-store");
    if (errnum)
        (void)wfi_thread_strerror(errnum, why);
    return errnum ? WEFT_ERR_SYSTEM : WEFT_OK;
}

weft_status wfi_store_server_start(const wfi_store_server_options *options, wfi_store_server **out, weft_error **error)
{
    wfi_store_server *server = wfi_calloc(1, sizeof(*server));
    weft_status status = WEFT_ERR_MEMORY;
    char why[WFI_THREAD_STRERROR] = "";
    if (!server) {
        close(options->listen_fd);
        goto give_error;
    }
    server->listen_fd = options->listen_fd;
    server->wake_fd = -1;
    server->world_size = options->world_size;
    server->is_alone = options->is_alone;
    server->is_lost = options->is_lost;
    server->processes_arg = options->processes_arg;
    wfi_list_init(&server->peers);
    wfi_map_init(&server->by_id);
    status = server_create_store(server, options);
    if (!status)
        status = start_server_thread(server, why);
    if (status)
        goto free_server;
    *out = server;
    return WEFT_OK;

free_server:
    free_server(server);
give_error:
    return wfi_error_fail(error, status, "cannot start the store: %s", why[0] ? why : weft_status_text(status));
}

void wfi_store_server_count(const wfi_store_server *server, wfi_store_counts *out)
{
    wfi_store_count(server ? server->store : NULL, out);
}

void wfi_store_server_end(wfi_store_server *server, int64_t grace_ms)
{
    if (!server)
        return;
    uint64_t one = 1;
    server->grace_ms = grace_ms;
    atomic_store(&server->ending, true);
    (void)!write(server->wake_fd, &one, sizeof(one)); /* cannot fail: the counter is far from full */
    pthread_join(server->thread, NULL);
    free_server(server);
}
