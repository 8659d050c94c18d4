/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strangers.c - what somebody who reaches the ports can say there without the secret, and what somebody says who has
 * read what others said: to the store, and to the workers' listening ports as libfabric's tcp would.
 */
#include "arena.h"

#include "ofi/objects.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define ANSWER_MS 500

/* ---- Sockets -------------------------------------------------------------------------------------------------- */

static void address_of(const arena *a, int rank, wfofi_sockaddr *to)
{
    struct sockaddr_in store = {.sin_family = AF_INET, .sin_port = htons((uint16_t)a->at->port)};
    store.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const wfi_member *member = &a->at->victims[rank < 0 ? 0 : rank].member;
    if (rank >= 0) {
        size_t size_there;
        const uint8_t *there = inside_address(member, &size_there);
        assert_int_equal(wfofi_address_decode(there, size_there, to), WEFT_OK);
        return;
    }
    memcpy(&to->storage, &store, sizeof(store));
    to->size = sizeof(store);
}

int stranger_dial(arena *a, int rank)
{
    wfofi_sockaddr to = {0};
    address_of(a, rank, &to);
    if (a->fd_count == HELD_MAX)
        arena_drop_connections(a);
    int fd = socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct linger at_once = {.l_onoff = 1};        /* leaves no port behind */
    struct timeval patience = {.tv_usec = 300000}; /* a flood fills the kernel's queue of callers */
    assert_true(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    if (connect(fd, (struct sockaddr *)&to.storage, to.size) && errno != EINTR && errno != EINPROGRESS)
        fail_msg("a port of the job refuses connections: %s", strerror(errno));
    a->fds[a->fd_count++] = fd;
    return fd;
}

static void say(int fd, const void *words, size_t size)
{
    (void)!send(fd, words, size, MSG_NOSIGNAL); /* it may have hung up */
}

/* What it answers, at most `size` bytes; 0: it hung up, or says nothing. */
static size_t listen_to(int fd, void *words, size_t size)
{
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    ssize_t got = poll(&wait, 1, ANSWER_MS) > 0 ? recv(fd, words, size, 0) : 0;
    return got > 0 ? (size_t)got : 0;
}

/* ---- At the store --------------------------------------------------------------------------------------------- */

static void store_silent(arena *a, unsigned n)
{
    (void)stranger_dial(a, -1);
}

/* Every length of a head that is not whole, then a head whose body does not come. */
static void store_half(arena *a, unsigned n)
{
    static const uint8_t head[] = {'W', 'S', WFI_STORE_VERSION, WFI_STORE_HELLO, 33, 0, 0, 0, 1, 2, 3};
    say(stranger_dial(a, -1), head, 1 + n % sizeof(head));
}

static void store_lengths(arena *a, unsigned n)
{
    static const uint32_t lengths[] = {0xffffffff, 0x80000000, 0x7fffffff, 633, 0x10000, 0};
    uint8_t head[] = {'W', 'S', WFI_STORE_VERSION, (uint8_t)(n % 29), 0, 0, 0, 0, 0, 0};
    memcpy(head + 4, &lengths[n % 6], 4);
    say(stranger_dial(a, -1), head, sizeof(head));
}

static void store_garbage(arena *a, unsigned n)
{
    uint8_t words[3000];
    randombytes_buf(words, sizeof(words));
    int fd = stranger_dial(a, -1);
    if (n % 2)
        say(fd, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27);
    else
        say(fd, words, sizeof(words));
}

static void greet(int fd, bool has_secret, wfi_store_message *hello)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    *hello = (wfi_store_message){.type = WFI_STORE_HELLO, .on = has_secret};
    randombytes_buf(hello->nonce, sizeof(hello->nonce));
    say(fd, frame, wfi_store_encode(hello, frame));
}

static void store_greeted(arena *a, unsigned n)
{
    wfi_store_message hello;
    greet(stranger_dial(a, -1), true, &hello);
}

static void expect_no_welcome(int fd)
{
    uint8_t frame[2048];
    size_t got = listen_to(fd, frame, sizeof(frame));
    if (got > 3 && frame[3] == WFI_STORE_WORLD)
        fail_msg("the store gave a stranger its table");
}

