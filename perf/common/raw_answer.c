/* SPDX-License-Identifier: Apache-2.0 */
/* raw_answer.c - see raw_answer.h. Rounds of a slice are told to a client as an answer: those that the server gives hold 0. */
#include "raw_answer.h"

#include "measure.h"

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

#define ANSWER_BYTES 16
#define REQUEST_MAX 4096

struct raw_answer {
    int clients, bytes;
    struct pollfd sockets[RAW_ANSWER_CLIENTS_MAX];
    pid_t children[RAW_ANSWER_CLIENTS_MAX];
};

static int complain(const char *what)
{
    perror(what);
    return -1;
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

static void be_client(const struct sockaddr_in *address, int bytes)
{
    char request[REQUEST_MAX] = {0};
    uint64_t answer[ANSWER_BYTES / 8], rounds = 0;
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fd < 0 || connect(fd, (const struct sockaddr *)address, sizeof *address))
        _exit(1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    while (read_all(fd, answer, sizeof answer)) {
        rounds = answer[0] ? answer[0] : rounds - 1;
        if (rounds && !write_all(fd, request, (size_t)bytes))
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
    if (fd >= 0 && !bind(fd, (struct sockaddr *)address, sizeof *address) && !listen(fd, RAW_ANSWER_CLIENTS_MAX) &&
        !getsockname(fd, (struct sockaddr *)address, &size))
        return fd;
    if (fd >= 0)
        close(fd);
    return complain("listening");
}

static int add_client(raw_answer *raw, int listener, const struct sockaddr_in *address)
{
    int one = 1;
    pid_t child = fork();
    if (child == 0)
        be_client(address, raw->bytes);
    if (child < 0)
        return complain("fork");
    raw->children[raw->clients] = child;
    int fd = accept(listener, NULL, NULL);
    raw->sockets[raw->clients++] = (struct pollfd){.fd = fd, .events = POLLIN};
    if (fd < 0)
        return complain("accept");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return 0;
}

int raw_answer_open(int clients, int bytes, raw_answer **out)
{
    struct sockaddr_in address;
    raw_answer *raw = calloc(1, sizeof *raw);
    int listener = raw ? listen_somewhere(&address) : complain("raw_answer");
    int failed = listener < 0;
    if (raw)
        raw->bytes = bytes;
    for (int i = 0; i < clients && !failed; i++)
        failed = add_client(raw, listener, &address);
    if (listener >= 0)
        close(listener);
    if (failed)
        raw_answer_close(raw);
    else
        *out = raw;
    return failed ? -1 : 0;
}

void raw_answer_close(raw_answer *raw)
{
    if (!raw)
        return;
    for (int i = 0; i < raw->clients; i++) {
        if (raw->sockets[i].fd >= 0) {
            shutdown(raw->sockets[i].fd, SHUT_RDWR); /* its client ends, though later ones inherited the descriptor */
            close(raw->sockets[i].fd);
        }
        waitpid(raw->children[i], NULL, 0);
    }
    free(raw);
}

static bool answer(int fd, uint64_t word)
{
    const uint64_t text[ANSWER_BYTES / 8] = {word};
    return write_all(fd, text, sizeof text);
}

static bool answer_together(raw_answer *raw, int clients, int rounds)
{
    char request[REQUEST_MAX];
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < clients; i++)
            if (!read_all(raw->sockets[i].fd, request, (size_t)raw->bytes))
                return false;
        for (int i = 0; i < clients; i++)
            if (!answer(raw->sockets[i].fd, 0))
                return false;
    }
    return true;
}

static bool answer_each(raw_answer *raw, int clients, int rounds)
{
    char request[REQUEST_MAX];
    for (long left = (long)clients * rounds; left > 0;) {
        if (poll(raw->sockets, (nfds_t)clients, -1) < 0)
            return false;
        for (int i = 0; i < clients; i++) {
            if (!raw->sockets[i].revents)
                continue;
            if (!read_all(raw->sockets[i].fd, request, (size_t)raw->bytes) || !answer(raw->sockets[i].fd, 0))
                return false;
            left--;
        }
    }
    return true;
}

int raw_answer_slice(raw_answer *raw, int clients, bool batched, int rounds, double *us)
{
    double start = measure_now_us();
    for (int i = 0; i < clients; i++)
        if (!answer(raw->sockets[i].fd, (uint64_t)rounds))
            return complain("starting a slice");
    bool ok = batched ? answer_together(raw, clients, rounds) : answer_each(raw, clients, rounds);
    *us = measure_now_us() - start;
    return ok ? 0 : complain("a raw client");
}
