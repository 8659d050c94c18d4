/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rendezvous_strangers.c - who is not of the job, over real sockets: without the secret, with another one, in
 * place of the store, and in floods; and that those who are join all the same.
 */
#include "job/protocol/protocol.h"
#include "link_watch.h"

#include <errno.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define SECRET "what only the workers of this job know"

typedef struct pair { /* a job of two */
    int port;
    link_watch watches[2];
    link_place places[2];
    pthread_t first;
} pair;

static void *open_rank_0(void *arg)
{
    pair *at = arg;
    link_watch_open(&at->watches[0], &at->places[0]);
    return NULL;
}

static void *open_rank_1(void *arg)
{
    pair *at = arg;
    link_watch_open(&at->watches[1], &at->places[1]);
    return NULL;
}

static void begin_places(pair *at, const char *first, const char *second)
{
    memset(at, 0, sizeof(*at));
    int fd = link_watch_listen(&at->port);
    for (int rank = 0; rank < 2; rank++) {
        link_watch_init(&at->watches[rank]);
        at->places[rank] = (link_place){.rank = rank,
                                        .world_size = 2,
                                        .port = at->port,
                                        .store_fd = fd,
                                        .join_timeout_ms = 10000,
                                        .death_timeout_ms = 2000};
    }
    at->places[0].secret = first;
    at->places[1].secret = second;
}

static void begin(pair *at, const char *first, const char *second)
{
    begin_places(at, first, second);
    assert_int_equal(pthread_create(&at->first, NULL, open_rank_0, at), 0);
}

static void finish(pair *at)
{
    link_watch_close(&at->watches[1]);
    link_watch_close(&at->watches[0]);
}

static void with_the_same_secret_both_join(void **state)
{
    pair at;
    begin(&at, SECRET, SECRET);
    link_watch_open(&at.watches[1], &at.places[1]);
    pthread_join(at.first, NULL);
    assert_int_equal(at.watches[0].status, WEFT_OK);
    assert_int_equal(at.watches[1].status, WEFT_OK);
    assert_memory_equal(wfi_rendezvous_job_key(at.watches[0].link), wfi_rendezvous_job_key(at.watches[1].link),
                        WFI_JOB_KEY_BYTES);
    link_watch_close(&at.watches[1]);
    link_watch_close(&at.watches[0]);
}

static uint64_t refused(const pair *at)
{
    wfi_store_counts counts;
    wfi_rendezvous_count(at->watches[0].link, &counts);
    return counts.refused;
}

static void await_refused(const pair *at, uint64_t count)
{
    double limit = link_watch_ms() + 10000;
    while (refused(at) < count && link_watch_ms() < limit)
        usleep(1000);
    assert_int_equal(refused(at), count);
}

/* Rank 1 is refused, at once and in words, and rank 0 counts it; the true one then joins. */
static void expect_refused(const char *first, const char *second, const char *words)
{
    pair at;
    begin(&at, first, second);
    double before = link_watch_ms();
    link_watch_open(&at.watches[1], &at.places[1]);
    assert_true(link_watch_ms() - before < 5000);
    assert_int_equal(at.watches[1].status, WEFT_ERR_INVALID);
    assert_non_null(strstr(at.watches[1].error, words));
    at.places[1].secret = first;
    link_watch_open(&at.watches[1], &at.places[1]);
    assert_int_equal(at.watches[1].status, WEFT_OK);
    pthread_join(at.first, NULL);
    await_refused(&at, 1);
    finish(&at);
}

static void a_missing_secret_is_named(void **state)
{
    expect_refused(SECRET, NULL, "this worker has no secret, rank 0's job has one");
    expect_refused(NULL, SECRET, "this worker has a secret, rank 0's job has none");
}

static void another_secret_is_refused_by_the_worker(void **state)
{
    expect_refused(SECRET, "what only the workers of that job know", "could not prove that it has this job's secret");
}

/* At the door before anybody serves there. */
static int knock(int port)
{
    uint8_t frame[WFI_STORE_SMALL_MAX];
    const wfi_store_message hello = {.type = WFI_STORE_HELLO, .on = true, .nonce = {7}};
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&where, sizeof(where)), 0);
    size_t size = wfi_store_encode(&hello, frame);
    assert_int_equal(send(fd, frame, size, MSG_NOSIGNAL), size);
    return fd;
}

