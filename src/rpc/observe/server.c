/* SPDX-License-Identifier: Apache-2.0 */
/*
 * observe/server.c - a small HTTP server on 127.0.0.1: GET /metrics (Prometheus text) and GET /debug (weft_debug_dump).
 *
 * It has one thread and at most CONNECTIONS clients. A connection has one request, of limited size, and limited time.
 * If all places are in use, a new client replaces the oldest one that has not sent its request, so silent clients do
 * not block others. An answer is made in memory first, so the agent's lock is never held while a socket is written.
 */
#include "base/alloc.h"
#include "rpc/observe/observe.h"

#include "base/error.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define CONNECTIONS 8
#define REQUEST_MAX 4096
#define TIME_NS UINT64_C(5000000000)        /* time limit of a connection */
#define ACCEPT_PAUSE_NS UINT64_C(100000000) /* pause if there was no descriptor for a client */

typedef struct client {
    int fd; /* -1: free */
    uint64_t deadline_ns;
    char request[REQUEST_MAX + 1];
    size_t got;
    char *answer; /* NULL: the request is incomplete */
    size_t size, sent;
} client;

struct wfi_listener {
    weft_agent *agent;
    int fd, wake_fd, port;
    bool running;
    pthread_t thread;
    uint64_t accept_at_ns;
    client clients[CONNECTIONS];
};

/* ---- Answers
 * ------------------------------------------------------------------------------------------------------------- */

static void write_head(FILE *to, const char *status, const char *type)
{
    fprintf(to, "HTTP/1.1 %s\r\nContent-Type: %s\r\nConnection: close\r\nCache-Control: no-store\r\n%s\r\n", status,
            type, strncmp(status, "405", 3) == 0 ? "Allow: GET\r\n" : "");
}

static void write_failure(FILE *to, const char *status)
{
    write_head(to, status, "text/plain; charset=utf-8");
    fprintf(to, "%s\n", status);
}

static weft_status write_page(const weft_agent *agent, FILE *to, const char *path)
{
    bool dump = strcmp(path, "/debug") == 0;
    write_head(to, "200 OK", dump ? "application/json" : "text/plain; version=0.0.4; charset=utf-8");
    return dump ? weft_debug_dump(agent, to) : weft_metrics_write(agent, to);
}

/* Splits "METHOD target HTTP/1.x" in place; false if the line is malformed. */
static bool read_request_line(char *request, char **method, char **path)
{
    char *end = strstr(request, "\r\n"), *version;
    if (!end)
        return false;
    *end = '\0';
    *method = request;
    *path = strchr(request, ' ');
    version = *path ? strchr(*path + 1, ' ') : NULL;
    if (!version || (strcmp(version + 1, "HTTP/1.1") != 0 && strcmp(version + 1, "HTTP/1.0") != 0))
        return false;
    *(*path)++ = '\0';
    *version = '\0';
    if (strchr(*path, '?'))
        *strchr(*path, '?') = '\0';
    return **path == '/' && **method;
}

static void answer_into(const weft_agent *agent, char *request, FILE *to)
{
    char *method, *path;
    if (!read_request_line(request, &method, &path)) {
        write_failure(to, "400 Bad Request");
    } else if (strcmp(path, "/metrics") != 0 && strcmp(path, "/debug") != 0) {
        write_failure(to, "404 Not Found");
    } else if (strcmp(method, "GET") != 0) {
        write_failure(to, "405 Method Not Allowed");
    } else if (write_page(agent, to, path)) {
        rewind(to); /* discards the text so far */
        write_failure(to, "500 Internal Server Error");
    }
}

/* Makes the whole answer in memory; false if memory is out. */
static bool make_answer(const weft_agent *agent, client *c)
{
    FILE *to = open_memstream(&c->answer, &c->size);
    if (!to)
        return false;
    if (c->got == REQUEST_MAX)
        write_failure(to, "431 Request Header Fields Too Large");
    else
        answer_into(agent, c->request, to);
    bool good = !fflush(to) && !ferror(to);
    return !fclose(to) && good;
}

/* ---- Clients
 * ------------------------------------------------------------------------------------------------------------- */

static void drop_client(client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    free(c->answer);
    c->answer = NULL;
    c->fd = -1;
}

/* A place for a new client; NULL: all clients are being answered. */
static client *find_place(wfi_listener *listener)
{
    client *oldest = NULL;
    for (client *c = listener->clients; c < listener->clients + CONNECTIONS; c++) {
        if (c->fd < 0)
            return c;
        if (!c->answer && (!oldest || c->deadline_ns < oldest->deadline_ns))
            oldest = c;
    }
    if (oldest)
        drop_client(oldest);
    return oldest;
}

static void accept_one(wfi_listener *listener, uint64_t now_ns)
{
    int fd = accept4(listener->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0) {
        if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
            listener->accept_at_ns = now_ns + ACCEPT_PAUSE_NS;
        return;
    }
    client *c = find_place(listener);
    if (!c) {
        close(fd);
        return;
    }
    *c = (client){.fd = fd, .deadline_ns = now_ns + TIME_NS};
}

