/* SPDX-License-Identifier: Apache-2.0 */
/* net_host.c - see net_host.h. */
#include "net/net_host.h"
#include "make.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_NS UINT64_C(20000000000)

/* cmocka's failures jump, which only its own thread may do. */
static void must(bool good, const char *what, int rank)
{
    if (good)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    abort();
}

/* ---- Upcalls --------------------------------------------------------------------------------------------------- */

static void on_message(void *arg, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    net_host *host = arg;
    if (host->world->on_message)
        host->world->on_message(host, from, type, bytes, size);
    atomic_fetch_add(&host->arrived, 1);
}

static void on_peer_gone(void *arg, wfi_peer *peer, weft_status why, const char *text)
{
    net_host *host = arg;
    atomic_store(&host->why, why);
    atomic_fetch_add(&host->gone, 1);
}

static void on_peer_unreachable(void *arg, wfi_peer *peer, const char *text)
{
    net_host *host = arg;
    snprintf(host->unreachable_text, sizeof(host->unreachable_text), "%s", text);
    atomic_fetch_add(&host->unreachable, 1);
}

static void on_peer_joined(void *arg, wfi_peer *peer)
{
    net_host *host = arg;
    host->next[wfi_peer_rank(peer)] = 0;
    atomic_fetch_add(&host->joined, 1);
}

static void on_self_gone(void *arg, weft_status why, const char *text)
{
    net_host *host = arg;
    atomic_store(&host->why, why);
    atomic_fetch_add(&host->self_gone, 1);
}

static void on_probe(void *arg, uint64_t round) {}

static void on_terminated(void *arg) {}

/* ---- Worlds ---------------------------------------------------------------------------------------------------- */

weft_status host_try(net_host *host, weft_error **error)
{
    static const wfi_upcalls upcalls = {.message = on_message,
                                        .peer_gone = on_peer_gone,
                                        .peer_unreachable = on_peer_unreachable,
                                        .peer_joined = on_peer_joined,
                                        .self_gone = on_self_gone,
                                        .probe = on_probe,
                                        .terminated = on_terminated};
    net_world *world = host->world;
    char name[16];
    snprintf(name, sizeof(name), "w%d", host->rank);
    weft_agent_options agent = {.has_rank = true,
                                .rank = host->any ? WEFT_ANY_RANK : host->rank,
                                .world_size = world->size,
                                .name = name,
                                .master_addr = world->master_addr ? world->master_addr : "127.0.0.1",
                                .master_port = world->port,
                                .fabric = world->fabrics ? world->fabrics[host->rank] : world->fabric,
                                .sim = world->sim,
                                .no_threads = world->no_threads,
                                .elastic = world->elastic,
                                .iface = world->iface,
                                .ports = world->ports,
                                .threads = 2,
                                .rendezvous_timeout_ms = 20000,
                                .death_timeout_ms = world->death_timeout_ms,
                                .queue_limit_bytes = 1 << 20};
    wfi_executor_options workers = {.workers = 2,
                                    .fibers = world->sim ? wfi_sim_fibers(world->sim) : NULL,
                                    .group = host->rank,
                                    .manual = world->no_threads,
                                    .thread_name = "test-work"};
    must(!wfi_executor_create(&workers, &host->executor), "executor", host->rank);
    wfi_net_options options = {.agent = &agent,
                               .upcalls = &upcalls,
                               .arg = host,
                               .executor = host->executor,
                               .sim = world->sim,
                               .store_fd = host->rank ? -1 : world->store_fd};
    return wfi_net_open(&options, &host->net, error);
}

void host_open(net_host *host)
{
    weft_error *error = NULL;
    weft_status status = host_try(host, &error);
    if (error)
        weft_error_print(error, stderr);
    must(!status, weft_status_name(status), host->rank);
}

void host_close(net_host *host)
{
    if (host->net)
        wfi_net_stop(host->net);
    if (host->executor)
        wfi_executor_destroy(host->executor);
    wfi_net_close(host->net);
    host->net = NULL;
    host->executor = NULL;
}

static void host_run(net_host *host)
{
    host_open(host);
    host_meet(host, &host->world->ready);
    host->world->body(host);
    host_close(host);
}

