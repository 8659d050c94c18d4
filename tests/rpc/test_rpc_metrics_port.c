/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_metrics_port.c - metrics over HTTP: what is served, to whom not, and clients that mean no good. */
#include "rpc/script.h"
#include "rpc/world.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const weft_function functions[] = {{.name = "nothing", .run = world_run_nothing}};

static weft_status open_with(weft_agent_options options, weft_agent **out, weft_error **error)
{
    options.functions = functions;
    options.function_count = 1;
    options.has_rank = true;
    options.world_size = 1;
    options.master_port = world_free_port();
    return weft_agent_open(&options, out, error);
}

static weft_agent *open_served(void)
{
    weft_agent *agent = NULL;
    assert_int_equal(open_with((weft_agent_options){.metrics_port = -1}, &agent, NULL), WEFT_OK);
    assert_true(weft_metrics_port(agent) > 0);
    return agent;
}

static int connect_to(const weft_agent *agent)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)weft_metrics_port(agent))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

/* Everything until the other end closes; "" if that takes longer than the limit. */
static char *read_answer(int fd)
{
    char *text = calloc(1, 1 << 20);
    size_t size = 0;
    ssize_t got = 1;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    MUST(text);
    while (got > 0 && poll(&wait, 1, 20000) == 1 && (got = recv(fd, text + size, (1 << 20) - 1 - size, 0)) > 0)
        size += (size_t)got;
    close(fd);
    return text;
}

static char *ask(const weft_agent *agent, const char *request)
{
    int fd = connect_to(agent);
    assert_int_equal(send(fd, request, strlen(request), MSG_NOSIGNAL), strlen(request));
    return read_answer(fd);
}

static void must_answer(const weft_agent *agent, const char *request, const char *status)
{
    char *answer = ask(agent, request), expected[64];
    snprintf(expected, sizeof expected, "HTTP/1.1 %s ", status);
    if (strncmp(answer, expected, strlen(expected)) != 0)
        fail_msg("\"%.60s\" was answered with \"%.60s\", not %s", request, answer, status);
    assert_non_null(strstr(answer, "\r\n\r\n"));
    free(answer);
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* Every address of 127.0.0.0/8 is this machine's; only one is served. */
static void only_the_local_address_is_served(void **state)
{
    weft_agent *agent = open_served();
    close(connect_to(agent));
    struct sockaddr_in other = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1),
                                .sin_port = htons((uint16_t)weft_metrics_port(agent))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&other, sizeof other), -1);
    assert_int_equal(errno, ECONNREFUSED);
    close(fd);
    weft_agent_stop(agent);
}

/* ---- What is served ----------------------------------------------------------------------------------------------------- */

