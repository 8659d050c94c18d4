/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_rounds.c - the floor of perf/cartpole: microseconds a round of all clients, a process each, with a server that
 * only answers, over blocking TCP sockets on loopback. A client sends a request and waits for the answer. In a batched
 * slice the server reads one request of every client, and then answers all; otherwise it answers each as it comes.
 * Prints one JSON object.
 *
 * The number of rounds of a slice is told to a client as an answer; the answers of a round hold 0.
 */
#include "common/measure.h"

#include "cli.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define CLIENTS_MAX 64
#define ANSWER_BYTES 16
#define REQUEST_BYTES 64
#define SLICES 5

typedef struct server {
    int clients;
    struct pollfd sockets[CLIENTS_MAX];
    pid_t children[CLIENTS_MAX];
} server;

static bool complain(const char *what)
{
    perror(what);
    return false;
}

static bool read_all(int fd, void *to, size_t size)
{
    for (char *at = to; size;) {
        ssize_t got = recv(fd, at, size, 0);
        if (got <= 0)
            return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t size)
{
    for (const char *at = from; size;) {
        ssize_t put = send(fd, at, size, MSG_NOSIGNAL);
        if (put <= 0)
            return false;
        at += put;
        size -= (size_t)put;
    }
    return true;
}

/* ---- A client -------------------------------------------------------------------------------------------------------- */

static void be_client(const struct sockaddr_in *address)
{
    char request[REQUEST_BYTES] = {0};
    uint64_t answer[ANSWER_BYTES / 8], rounds = 0;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address))
        _exit(1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while (read_all(fd, answer, sizeof answer)) {
        rounds = answer[0] ? answer[0] : rounds - 1;
        if (rounds && !write_all(fd, request, sizeof request))
            _exit(1);
    }
    _exit(0);
}

/* ---- The server -------------------------------------------------------------------------------------------------------- */

static int listen_somewhere(struct sockaddr_in *address)
{
    socklen_t size = sizeof *address;
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd >= 0 && !bind(fd, (struct sockaddr *)address, sizeof *address) && !listen(fd, CLIENTS_MAX) &&
        !getsockname(fd, (struct sockaddr *)address, &size))
        return fd;
    if (fd >= 0)
        close(fd);
    (void)complain("listening");
    return -1;
}

static bool add_client(server *s, int listener, const struct sockaddr_in *address)
{
    int one = 1;
    pid_t child = fork();
    if (child == 0)
        be_client(address);
    if (child < 0)
        return complain("fork");
    s->children[s->clients] = child;
    int fd = accept(listener, NULL, NULL);
    s->sockets[s->clients++] = (struct pollfd){.fd = fd, .events = POLLIN};
    return fd >= 0 ? setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one) == 0 : complain("accept");
}

static bool open_server(server *s, int clients)
{
    struct sockaddr_in address;
    int listener = listen_somewhere(&address);
    bool ok = listener >= 0;
    for (int i = 0; i < clients && ok; i++)
        ok = add_client(s, listener, &address);
    if (listener >= 0)
        close(listener);
    return ok;
}

static void close_server(server *s)
{
    for (int i = 0; i < s->clients; i++) {
        if (s->sockets[i].fd >= 0) {
            shutdown(s->sockets[i].fd, SHUT_RDWR); /* its client ends, though later ones inherited the descriptor */
            close(s->sockets[i].fd);
        }
        waitpid(s->children[i], NULL, 0);
    }
}

static bool answer(int fd, uint64_t word)
{
    const uint64_t text[ANSWER_BYTES / 8] = {word};
    return write_all(fd, text, sizeof text);
}

static bool answer_together(server *s, int rounds)
{
    char request[REQUEST_BYTES];
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < s->clients; i++)
            if (!read_all(s->sockets[i].fd, request, sizeof request))
                return false;
        for (int i = 0; i < s->clients; i++)
            if (!answer(s->sockets[i].fd, 0))
                return false;
    }
    return true;
}

static bool answer_each(server *s, int rounds)
{
    char request[REQUEST_BYTES];
    for (long left = (long)s->clients * rounds; left > 0;) {
        if (poll(s->sockets, (nfds_t)s->clients, -1) < 0)
            return false;
        for (int i = 0; i < s->clients; i++) {
            if (!s->sockets[i].revents)
                continue;
            if (!read_all(s->sockets[i].fd, request, sizeof request) || !answer(s->sockets[i].fd, 0))
                return false;
            left--;
        }
    }
    return true;
}

/* Adds the microseconds of a round. */
static bool time_slice(server *s, bool is_batched, int rounds, series *out)
{
    double start = measure_now_us();
    for (int i = 0; i < s->clients; i++)
        if (!answer(s->sockets[i].fd, (uint64_t)rounds))
            return complain("starting a slice");
    bool ok = is_batched ? answer_together(s, rounds) : answer_each(s, rounds);
    series_add(out, (measure_now_us() - start) / rounds);
    return ok || complain("a client");
}

int main(int argc, char **argv)
{
    int64_t clients = 8, rounds = 1000;
    const cli_option options[] = {
        {"clients", CLI_INT, &clients, 1, CLIENTS_MAX, NULL, "N", "processes that ask", "8"},
        {"rounds", CLI_INT, &rounds, 1, 1e6, NULL, "N", "requests of each in a slice; the best of five slices counts",
         "1000"},
    };
    const cli program = {
        .program = "raw_rounds",
        .purpose = "a round of clients with a server that only answers, over TCP sockets",
        .example = "raw_rounds --clients 8",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    server s = {0};
    series batched = {0}, each = {0};
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    bool ok = open_server(&s, (int)clients);
    for (int i = 0; ok && i < SLICES; i++) /* the best counts, because other programs only add time */
        ok = time_slice(&s, true, (int)rounds, &batched) && time_slice(&s, false, (int)rounds, &each);
    if (ok)
        printf("{\"batched_us\": %.6g, \"each_us\": %.6g}\n", series_summary(&batched).min, series_summary(&each).min);
    close_server(&s);
    series_fini(&batched);
    series_fini(&each);
    return ok ? cli_flush("raw_rounds", 0) : 1;
}