static void sim_program(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    host_run(&world->hosts[rank]);
}

void world_init(net_world *world, const char *fabric, int size, void (*body)(net_host *host))
{
    world->size = size;
    world->fabric = fabric;
    world->body = body;
    world->store_fd = -1;
    if (!world->death_timeout_ms)
        world->death_timeout_ms = 2000;
    atomic_store(&world->ready, 0);
    atomic_store(&world->finished, 0);
    memset(world->hosts, 0, sizeof(world->hosts));
    for (int rank = 0; rank < size; rank++) {
        world->hosts[rank].world = world;
        world->hosts[rank].rank = rank;
    }
}

/* The memory of a worker that was killed, its net's and its stacks', is lost as a process's is; the world has taken its
 * lanes already. Kept in sight, so that leak checkers know that it is meant. */
static void bury(net_host *host)
{
    static wfi_net *graves[256];
    static size_t count;
    if (!host->net)
        return;
    must(count < 256 && !graves[count], "too many killed", host->rank);
    graves[count++] = host->net;
    wfi_executor_destroy(host->executor);
}

void world_sim(net_world *world, uint64_t seed, int size, void (*body)(net_host *host),
               void (*director)(weft_sim *sim, int rank, void *world))
{
    weft_sim_options options = {.seed = seed, .bytes_per_second = world->bytes_per_second};
    world_init(world, world->fabric ? world->fabric : world->like_verbs ? "sim-verbs" : "sim", size, body);
    world->sim = sim_open(&options);
    assert_non_null(world->sim);
    for (int rank = 0; rank < size; rank++)
        assert_int_equal(weft_sim_spawn(world->sim, rank, sim_program, world), WEFT_OK);
    if (director)
        assert_int_equal(weft_sim_spawn(world->sim, DIRECTOR, director, world), WEFT_OK);
    assert_int_equal(weft_sim_run(world->sim, 60000), WEFT_OK);
    for (int i = 0; i < HOSTS_MAX; i++)
        bury(&world->hosts[i]);
    weft_sim_close(world->sim);
    world->sim = NULL;
}

void world_trouble(weft_sim *sim, int rank, void *arg)
{
    net_world *world = arg;
    while (atomic_load(&world->ready) < world->size)
        weft_sim_sleep(sim, 10000);
    for (int i = 0; i < 12; i++) {
        weft_sim_sleep(sim, wfi_sim_random(sim) % 200000);
        if (wfi_sim_random(sim) % 3) {
            weft_sim_reset_link(sim, 0, 1);
        } else {
            weft_sim_cut(sim, 0, 1);
            weft_sim_sleep(sim, wfi_sim_random(sim) % 300000);
            weft_sim_heal(sim, 0, 1);
        }
    }
}

static void *tcp_thread(void *arg)
{
    host_run(arg);
    return NULL;
}

