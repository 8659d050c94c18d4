/* SPDX-License-Identifier: Apache-2.0 */
/* link_watch.h - a link to the store whose upcalls are recorded, to be waited for. */
#ifndef LINK_WATCH_H
#define LINK_WATCH_H

#include "unit.h"

#include "job/link/rendezvous.h"

#include <pthread.h>

typedef struct link_watch {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int joined, died, left, dials, evicted, store_lost, probes, synced, terminated; /* how often */
    int last_rank;
    uint64_t last_synced;
    char why[256];
    bool answers_probes; /* idle, with equal counters */
    wfi_rendezvous *link;
    weft_status status; /* of opening */
    char error[256];
} link_watch;

typedef struct link_place { /* where to join */
    int rank, world_size, port, store_fd;
    int64_t join_timeout_ms, death_timeout_ms;
    const char *name; /* NULL: worker<rank> */
    bool no_threads, elastic;
    const char *secret; /* NULL: none */
} link_place;

void link_watch_init(link_watch *watch);
void link_watch_open(link_watch *watch, const link_place *place); /* sets status, error, link */
void link_watch_close(link_watch *watch);
/* Waits until *count >= wanted, at most timeout_ms. */
bool link_watch_await(link_watch *watch, const int *count, int wanted, int timeout_ms);
/* A listening socket on a free port. */
int link_watch_listen(int *port);
double link_watch_ms(void); /* now */

#endif
