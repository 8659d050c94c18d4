/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_star.c - see raw_star.h. A client sends a request for every message that it gets. So a slice begins with a message to each,
 * and ends with requests that nobody has answered: those whose clients sleep, until the next slice or until they are killed.
 */
#include "raw_star.h"

#include "measure.h"
#include "raw_endpoint.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_S 30 /* no answer takes this long */

struct raw_star {
    int clients, connected;
    size_t answer_bytes;
    raw_endpoint hub; /* the domain, the queue and the listening side */
    raw_endpoint spokes[RAW_STAR_CLIENTS_MAX];
    pid_t children[RAW_STAR_CLIENTS_MAX];
};

/* ---- A client -------------------------------------------------------------------------------------------------- */

/* Addresses come as records, one for each client: whichever reads one connects next. None: there will be no server. */
static int be_client(int addresses, const char *provider, size_t bytes)
{
    raw_endpoint e;
    raw_address server;
    if (read(addresses, &server, sizeof server) != sizeof server)
        return 1;
    int failed = raw_endpoint_open_quiet(&e, provider) || raw_endpoint_connect(&e, &server);
    while (!failed) {
        failed = raw_endpoint_sleep(&e, -1) || raw_endpoint_receive(&e);
        while (!failed && e.asked != e.received)
            failed = raw_endpoint_send(&e, bytes);
    }
    raw_endpoint_close(&e);
    return failed;
}

/* ---- The server ------------------------------------------------------------------------------------------------ */

static int add_child(raw_star *star, const int addresses[2], const char *provider, size_t bytes)
{
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(addresses[0]);
        _exit(getppid() == parent ? be_client(addresses[1], provider, bytes) : 1);
    }
    if (child < 0) {
        perror("raw star: fork");
        return -1;
    }
    star->children[star->clients++] = child;
    return 0;
}

/* All of them before libfabric is used here, so that each has its own from the start. */
static int add_children(raw_star *star, const int addresses[2], const char *provider, int count, size_t bytes)
{
    int failed = 0;
    fflush(NULL);
    for (int i = 0; i < count && !failed; i++)
        failed = add_child(star, addresses, provider, bytes);
    return failed;
}

/* One after the other: no request to connect comes while the end of another's connecting is awaited. */
static int connect_all(raw_star *star, int addresses)
{
    raw_address here;
    if (raw_endpoint_listen(&star->hub, &here))
        return -1;
    for (; star->connected < star->clients; star->connected++) {
        raw_endpoint *spoke = &star->spokes[star->connected];
        raw_endpoint_share(spoke, &star->hub);
        int failed = write(addresses, &here, sizeof here) != sizeof here;
        if (failed)
            perror("raw star: telling the address");
        if (failed || raw_endpoint_accept(spoke)) {
            raw_endpoint_close(spoke);
            return -1;
        }
    }
    return 0;
}

int raw_star_open(const char *provider, int clients, size_t request_bytes, size_t answer_bytes, raw_star **out)
{
    int addresses[2];
    raw_star *star = calloc(1, sizeof *star);
    if (!star || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, addresses)) {
        perror("raw star");
        free(star);
        return -1;
    }
    star->answer_bytes = answer_bytes;
    int failed = add_children(star, addresses, provider, clients, request_bytes);
    close(addresses[1]);
    failed = failed || raw_endpoint_open_quiet(&star->hub, provider) || connect_all(star, addresses[0]);
    close(addresses[0]);
    if (failed)
        raw_star_close(star);
    else
        *out = star;
    return failed ? -1 : 0;
}

/* The clients have nothing that outlives them. */
void raw_star_close(raw_star *star)
{
    if (!star)
        return;
    for (int i = 0; i < star->clients; i++)
        kill(star->children[i], SIGKILL);
    for (int i = 0; i < star->clients; i++)
        waitpid(star->children[i], NULL, 0);
    for (int i = 0; i < star->connected; i++)
        raw_endpoint_close(&star->spokes[i]);
    raw_endpoint_close(&star->hub);
    free(star);
}

/* ---- Slices ---------------------------------------------------------------------------------------------------- */

static bool waits(const raw_endpoint *spoke) /* for the request that our last message asks for */
{
    return spoke->received != spoke->asked;
}

static int answer(raw_star *star, raw_endpoint *spoke)
{
    return raw_endpoint_receive(spoke) || raw_endpoint_send(spoke, star->answer_bytes) ? -1 : 0;
}

static int answer_all(raw_star *star, int clients)
{
    int failed = 0;
    for (int i = 0; i < clients && !failed; i++)
        failed = answer(star, &star->spokes[i]);
    return failed;
}

static int answer_together(raw_star *star, int clients, int rounds)
{
    int failed = 0;
    for (int round = 0; round < rounds && !failed; round++) {
        failed = answer_all(star, clients);
        for (int i = 0; i < clients && !failed; i++) {
            while (!failed && waits(&star->spokes[i]))
                failed = raw_endpoint_sleep(&star->hub, PATIENCE_S);
        }
    }
    return failed;
}

static int answer_each(raw_star *star, int clients, int rounds)
{
    unsigned last[RAW_STAR_CLIENTS_MAX];
    for (int i = 0; i < clients; i++)
        last[i] = star->spokes[i].asked + (unsigned)rounds;
    int failed = answer_all(star, clients);
    for (bool open = true; open && !failed;) {
        open = false;
        failed = raw_endpoint_sleep(&star->hub, PATIENCE_S);
        for (int i = 0; i < clients && !failed; i++) {
            raw_endpoint *spoke = &star->spokes[i];
            if (!waits(spoke) && spoke->asked != last[i])
                failed = answer(star, spoke);
            open = open || waits(spoke);
        }
    }
    return failed;
}

int raw_star_slice(raw_star *star, int clients, bool batched, int rounds, double *us)
{
    double start = measure_now_us();
    int failed = batched ? answer_together(star, clients, rounds) : answer_each(star, clients, rounds);
    *us = measure_now_us() - start;
    return failed ? -1 : 0;
}