static void store_without_secret(arena *a, unsigned n)
{
    wfi_store_message hello;
    int fd = stranger_dial(a, -1);
    greet(fd, false, &hello);
    expect_no_welcome(fd);
}

/* Greets and reads the challenge; false if there is none. `secret`: whose keys to speak under. */
static bool meet(int fd, const uint8_t *secret, size_t size, wfi_seal *seal, uint8_t *raw, size_t *raw_size)
{
    wfi_store_message hello, challenge;
    greet(fd, true, &hello);
    *raw_size = listen_to(fd, raw, WFI_STORE_SMALL_MAX);
    if (!*raw_size || wfi_store_decode(raw, *raw_size, &challenge) || challenge.type != WFI_STORE_CHALLENGE)
        return false;
    wfi_greeting greeting = {.counter = challenge.counter, .death_timeout_ms = challenge.timeout_ms};
    memcpy(greeting.worker_nonce, hello.nonce, sizeof(hello.nonce));
    memcpy(greeting.store_nonce, challenge.nonce, sizeof(challenge.nonce));
    wfi_seal_begin(seal, WFI_SIDE_WORKER, secret, size, &greeting);
    return true;
}

static void say_sealed(int fd, wfi_seal *seal, const wfi_store_message *message, uint8_t version)
{
    uint8_t plain[WFI_STORE_SMALL_MAX], sealed[WFI_STORE_SMALL_MAX + WFI_SEAL_BYTES];
    size_t size = wfi_store_encode(message, plain);
    plain[2] = version;
    say(fd, sealed, wfi_seal_frame(seal, plain, size, sealed));
}

static const wfi_store_message join_any = {
    .type = WFI_STORE_JOIN, .rank = -1, .world_size = SEATS, .elastic = true, .timeout_ms = 1000};

static void store_wrong_secret(arena *a, unsigned n)
{
    static const uint8_t guess[] = "what everybody would guess";
    uint8_t raw[WFI_STORE_SMALL_MAX];
    size_t raw_size;
    wfi_seal seal;
    int fd = stranger_dial(a, -1);
    if (!meet(fd, guess, sizeof(guess), &seal, raw, &raw_size))
        return;
    say_sealed(fd, &seal, &join_any, WFI_STORE_VERSION);
    expect_no_welcome(fd);
}

/* The store's own words come back to it: its challenge, and its proof in place of ours. */
static void store_reflected(arena *a, unsigned n)
{
    uint8_t raw[WFI_STORE_SMALL_MAX];
    size_t raw_size;
    wfi_seal seal;
    int fd = stranger_dial(a, -1);
    if (!meet(fd, raw, 16, &seal, raw, &raw_size))
        return;
    if (n % 2) /* under the head of a JOIN */
        raw[3] = WFI_STORE_JOIN;
    say(fd, raw, raw_size);
    expect_no_welcome(fd);
}

/* What a worker said that was let in, recorded and said again: its greeting and its sealed JOIN. Made once. */
static size_t record_join(arena *a, uint8_t *out)
{
    uint8_t raw[WFI_STORE_SMALL_MAX], plain[WFI_STORE_SMALL_MAX], frame[4096];
    size_t raw_size;
    wfi_seal seal;
    int fd = stranger_dial(a, -1);
    if (!meet(fd, a->at->secret.bytes, a->at->secret.size, &seal, raw, &raw_size))
        return 0;
    size_t size = wfi_seal_frame(&seal, plain, wfi_store_encode(&join_any, plain), out);
    say(fd, out, size);
    if (!listen_to(fd, frame, sizeof(frame)) || frame[3] != WFI_STORE_WORLD)
        return 0;
    say_sealed(fd, &seal, &(wfi_store_message){.type = WFI_STORE_GOODBYE}, WFI_STORE_VERSION);
    return size;
}