/* Workers that come long before rank 0 do: those that gave up waiting and came again cost no messages. */
static void who_gave_up_at_the_door_gets_no_answer(void **state)
{
    enum { GONE = 3 };
    uint8_t answer[WFI_STORE_SMALL_MAX];
    int gone[GONE];
    link_watch zero;
    wfi_store_counts counts;
    link_place place = {.world_size = 1, .secret = SECRET, .join_timeout_ms = 10000, .death_timeout_ms = -1};
    place.store_fd = link_watch_listen(&place.port);
    for (int i = 0; i < GONE; i++) {
        gone[i] = knock(place.port);
        assert_int_equal(shutdown(gone[i], SHUT_WR), 0);
    }
    int waiting = knock(place.port);
    link_watch_init(&zero);
    link_watch_open(&zero, &place);
    assert_int_equal(zero.status, WEFT_OK);
    for (int i = 0; i < GONE; i++) {
        assert_int_equal(recv(gone[i], answer, sizeof(answer), 0), 0);
        close(gone[i]);
    }
    assert_true(recv(waiting, answer, sizeof(answer), 0) > WFI_STORE_HEAD);
    assert_int_equal(wfi_store_frame_type(answer), WFI_STORE_CHALLENGE);
    close(waiting);
    wfi_rendezvous_count(zero.link, &counts);
    assert_int_equal(counts.messages, 4 + 2); /* rank 0's own, and of the one that waited */
    link_watch_close(&zero);
}

/* On one machine nothing is lost on the way: whoever waits for rank 0 knocks once, however long that takes to come. */
static void who_waits_long_for_rank_0_says_everything_once(void **state)
{
    pair at;
    wfi_store_counts counts;
    pthread_t second;
    begin_places(&at, SECRET, SECRET);
    at.places[0].death_timeout_ms = at.places[1].death_timeout_ms = -1; /* nor is a slow machine a cut */
    assert_int_equal(pthread_create(&second, NULL, open_rank_1, &at), 0);
    usleep(2300000); /* longer than a hello may go unanswered elsewhere */
    open_rank_0(&at);
    pthread_join(second, NULL);
    assert_int_equal(at.watches[0].status, WEFT_OK);
    assert_int_equal(at.watches[1].status, WEFT_OK);
    wfi_rendezvous_count(at.watches[0].link, &counts);
    assert_int_equal(counts.messages, 2 * 4);
    link_watch_close(&at.watches[1]);
    link_watch_close(&at.watches[0]);
}

/*
 * Rank 0 alone is a job; the other joins when it likes, goes, and comes again: oftener than strangers have places in
 * the store, as a member is none.
 */
static void an_elastic_job_over_sockets(void **state)
{
    link_watch zero, other;
    link_place place = {
        .world_size = 4, .elastic = true, .secret = SECRET, .join_timeout_ms = 10000, .death_timeout_ms = 2000};
    place.store_fd = link_watch_listen(&place.port);
    link_watch_init(&zero);
    link_watch_open(&zero, &place);
    assert_int_equal(zero.status, WEFT_OK);
    place.rank = -1;
    for (int i = 1; i <= 300; i++) {
        link_watch_init(&other);
        link_watch_open(&other, &place);
        assert_int_equal(other.status, WEFT_OK);
        assert_int_equal(wfi_rendezvous_rank(other.link), 1);
        assert_int_equal(wfi_rendezvous_members(other.link)[1].incarnation, i + 1);
        assert_true(link_watch_await(&zero, &zero.joined, i, 5000));
        link_watch_close(&other);
        assert_true(link_watch_await(&zero, &zero.left, i, 5000));
    }
    link_watch_close(&zero);
}

/* ---- In place of the store --------------------------------------------------------------------------------------- */

typedef struct imposter {
    int fd;
    const char *words; /* NULL: silent */
    bool hangs_up;
    atomic_bool over;
} imposter;

static void *pretend(void *arg)
{
    imposter *who = arg;
    int held[64], count = 0;
    while (!atomic_load(&who->over)) {
        struct pollfd wait = {.fd = who->fd, .events = POLLIN};
        int fd = poll(&wait, 1, 20) > 0 ? accept(who->fd, NULL, NULL) : -1;
        if (fd < 0)
            continue;
        if (who->words)
            (void)!send(fd, who->words, strlen(who->words), MSG_NOSIGNAL);
        if (who->hangs_up || count == 64)
            close(fd);
        else
            held[count++] = fd;
    }
    while (count > 0)
        close(held[--count]);
    return NULL;
}

