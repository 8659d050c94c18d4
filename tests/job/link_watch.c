/* SPDX-License-Identifier: Apache-2.0 */
/* link_watch.c - a link to the store whose upcalls are recorded. */
#include "link_watch.h"

#include "base/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static void note(link_watch *watch, int *count, int rank, const char *why)
{
    pthread_mutex_lock(&watch->lock);
    (*count)++;
    watch->last_rank = rank;
    snprintf(watch->why, sizeof(watch->why), "%s", why);
    pthread_cond_broadcast(&watch->changed);
    pthread_mutex_unlock(&watch->lock);
}

static void on_joined(void *arg, const wfi_member *member)
{
    link_watch *watch = arg;
    assert_true(member->incarnation > 0);
    note(watch, &watch->joined, member->rank, member->name);
}

static void on_died(void *arg, int rank, uint32_t incarnation, const char *why)
{
    link_watch *watch = arg;
    assert_true(incarnation > 0);
    note(watch, &watch->died, rank, why);
}

static void on_left(void *arg, int rank, uint32_t incarnation)
{
    link_watch *watch = arg;
    assert_true(incarnation > 0);
    note(watch, &watch->left, rank, "");
}

static void on_dial(void *arg, int rank, uint32_t incarnation)
{
    link_watch *watch = arg;
    assert_true(incarnation > 0);
    note(watch, &watch->dials, rank, "");
}

static void on_evicted(void *arg, const char *why)
{
    link_watch *watch = arg;
    note(watch, &watch->evicted, -1, why);
}

static void on_store_lost(void *arg, const char *why)
{
    link_watch *watch = arg;
    note(watch, &watch->store_lost, -1, why);
}

static void on_probe(void *arg, uint64_t wave)
{
    link_watch *watch = arg;
    static const wfi_idle_report idle = {.idle = true};
    note(watch, &watch->probes, -1, "");
    if (watch->answers_probes)
        wfi_rendezvous_report(watch->link, wave, &idle);
}

static void on_synced(void *arg, uint64_t number)
{
    link_watch *watch = arg;
    watch->last_synced = number;
    note(watch, &watch->synced, -1, "");
}

static void on_terminated(void *arg)
{
    link_watch *watch = arg;
    note(watch, &watch->terminated, -1, "");
}

void link_watch_init(link_watch *watch)
{
    pthread_condattr_t attributes;
    memset(watch, 0, sizeof(*watch));
    pthread_mutex_init(&watch->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&watch->changed, &attributes);
    pthread_condattr_destroy(&attributes);
}

void link_watch_open(link_watch *watch, const link_place *place)
{
    char name[32];
    weft_error *error = NULL;
    snprintf(name, sizeof(name), "worker%d", place->rank);
    wfi_rendezvous_events events = {.joined = on_joined,
                                    .died = on_died,
                                    .left = on_left,
                                    .dial = on_dial,
                                    .evicted = on_evicted,
                                    .store_lost = on_store_lost,
                                    .probe = on_probe,
                                    .synced = on_synced,
                                    .terminated = on_terminated,
                                    .arg = watch};
    wfi_rendezvous_options options = {.rank = place->rank,
                                      .world_size = place->world_size,
                                      .elastic = place->elastic,
                                      .secret = (const uint8_t *)place->secret,
                                      .secret_size = place->secret ? strlen(place->secret) : 0,
                                      .name = place->name       ? place->name
                                              : place->rank < 0 ? NULL
                                                                : name,
                                      .addresses = (const uint8_t *)"there",
                                      .addresses_size = 5,
                                      .master_addr = "127.0.0.1",
                                      .master_port = place->port,
                                      .store_fd = place->rank == 0 ? place->store_fd : -1,
                                      .no_threads = place->no_threads,
                                      .join_timeout_ms = place->join_timeout_ms,
                                      .death_timeout_ms = place->death_timeout_ms,
                                      .clock = &wfi_clock_real,
                                      .events = &events};
    watch->status = wfi_rendezvous_open(&options, &watch->link, &error);
    snprintf(watch->error, sizeof(watch->error), "%s", weft_error_message(error));
    weft_error_unref(error);
}

void link_watch_close(link_watch *watch)
{
    if (!watch->status)
        wfi_rendezvous_close(watch->link);
    watch->link = NULL;
    pthread_cond_destroy(&watch->changed);
    pthread_mutex_destroy(&watch->lock);
}

bool link_watch_await(link_watch *watch, const int *count, int wanted, int timeout_ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += timeout_ms / 1000;
    until.tv_nsec += timeout_ms % 1000 * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    int trouble = 0;
    pthread_mutex_lock(&watch->lock);
    while (*count < wanted && trouble != ETIMEDOUT)
        trouble = pthread_cond_timedwait(&watch->changed, &watch->lock, &until);
    bool reached = *count >= wanted;
    pthread_mutex_unlock(&watch->lock);
    return reached;
}

int link_watch_listen(int *port)
{
    int fd;
    wfi_endpoint where;
    assert_int_equal(wfi_listen_at("127.0.0.1", 0, &fd, NULL), WEFT_OK);
    assert_int_equal(wfi_listens_at(fd, &where), WEFT_OK);
    *port = ntohs(((const struct sockaddr_in *)&where.address)->sin_port);
    return fd;
}

double link_watch_ms(void)
{
    return (double)wfi_now(&wfi_clock_real) / 1e6;
}