static void store_replayed(arena *a, unsigned n)
{
    static uint8_t recorded[WFI_STORE_SMALL_MAX];
    static size_t size;
    uint8_t raw[WFI_STORE_SMALL_MAX];
    size_t raw_size;
    wfi_seal seal;
    if (!size)
        size = record_join(a, recorded);
    int fd = stranger_dial(a, -1);
    if (!meet(fd, raw, 16, &seal, raw, &raw_size))
        return;
    say(fd, recorded, size);
    expect_no_welcome(fd);
}

/* With the right secret, which is no stranger's, but not as it should be. */
static void store_wrong_version(arena *a, unsigned n)
{
    uint8_t raw[WFI_STORE_SMALL_MAX];
    size_t raw_size;
    wfi_seal seal;
    int fd = stranger_dial(a, -1);
    if (n % 2) { /* of version 1, whose first word was its JOIN */
        raw_size = wfi_store_encode(&join_any, raw);
        raw[2] = 1;
        say(fd, raw, raw_size);
    } else if (meet(fd, a->at->secret.bytes, a->at->secret.size, &seal, raw, &raw_size)) {
        say_sealed(fd, &seal, &join_any, WFI_STORE_VERSION + 1);
    }
    expect_no_welcome(fd);
}

static void store_wrong_token(arena *a, unsigned n)
{
    uint8_t raw[WFI_STORE_SMALL_MAX];
    size_t raw_size;
    wfi_seal seal;
    const wfi_member *member = &a->at->victims[n % VICTIMS].member;
    wfi_store_message resume = {
        .type = WFI_STORE_RESUME, .rank = member->rank, .incarnation = member->incarnation, .received = n % 4};
    int fd = stranger_dial(a, -1);
    if (!meet(fd, a->at->secret.bytes, a->at->secret.size, &seal, raw, &raw_size))
        return;
    randombytes_buf(resume.token, sizeof(resume.token));
    say_sealed(fd, &seal, &resume, WFI_STORE_VERSION);
    expect_no_welcome(fd);
}

/* ---- At the workers' listening ports -------------------------------------------------------------------------- */

#define CM_HEAD 32 /* of libfabric's tcp: version, type (0: a request), bytes that follow, and more */

static void fabric_silent(arena *a, unsigned n)
{
    (void)stranger_dial(a, (int)(n % VICTIMS));
}

static void fabric_half(arena *a, unsigned n)
{
    static const uint8_t head[CM_HEAD + 20] = {3, 0, 0, 48};
    say(stranger_dial(a, (int)(n % VICTIMS)), head, 1 + n * 7 % sizeof(head));
}

static void fabric_lengths(arena *a, unsigned n)
{
    static const uint16_t lengths[] = {0xffff, 0x7fff, 257, 256, 49, 0};
    uint8_t words[CM_HEAD + 300] = {3, (uint8_t)(n % 4)};
    words[2] = (uint8_t)(lengths[n % 6] >> 8);
    words[3] = (uint8_t)lengths[n % 6];
    say(stranger_dial(a, (int)(n % VICTIMS)), words, sizeof(words));
}

static void fabric_garbage(arena *a, unsigned n)
{
    uint8_t words[3000];
    randombytes_buf(words, sizeof(words));
    say(stranger_dial(a, (int)(n % VICTIMS)), words, 1 + n * 97 % sizeof(words));
}

/* A request as libfabric makes it, with this private data. */
static void ask_for_lane(arena *a, int rank, const uint8_t *data, size_t size)
{
    uint8_t words[CM_HEAD + WFI_CONNECT_DATA_MAX] = {3, 0, 0, (uint8_t)size};
    memcpy(words + CM_HEAD, data, size);
    say(stranger_dial(a, rank), words, CM_HEAD + size);
}

static void fabric_no_proof(arena *a, unsigned n)
{
    uint8_t data[WFI_CONNECT_DATA_MAX];
    randombytes_buf(data, sizeof(data));
    ask_for_lane(a, (int)(n % VICTIMS), data, n % 4 ? sizeof(data) : n % 48);
}

