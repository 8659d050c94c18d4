/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_severed.c - one worker of a job on several hosts, whose links somebody cuts (tools/long.d/severed_link does).
 *
 * usage: net_severed RANK WORLD_SIZE MASTER_ADDR MASTER_PORT SECONDS [gone | out]
 * Rank 0 offers 64 MiB; the others pull them again and again, and everybody sends numbered messages to everybody, for
 * SECONDS. Without a last word nobody may be declared dead, and every message must have arrived once and in order;
 * rank 0 with `gone` must see a worker die, a worker with `out` must be told that it is: evicted, though the cut was
 * longer than the bound. Exit 0: so it was.
 */
#include "net/net_bulk.h"

#include <stdio.h>
#include <unistd.h>

#define OFFERED ((size_t)64 << 20)
#define OFFER 8 /* type of the message that carries the exposure */
#define BOUND_MS 2000

static bulk mine;
static wfi_exposure offered;
static atomic_int has_offer, pulls;

static void on_message(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size)
{
    if (type != OFFER) {
        host_check_order(host, from, type, bytes, size);
        return;
    }
    if (size != sizeof(offered))
        abort();
    memcpy(&offered, bytes, size);
    atomic_store(&has_offer, 1);
}

static void told(wfi_message *message, weft_status status) {}

static void offer_to(net_host *host, int rank)
{
    static wfi_message messages[HOSTS_MAX];
    static wfi_exposure exposures[HOSTS_MAX];
    wfi_net_lock(host->net);
    if (wfi_peer_expose(host_peer(host, rank), mine.storages[0], wfi_storage_data(mine.storages[0]), OFFERED,
                        WFI_REMOTE_READ, &exposures[rank]))
        abort();
    messages[rank] = (wfi_message){
        .type = OFFER, .head = &exposures[rank], .head_size = sizeof(exposures[rank]), .urgent = true, .done = told};
    if (wfi_peer_send(host_peer(host, rank), &messages[rank]))
        abort();
    wfi_net_unlock(host->net);
}

/* Begins the next pull when the last one is through; counts those that brought the right bytes. */
static void pull_on(net_host *host)
{
    static bool begun;
    if (!atomic_load(&has_offer) || atomic_load(&host->self_gone))
        return;
    if (begun && !atomic_load(&mine.done))
        return;
    if (begun && mine.status)
        return;
    if (begun) {
        if (!bulk_is(&mine, 3)) {
            fprintf(stderr, "rank %d: wrong bytes\n", host->rank);
            exit(1);
        }
        atomic_fetch_add(&pulls, 1);
    }
    bulk remote = {.count = 1};
    remote.exposures[0] = offered;
    bulk_fill(&mine, 0);
    begun = !bulk_begin(&mine, &remote, WFI_PULL);
}

static int chat(net_host *host, double seconds)
{
    const wfi_clock *clock = wfi_net_clock(host->net);
    uint64_t until = wfi_now(clock) + (uint64_t)(seconds * 1e9);
    int sent = 0, size = host->world->size;
    uint64_t next[HOSTS_MAX] = {0};
    while (wfi_now(clock) < until && !atomic_load(&host->self_gone)) {
        for (int rank = 0; rank < size; rank++) {
            if (rank != host->rank && !host_send_free(host, rank, next[rank], 200)) {
                next[rank]++;
                sent++;
            }
        }
        if (host->rank)
            pull_on(host);
        usleep(5000);
    }
    return sent;
}

/* `gone`: how many had gone while everybody was at it. */
static int judge(net_host *host, int sent, int gone, const char *expected)
{
    printf("rank %d: %d messages sent, %d acknowledged, %d failed, %d arrived, %d pulls, %d gone, out: %s\n",
           host->rank, sent, atomic_load(&host->done_ok), atomic_load(&host->done_failed), atomic_load(&host->arrived),
           atomic_load(&pulls), gone, atomic_load(&host->self_gone) ? weft_status_name(atomic_load(&host->why)) : "no");
    if (strcmp(expected, "gone") == 0)
        return gone == 1 && !atomic_load(&host->self_gone) ? 0 : 1;
    weft_status why = atomic_load(&host->why);
    if (strcmp(expected, "out") == 0)
        return atomic_load(&host->self_gone) && why == WEFT_ERR_EVICTED ? 0 : 1;
    bool pulled = !host->rank || (atomic_load(&pulls) > 0 && !mine.status);
    return gone == 0 && atomic_load(&host->done_ok) == sent && pulled ? 0 : 1;
}

int main(int argc, char **argv)
{
    static const size_t size = OFFERED;
    if (argc < 6) {
        fprintf(stderr, "usage: net_severed RANK WORLD_SIZE MASTER_ADDR MASTER_PORT SECONDS [gone | out]\n");
        return 2;
    }
    const char *expected = argc > 6 ? argv[6] : "";
    net_world world = {.death_timeout_ms = BOUND_MS, .on_message = on_message};
    world_init(&world, "tcp", atoi(argv[2]), NULL);
    world.master_addr = argv[3];
    world.port = atoi(argv[4]);
    net_host *host = &world.hosts[atoi(argv[1])];
    alarm(120);
    host_open(host);
    printf("rank %d: in\n", host->rank); /* tools/long.d/severed_link waits for that */
    fflush(stdout);
    bulk_create(&mine, host, 0, &size, 1);
    bulk_fill(&mine, host->rank ? 0 : 3);
    for (int rank = 1; host->rank == 0 && rank < world.size; rank++)
        offer_to(host, rank);
    int sent = chat(host, atof(argv[5])), gone = atomic_load(&host->gone);
    if (!*expected)
        host_until(host, &host->done_ok, sent);
    while (host->rank && !*expected && !atomic_load(&mine.done))
        usleep(10000);
    int rc = judge(host, sent, gone, expected);
    fflush(stdout);
    usleep(host->rank ? 1000000
                      : 4000000); /* the others hear the last of us, and have a store until they are through */
    _exit(rc);
}