int listen_anywhere(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

void world_tcp(net_world *world, int size, void (*body)(net_host *host))
{
    pthread_t threads[HOSTS_MAX];
    const char *instead = getenv("TEST_FABRIC"); /* as in rpc/world.c */
    world_init(world, instead ? instead : "tcp", size, body);
    world->store_fd = listen_anywhere(&world->port);
    for (int rank = 0; rank < size; rank++)
        assert_int_equal(pthread_create(&threads[rank], NULL, tcp_thread, &world->hosts[rank]), 0);
    for (int rank = 0; rank < size; rank++)
        pthread_join(threads[rank], NULL);
}

void net_play(const net_world *like, int size, void (*body)(net_host *host), uint64_t seeds, bool on_tcp)
{
    for (uint64_t seed = 1; seed <= seeds && !getenv("TEST_FABRIC"); seed++) {
        net_world world = *like;
        world_sim(&world, seed, size, body, NULL);
    }
    net_world tcp = *like;
    if (on_tcp)
        world_tcp(&tcp, size, body);
}

/* ---- Waiting --------------------------------------------------------------------------------------------------- */

void host_pause(net_host *host, uint64_t ns)
{
    if (host->world->sim) {
        weft_sim_sleep(host->world->sim, ns);
        return;
    }
    if (host->world->no_threads) {
        (void)wfi_net_progress(host->net, (int64_t)(ns / 1000000));
        return;
    }
    struct timespec pause = {.tv_nsec = (long)ns};
    nanosleep(&pause, NULL);
}

void host_until(net_host *host, atomic_int *count, int wanted)
{
    const wfi_clock *clock = wfi_net_clock(host->net);
    uint64_t limit = wfi_now(clock) + LIMIT_NS;
    while (atomic_load(count) < wanted) {
        if (wfi_now(clock) >= limit)
            fprintf(stderr, "rank %d: %d of %d after 20 s\n", host->rank, atomic_load(count), wanted);
        must(wfi_now(clock) < limit, "waited in vain", host->rank);
        host_pause(host, 100000);
    }
}

void host_meet(net_host *host, atomic_int *count)
{
    atomic_fetch_add(count, 1);
    host_until(host, count, host->world->size);
}

wfi_peer *host_peer(net_host *host, int rank)
{
    wfi_peer *peer = wfi_net_peer(host->net, rank);
    must(peer, "no peer", host->rank);
    return peer;
}

wfi_member host_member(net_host *host, int rank)
{
    wfi_net_lock(host->net);
    const wfi_member *member = wfi_net_member(host->net, rank);
    wfi_member copy = member ? *member : (wfi_member){0};
    wfi_net_unlock(host->net);
    return copy;
}

uint64_t host_refused(net_host *host)
{
    return inside_stats(host->net).unauthenticated_refused;
}

/* ---- Messages -------------------------------------------------------------------------------------------------- */

typedef struct note {
    wfi_message message;
    net_host *host;
    uint64_t number;
    uint8_t body[];
} note;

static uint8_t content(uint64_t number, size_t at)
{
    return (uint8_t)(number * 31 + at * 7);
}

static void note_done(wfi_message *message, weft_status status)
{
    note *sent = wfi_container_of(message, note, message);
    atomic_fetch_add(status ? &sent->host->done_failed : &sent->host->done_ok, 1);
    if (status)
        atomic_store(&sent->host->why, status);
    free(sent);
}

static weft_status send_note(net_host *host, int to, uint64_t number, size_t size, bool urgent, bool exempt)
{
    note *sent = calloc(1, sizeof(*sent) + size);
    must(sent, "memory", host->rank);
    sent->host = host;
    sent->number = number;
    for (size_t i = 0; i < size; i++)
        sent->body[i] = content(number, i);
    size_t half = size / 2;
    sent->message = (wfi_message){.type = 7,
                                  .urgent = urgent,
                                  .exempt = exempt,
                                  .head = &sent->number,
                                  .head_size = sizeof(sent->number),
                                  .parts = {{sent->body, half}, {sent->body + half, size - half}},
                                  .part_count = size ? 2 : 0,
                                  .done = note_done};
    weft_status status = wfi_peer_send(host_peer(host, to), &sent->message);
    if (status)
        free(sent);
    return status;
}

weft_status host_send(net_host *host, int to, uint64_t number, size_t size, bool urgent)
{
    return send_note(host, to, number, size, urgent, false);
}

weft_status host_send_owed(net_host *host, int to, uint64_t number, size_t size)
{
    return send_note(host, to, number, size, false, true);
}

weft_status host_send_free(net_host *host, int to, uint64_t number, size_t size)
{
    wfi_net_lock(host->net);
    weft_status status = host_send(host, to, number, size, false);
    wfi_net_unlock(host->net);
    return status;
}

void host_check_order(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    uint64_t number, *next = &host->next[wfi_peer_rank(from)];
    must(type == 7 && size >= sizeof(number), "a malformed message", host->rank);
    memcpy(&number, bytes, sizeof(number));
    if (number != *next)
        fprintf(stderr, "got %lu, wanted %lu\n", (unsigned long)number, (unsigned long)*next);
    must(number == *next, "a message twice, lost, or out of order", host->rank);
    ++*next;
    for (size_t i = sizeof(number); i < size; i++)
        must(bytes[i] == content(number, i - sizeof(number)), "wrong content", host->rank);
}