/* Keys of its own, but in all else as a worker would; every other one with the job's key, as any member has it. */
static void fabric_wrong_key(arena *a, unsigned n)
{
    wfi_net_keys keys;
    uint8_t data[WFI_CONNECT_DATA_MAX], pair_key[WFI_PAIR_KEY_BYTES];
    int to = (int)(n % VICTIMS), as = (to + 1) % VICTIMS;
    const wfi_member *self = &a->at->victims[as].member, *other = &a->at->victims[to].member;
    wfi_hello hello = {.kind = n % 2, .rank = as, .incarnation = self->incarnation, .generation = 1000000, .nonce = n};
    randombytes_buf(&keys, sizeof(keys));
    if (n / 2 % 2)
        memcpy(keys.job, a->at->job_key, sizeof(keys.job));
    assert_true(wfi_pair_derive(&keys, self, other, pair_key));
    ask_for_lane(a, to, data, wfi_hello_write(&keys, pair_key, &hello, other, data));
}

/* With a victim's own keys, of its life that is over; to one that it was not made for; as an answer that nobody
 * asked for. */
static void fabric_wrong_who(arena *a, unsigned n)
{
    uint8_t data[WFI_CONNECT_DATA_MAX], pair_key[WFI_PAIR_KEY_BYTES];
    int to = (int)(n % VICTIMS), as = (to + 1) % VICTIMS, third = (to + 2) % VICTIMS;
    const wfi_member *self = &a->at->victims[as].member, *other = &a->at->victims[n % 3 == 2 ? third : to].member;
    wfi_hello hello = {.rank = as,
                       .incarnation = n % 3 == 0 ? 0 : self->incarnation,
                       .generation = 2000000000,
                       .answer = n % 3 == 1,
                       .nonce = n};
    assert_true(wfi_pair_derive(&a->at->victims[as].keys, self, other, pair_key));
    ask_for_lane(a, to, data, wfi_hello_write(&a->at->victims[as].keys, pair_key, &hello, other, data));
}

static void fabric_replayed(arena *a, unsigned n)
{
    ask_for_lane(a, 1, a->at->recorded, (size_t)atomic_load(&a->at->recorded_size));
}

/* ---- Together ------------------------------------------------------------------------------------------------- */

const attack strangers[] = {
    {"store: silent", store_silent, 25, false, false},
    {"store: stops in a header", store_half, 25, false, false},
    {"store: wild lengths", store_lengths, 10, true, false},
    {"store: garbage", store_garbage, 10, true, false},
    {"store: silent after the greeting", store_greeted, 25, false, false},
    {"store: without a secret", store_without_secret, 10, true, false},
    {"store: another secret", store_wrong_secret, 10, true, false},
    {"store: its own words reflected", store_reflected, 10, true, false},
    {"store: a join replayed", store_replayed, 10, true, false},
    {"store: another version", store_wrong_version, 10, true, false},
    {"store: a resume without token", store_wrong_token, 10, true, false},
    {"fabric: silent", fabric_silent, 25, false, false},
    {"fabric: stops in a header", fabric_half, 25, false, false},
    {"fabric: wild lengths", fabric_lengths, 10, false, false},
    {"fabric: garbage", fabric_garbage, 10, false, false},
    {"fabric: a hello without proof", fabric_no_proof, 10, true, false},
    {"fabric: under another key", fabric_wrong_key, 10, true, false},
    {"fabric: in another's name", fabric_wrong_who, 10, true, false},
    {"fabric: a hello replayed", fabric_replayed, 10, true, false},
};
const size_t stranger_count = sizeof(strangers) / sizeof(*strangers);

/* ---- A flood -------------------------------------------------------------------------------------------------- */

void stranger_flood(arena *a, int count, int64_t ms)
{
    uint64_t end = wfi_deadline(&wfi_clock_real, ms);
    struct rlimit limit;
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    assert_true(count <= HELD_MAX);
    for (unsigned n = 0; wfi_now(&wfi_clock_real) < end; n++) {
        if (a->fd_count == count) { /* the oldest makes room */
            close(a->fds[0]);
            memmove(a->fds, a->fds + 1, sizeof(*a->fds) * (size_t)--a->fd_count);
        }
        strangers[n % stranger_count].stroke(a, n);
    }
}
