/* SPDX-License-Identifier: Apache-2.0 */
/*
 * net_host.h - for the tests of net: worlds of a few nets, simulated or over tcp in one process, and messages that
 * count what became of them.
 */
#ifndef TEST_NET_HOST_H
#define TEST_NET_HOST_H

#include "unit.h"

#include "net/inside.h"
#include "sim/sim.h"

#include <stdlib.h>
#include <string.h>

#define HOSTS_MAX 17
#define DIRECTOR 1000 /* the rank of a program that only makes trouble */

typedef struct net_host net_host;
typedef struct net_world net_world;

struct net_host {
    net_world *world;
    int rank;
    bool any; /* opens with whichever rank is free */
    wfi_net *net;
    wfi_executor *executor;
    /* All below under the net's lock, but the counts may be looked at without. */
    atomic_int arrived, done_ok, done_failed, gone, unreachable, joined, self_gone;
    _Atomic(weft_status) why;
    char unreachable_text[512]; /* the last one */
    uint64_t next[HOSTS_MAX];   /* the number that the next message of each peer must bear */
    void *user;
};

struct net_world {
    int size;
    uint64_t bytes_per_second; /* of each connection of the simulation; 0: no limit */
    const char *fabric;        /* in the simulation NULL is "sim", or "sim-verbs" if like_verbs is set */
    weft_sim *sim;
    int port, store_fd;
    int64_t death_timeout_ms;
    const char *const *fabrics; /* for each rank its own list; NULL: `fabric` for all */
    bool no_threads;
    bool elastic;
    bool like_verbs; /* the fabric sim-verbs */
    const char *iface, *ports, *master_addr;
    void (*body)(net_host *host);
    void (*on_message)(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size);
    net_host hosts[HOSTS_MAX];
    atomic_int ready, finished;
    atomic_int turns[80]; /* for host_meet, where once is not enough */
    void *user;
};

/* Runs body(host) on every host of a simulated world, after all have opened; `director` (may be NULL) beside them. */
void world_sim(net_world *world, uint64_t seed, int size, void (*body)(net_host *host),
               void (*director)(weft_sim *sim, int rank, void *world));
/* A director: while hosts 0 and 1 talk, their connection is reset, or cut for a while, twelve times. */
void world_trouble(weft_sim *sim, int rank, void *world);
/* The same over tcp, each host on a thread. */
void world_tcp(net_world *world, int size, void (*body)(net_host *host));

/* Runs one like it for each of so many seeds of the simulation, from 1 on, and over tcp as well. */
void net_play(const net_world *like, int size, void (*body)(net_host *host), uint64_t seeds, bool on_tcp);
/* cmocka's test of one body: NET_TEST(name, body, 2, 10, true, .death_timeout_ms = 400) is `name`. */
#define NET_TEST(name, body, size, seeds, on_tcp, ...)                                                                 \
    static void name(void **cmocka)                                                                                    \
    {                                                                                                                  \
        net_play(&(net_world){__VA_ARGS__}, size, body, seeds, on_tcp);                                                \
    }

/* The parts of it, for worlds of processes. */
void world_init(net_world *world, const char *fabric, int size, void (*body)(net_host *host));
int listen_anywhere(int *port);
weft_status host_try(net_host *host, weft_error **error); /* host_close, whatever comes of it */
void host_open(net_host *host);                           /* ends the program if that fails */
void host_close(net_host *host);

void host_pause(net_host *host, uint64_t ns);
/* Waits until *count >= wanted; fails after 20 s (of the world's time). */
void host_until(net_host *host, atomic_int *count, int wanted);
void host_meet(net_host *host, atomic_int *count); /* until all hosts of the world are here */
wfi_peer *host_peer(net_host *host, int rank);     /* [locked] */
wfi_member host_member(net_host *host, int rank);  /* incarnation 0: nobody; not locked */
uint64_t host_refused(net_host *host);             /* unauthenticated peers, so far; not locked */

/* A message on the heap that frees itself when done: `number`, then `size` bytes that follow from it. */
weft_status host_send(net_host *host, int to, uint64_t number, size_t size, bool urgent); /* [locked] */
weft_status host_send_owed(net_host *host, int to, uint64_t number, size_t size);         /* [locked] */
weft_status host_send_free(net_host *host, int to, uint64_t number, size_t size);         /* takes the lock */
/* on_message: numbers in order and content right, else fails. */
void host_check_order(net_host *host, wfi_peer *from, uint8_t type, const uint8_t *bytes, size_t size);

#endif