static void meet_imposter(imposter *who, int64_t patience_ms, link_watch *watch)
{
    pthread_t thread;
    link_place place = {.rank = 1, .world_size = 2, .join_timeout_ms = patience_ms, .death_timeout_ms = 2000};
    who->fd = link_watch_listen(&place.port);
    assert_int_equal(pthread_create(&thread, NULL, pretend, who), 0);
    link_watch_init(watch);
    link_watch_open(watch, &place);
    atomic_store(&who->over, true);
    pthread_join(thread, NULL);
    close(who->fd);
}

static void what_is_certainly_no_store_is_named_at_once(void **state)
{
    link_watch watch;
    imposter ssh = {.words = "SSH-2.0-OpenSSH_9.2\r\n"};
    double before = link_watch_ms();
    meet_imposter(&ssh, 30000, &watch);
    assert_true(link_watch_ms() - before < 5000);
    assert_int_equal(watch.status, WEFT_ERR_PROTOCOL);
    assert_non_null(strstr(watch.error, "does not speak as a store"));
    link_watch_close(&watch);
}

static void what_may_be_no_store_is_named_in_the_end(void **state)
{
    link_watch watch;
    imposter silent = {0}, curt = {.hangs_up = true};
    meet_imposter(&silent, 300, &watch);
    assert_int_equal(watch.status, WEFT_ERR_RENDEZVOUS);
    assert_non_null(strstr(watch.error, "is no store of weft's, or hangs"));
    link_watch_close(&watch);
    meet_imposter(&curt, 300, &watch);
    assert_non_null(strstr(watch.error, "is no store of weft's, or hangs"));
    link_watch_close(&watch);
}

/* ---- Floods ------------------------------------------------------------------------------------------------------ */

typedef struct flood {
    int port;
    atomic_bool over;
    atomic_long made;
} flood;

enum { POURED = 600 }; /* kept open */

/* As fast as it can: connects, says a little, or by turns a whole HELLO without a secret, which is refused in words
 * that nobody reads; keeps the last few hundred open. */
static void *pour(void *arg)
{
    static const char hello[8 + 33] = "WS\2\20!";
    flood *at = arg;
    int held[POURED];
    memset(held, -1, sizeof(held));
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons((uint16_t)at->port)};
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (unsigned n = 0; !atomic_load(&at->over); n = (n + 1) % POURED) {
        if (held[n] >= 0)
            close(held[n]);
        held[n] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
        if (held[n] < 0)
            continue;
        struct linger at_once = {.l_onoff = 1}; /* no TIME_WAIT: thousands of ports would be used up */
        (void)setsockopt(held[n], SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
        (void)connect(held[n], (const struct sockaddr *)&where, sizeof(where));
        (void)!send(held[n], hello, n % 2 ? sizeof(hello) : n % 9, MSG_NOSIGNAL);
        atomic_fetch_add(&at->made, 1);
    }
    for (unsigned n = 0; n < POURED; n++)
        if (held[n] >= 0)
            close(held[n]);
    return NULL;
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

static void a_flood_leaves_joining_possible_and_nothing_grows(void **state)
{
    pair at;
    pthread_t pourer;
    begin(&at, SECRET, SECRET);
    flood much = {.port = at.port};
    assert_int_equal(pthread_create(&pourer, NULL, pour, &much), 0);
    while (atomic_load(&much.made) < 2000)
        usleep(1000);
    double before = link_watch_ms();
    link_watch_open(&at.watches[1], &at.places[1]);
    double took = link_watch_ms() - before;
    int descriptors = count_descriptors();
    atomic_store(&much.over, true);
    pthread_join(pourer, NULL);
    pthread_join(at.first, NULL);
    print_message("joined in %.1f ms among %ld strangers; %d descriptors\n", took, atomic_load(&much.made),
                  descriptors);
    assert_int_equal(at.watches[1].status, WEFT_OK);
    assert_true(took < 5000);
    assert_true(descriptors < POURED + 258 + 2 + 64 + 40); /* theirs, the store's places, a round's arrivals, ours */
    finish(&at);
}

UNIT_MAIN(with_the_same_secret_both_join, a_missing_secret_is_named, another_secret_is_refused_by_the_worker,
          who_gave_up_at_the_door_gets_no_answer, who_waits_long_for_rank_0_says_everything_once,
          an_elastic_job_over_sockets, what_is_certainly_no_store_is_named_at_once,
          what_may_be_no_store_is_named_in_the_end, a_flood_leaves_joining_possible_and_nothing_grows)