static void metrics_are_served(void **state)
{
    weft_agent *agent = open_served();
    assert_int_equal(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL), WEFT_OK);
    char *answer = ask(agent, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
    assert_non_null(strstr(answer, "Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    char *body = strstr(answer, "\r\n\r\n") + 4;
    char *samples = script_run("prometheus_check.py", "", body, strlen(body));
    assert_non_null(samples);
    assert_non_null(strstr(samples, "weft_calls_total{function=\"nothing\",outcome=\"ok\",peer=\"0\",rank=\"0\","
                                    "side=\"caller\",worker=\"worker0\"} 1\n"));
    free(samples);
    free(answer);
    must_answer(agent, "GET /metrics?x=1 HTTP/1.0\r\n\r\n", "200");
    weft_agent_stop(agent);
}

static void the_dump_is_served(void **state)
{
    weft_agent *agent = open_served();
    char *answer = ask(agent, "GET /debug HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_memory_equal(answer, "HTTP/1.1 200 OK\r\n", 17);
    assert_non_null(strstr(answer, "Content-Type: application/json\r\n"));
    char *body = strstr(answer, "\r\n\r\n") + 4;
    assert_int_equal(body[0], '{');
    assert_non_null(strstr(body, "worker0"));
    assert_non_null(strrchr(body, '}'));
    free(answer);
    weft_agent_stop(agent);
}

static void what_is_not_there_is_refused(void **state)
{
    weft_agent *agent = open_served();
    must_answer(agent, "GET / HTTP/1.1\r\n\r\n", "404");
    must_answer(agent, "GET /metrics/../etc/passwd HTTP/1.1\r\n\r\n", "404");
    must_answer(agent, "POST /metrics HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "405");
    must_answer(agent, "GET /metrics\r\n\r\n", "400");
    must_answer(agent, "GET metrics HTTP/1.1\r\n\r\n", "400");
    must_answer(agent, "GET /metrics HTTP/2.0\r\n\r\n", "400");
    must_answer(agent, " / HTTP/1.1\r\n\r\n", "400");
    must_answer(agent, "\r\n\r\n", "400");
    must_answer(agent, "\x16\x03\x01\x02 tls?\r\n\r\n", "400");
    char big[8192] = "GET /metrics HTTP/1.1\r\nX: ";
    memset(big + strlen(big), 'x', sizeof big - strlen(big) - 1);
    must_answer(agent, big, "431");
    weft_agent_stop(agent);
}

/* ---- Clients that mean no good -------------------------------------------------------------------------------------------- */

static void silent_clients_keep_nobody_out(void **state)
{
    enum { SILENT = 40 };
    int fds[SILENT];
    weft_agent *agent = open_served();
    for (int i = 0; i < SILENT; i++) {
        fds[i] = connect_to(agent);
        if (i % 2)
            assert_int_equal(send(fds[i], "GET /met", 8, MSG_NOSIGNAL), 8);
    }
    uint64_t before = now_ms();
    must_answer(agent, "GET /metrics HTTP/1.1\r\n\r\n", "200");
    assert_true(now_ms() - before < 3000);
    before = now_ms();
    weft_agent_stop(agent); /* with some of them still there */
    assert_true(now_ms() - before < 3000);
    for (int i = 0; i < SILENT; i++)
        close(fds[i]);
}

static void a_slow_client_is_cut_off(void **state)
{
    weft_agent *agent = open_served();
    int fd = connect_to(agent);
    uint64_t before = now_ms();
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    while (send(fd, "x", 1, MSG_NOSIGNAL) == 1 && now_ms() - before < 15000)
        if (poll(&wait, 1, 200)) /* a byte now and then does not buy it time */
            break;
    assert_true(now_ms() - before >= 4000);
    assert_true(now_ms() - before < 15000);
    close(fd);
    weft_agent_stop(agent);
}

/* Asks for what does not fit its receive buffer, and takes nothing. */
static void a_client_that_does_not_read_holds_nobody(void **state)
{
    int fds[4], small = 1024;
    char name[32];
    weft_agent *agent = open_served();
    for (int i = 0; i < 400; i++) { /* some 2 MB of text */
        snprintf(name, sizeof name, "function %d", i);
        weft_function function = {.name = name, .run = world_run_nothing};
        assert_int_equal(weft_agent_register(agent, &function), WEFT_OK);
        assert_int_equal(weft_rpc_sync(agent, weft_to_rank(0), name, WEFT_NO_VALUES, NULL, NULL), WEFT_OK);
    }
    for (int i = 0; i < 4; i++) {
        fds[i] = connect_to(agent);
        (void)setsockopt(fds[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
        assert_int_equal(send(fds[i], "GET /metrics HTTP/1.1\r\n\r\n", 25, MSG_NOSIGNAL), 25);
    }
    for (int i = 0; i < 4; i++) /* its answer is made, and begun */
        assert_int_equal(poll(&(struct pollfd){.fd = fds[i], .events = POLLIN}, 1, 60000), 1);
    uint64_t before = now_ms();
    must_answer(agent, "GET /nothing HTTP/1.1\r\n\r\n", "404");
    assert_int_equal(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL), WEFT_OK);
    assert_true(now_ms() - before < 4000);
    close(fds[0]); /* in the middle of its answer */
    weft_agent_stop(agent);
    for (int i = 1; i < 4; i++)
        close(fds[i]);
}

/* ---- Options ---------------------------------------------------------------------------------------------------------------- */

static char said[256]; /* the last warning */

static void keep_warning(weft_log_level level, const char *line, void *arg)
{
    if (level == WEFT_LOG_WARN && strstr(line, "metrics"))
        snprintf(said, sizeof said, "%s", line);
}

/* Metrics are not worth a job. */
static void a_port_in_use_costs_the_metrics_alone(void **state)
{
    weft_agent *agent = open_served(), *second = NULL;
    char port[16];
    snprintf(port, sizeof port, ":%d", weft_metrics_port(agent));
    weft_agent_options options = {.metrics_port = weft_metrics_port(agent)};
    weft_logging_set_sink(keep_warning, NULL);
    assert_int_equal(open_with(options, &second, NULL), WEFT_OK);
    weft_logging_set_sink(NULL, NULL);
    assert_non_null(strstr(said, port));
    assert_non_null(strstr(said, "WEFT_METRICS_PORT"));
    assert_int_equal(weft_metrics_port(second), 0);
    assert_int_equal(weft_rpc_sync(second, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL), WEFT_OK);
    weft_agent_stop(second);
    weft_agent_stop(agent);
    assert_int_equal(open_with(options, &second, NULL), WEFT_OK); /* now it is free */
    assert_int_equal(weft_metrics_port(second), options.metrics_port);
    weft_agent_stop(second);
}

/* Rank 0 binds the store's port before anything else. */
static void the_stores_port_is_the_stores(void **state)
{
    weft_agent *agent = NULL;
    int port = world_free_port();
    weft_agent_options options = {
        .has_rank = true, .world_size = 1, .master_port = port, .metrics_port = port, .rendezvous_timeout_ms = 20000};
    assert_int_equal(weft_agent_open(&options, &agent, NULL), WEFT_OK);
    assert_int_equal(weft_metrics_port(agent), 0);
    weft_agent_stop(agent);
}

static void the_environment_asks_too(void **state)
{
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    setenv("WEFT_METRICS_PORT", "-1", 1);
    assert_int_equal(open_with((weft_agent_options){0}, &agent, NULL), WEFT_OK);
    must_answer(agent, "GET /metrics HTTP/1.1\r\n\r\n", "200");
    weft_agent_stop(agent);
    setenv("WEFT_METRICS_PORT", "70000", 1);
    assert_int_equal(open_with((weft_agent_options){0}, &agent, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "WEFT_METRICS_PORT"));
    weft_error_unref(error);
    unsetenv("WEFT_METRICS_PORT");
    assert_int_equal(open_with((weft_agent_options){0}, &agent, NULL), WEFT_OK);
    assert_int_equal(weft_metrics_port(agent), 0);
    weft_agent_stop(agent);
    assert_int_equal(open_with((weft_agent_options){.metrics_port = -2}, &agent, NULL), WEFT_ERR_INVALID);
    assert_int_equal(open_with((weft_agent_options){.metrics_port = -1, .no_threads = true}, &agent, NULL),
                     WEFT_ERR_INVALID);
}

UNIT_MAIN(only_the_local_address_is_served, metrics_are_served, the_dump_is_served, what_is_not_there_is_refused,
          silent_clients_keep_nobody_out, a_slow_client_is_cut_off, a_client_that_does_not_read_holds_nobody,
          a_port_in_use_costs_the_metrics_alone, the_stores_port_is_the_stores, the_environment_asks_too)