static void read_some(wfi_listener *listener, client *c)
{
    ssize_t got = recv(c->fd, c->request + c->got, REQUEST_MAX - c->got, 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (got <= 0) {
        drop_client(c);
        return;
    }
    c->got += (size_t)got;
    c->request[c->got] = '\0';
    bool whole = memmem(c->request, c->got, "\r\n\r\n", 4) != NULL;
    if ((whole || c->got == REQUEST_MAX) && !make_answer(listener->agent, c))
        drop_client(c);
}

static void write_some(client *c)
{
    ssize_t sent = send(c->fd, c->answer + c->sent, c->size - c->sent, MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (sent > 0)
        c->sent += (size_t)sent;
    if (sent > 0 && c->sent < c->size)
        return;
    /* Reads bytes that the client sent after its request: otherwise closing could discard the end of the answer. */
    (void)shutdown(c->fd, SHUT_WR);
    for (int i = 0; i < 16 && recv(c->fd, c->request, REQUEST_MAX, 0) > 0; i++)
        continue;
    drop_client(c);
}

/* ---- The thread
 * ------------------------------------------------------------------------------------------------------------ */

static int timeout_until(uint64_t due_ns, uint64_t now_ns)
{
    if (due_ns == WFI_NEVER)
        return -1;
    return due_ns > now_ns ? (int)((due_ns - now_ns) / 1000000u) + 1 : 0;
}

static size_t fill_polls(wfi_listener *listener, struct pollfd *polls, uint64_t now_ns, uint64_t *due_ns)
{
    bool open = listener->accept_at_ns <= now_ns;
    *due_ns = open ? WFI_NEVER : listener->accept_at_ns;
    polls[0] = (struct pollfd){.fd = listener->wake_fd, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = open ? listener->fd : -1, .events = POLLIN};
    for (size_t i = 0; i < CONNECTIONS; i++) {
        client *c = &listener->clients[i];
        if (c->fd >= 0 && c->deadline_ns <= now_ns)
            drop_client(c);
        if (c->fd >= 0 && c->deadline_ns < *due_ns)
            *due_ns = c->deadline_ns;
        polls[2 + i] = (struct pollfd){.fd = c->fd, .events = c->answer ? POLLOUT : POLLIN};
    }
    return 2 + CONNECTIONS;
}

static void *run_server(void *arg)
{
    wfi_listener *listener = arg;
    struct pollfd polls[2 + CONNECTIONS];
    for (;;) {
        uint64_t now = wfi_now(&wfi_clock_real), due;
        size_t count = fill_polls(listener, polls, now, &due);
        if (poll(polls, count, timeout_until(due, now)) < 0 && errno != EINTR)
            return NULL;
        if (polls[0].revents)
            return NULL;
        for (size_t i = 0; i < CONNECTIONS; i++) {
            client *c = &listener->clients[i];
            if (!polls[2 + i].revents)
                continue;
            if (c->answer)
                write_some(c);
            else
                read_some(listener, c);
        }
        if (polls[1].revents) /* last: it may replace one of these clients */
            accept_one(listener, wfi_now(&wfi_clock_real));
    }
}

/* ---- Opening and closing
 * ------------------------------------------------------------------------------------------------ */

static weft_status bind_port(wfi_listener *listener, int port, weft_error **error)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)(port < 0 ? 0 : port))};
    socklen_t size = sizeof address;
    int on = 1;
    listener->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    listener->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool good = listener->wake_fd >= 0 && listener->fd >= 0 &&
                !setsockopt(listener->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) &&
                !bind(listener->fd, (struct sockaddr *)&address, size) && !listen(listener->fd, 64) &&
                !getsockname(listener->fd, (struct sockaddr *)&address, &size);
    listener->port = ntohs(address.sin_port);
    if (good)
        return WEFT_OK;
    weft_status st = errno == EADDRINUSE ? WEFT_ERR_EXISTS : WEFT_ERR_SYSTEM;
    wfi_error_give(error, weft_error_create(st, "127.0.0.1:%d (WEFT_METRICS_PORT; -1 takes any free port): %s",
                                            port < 0 ? 0 : port, strerrordesc_np(errno)));
    return st;
}

weft_status wfi_listener_open(int port, wfi_listener **out, weft_error **error)
{
    wfi_listener *listener = wfi_calloc(1, sizeof *listener);
    if (!listener)
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < CONNECTIONS; i++)
        listener->clients[i].fd = -1;
    weft_status st = bind_port(listener, port, error);
    if (st)
        wfi_listener_close(listener);
    else
        *out = listener;
    return st;
}

weft_status wfi_listener_begin(wfi_listener *listener, weft_agent *agent)
{
    sigset_t all, before;
    listener->agent = agent;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    listener->running = pthread_create(&listener->thread, NULL, run_server, listener) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (listener->running)
        (void)pthread_setname_np(listener->thread, "weft-metrics");
    return listener->running ? WEFT_OK : WEFT_ERR_SYSTEM;
}

void wfi_listener_close(wfi_listener *listener)
{
    uint64_t one = 1;
    if (!listener)
        return;
    if (listener->running) {
        while (write(listener->wake_fd, &one, sizeof one) < 0 && errno == EINTR)
            continue;
        pthread_join(listener->thread, NULL);
    }
    for (size_t i = 0; i < CONNECTIONS; i++)
        drop_client(&listener->clients[i]);
    if (listener->fd >= 0)
        close(listener->fd);
    if (listener->wake_fd >= 0)
        close(listener->wake_fd);
    free(listener);
}

int wfi_listener_port(const wfi_listener *listener)
{
    return listener->port;
}
