/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_addresses.c - where workers find each other on tcp: IPv6 in brackets, addresses of one link, two families in
 * one job; and what the errors say where they do not.
 */
#include "rpc/world.h"
#include "tensors.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 2 };

static struct plan {
    const char *master_addr, *iface[SIZE]; /* NULL: the default */
    int64_t death_timeout_ms;
} plan;

static const weft_function functions[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
};

static void adjust(weft_agent_options *options, void *arg)
{
    if (plan.master_addr)
        options->master_addr = plan.master_addr;
    options->iface = plan.iface[options->rank];
    options->death_timeout_ms = plan.death_timeout_ms;
}

/* A large tensor goes over a connection of its own. */
static void call_each_other(weft_agent *agent, void *arg)
{
    weft_values *values;
    weft_tensor *x = tensor_full(WEFT_SHAPE(1 << 20), WEFT_DTYPE_UINT8, 7);
    for (int to = 0; to < SIZE; to++) {
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(to), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &values));
        weft_values_unref(values);
    }
    weft_tensor_unref(x);
}

static void play(struct plan how, void (*program)(weft_agent *agent, void *arg))
{
    plan = how;
    world_play(&(world){.program = program, .size = SIZE, .adjust = adjust, WORLD_FUNCTIONS(functions)}, 0, 1);
}

/* The first address that is right for `wanted`, with its interface; false: this machine has none. */
static bool find_address(bool (*wanted)(const struct in6_addr *address), char *out, size_t room,
                         char iface[IF_NAMESIZE])
{
    struct ifaddrs *all = NULL;
    bool found = false;
    assert_int_equal(getifaddrs(&all), 0);
    for (const struct ifaddrs *at = all; at && !found; at = at->ifa_next) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)at->ifa_addr;
        if (!v6 || v6->sin6_family != AF_INET6 || !(at->ifa_flags & IFF_UP) || !wanted(&v6->sin6_addr))
            continue;
        inet_ntop(AF_INET6, &v6->sin6_addr, out, (socklen_t)room);
        snprintf(iface, IF_NAMESIZE, "%s", at->ifa_name);
        found = true;
    }
    freeifaddrs(all);
    return found;
}

static bool is_loopback(const struct in6_addr *address)
{
    return IN6_IS_ADDR_LOOPBACK(address);
}

static bool is_link_local(const struct in6_addr *address)
{
    return IN6_IS_ADDR_LINKLOCAL(address);
}

static void need_ipv6(void)
{
    char address[INET6_ADDRSTRLEN], iface[IF_NAMESIZE];
    if (!find_address(is_loopback, address, sizeof(address), iface))
        skip();
}

static void ipv6_may_stand_in_brackets(void **state)
{
    need_ipv6();
    play((struct plan){.master_addr = "[::1]"}, call_each_other);
    play((struct plan){.master_addr = "::1", .iface = {"[::1]", "::1"}}, call_each_other);
}

static void a_job_may_have_both_families(void **state)
{
    need_ipv6();
    play((struct plan){.iface = {"127.0.0.1", "::1"}}, call_each_other);
    play((struct plan){.iface = {"::1", "127.0.0.1"}}, call_each_other);
}

static void addresses_of_one_link_work(void **state)
{
    char address[INET6_ADDRSTRLEN], iface[IF_NAMESIZE], scoped[INET6_ADDRSTRLEN + IF_NAMESIZE + 4];
    if (!find_address(is_link_local, address, sizeof(address), iface))
        skip();
    snprintf(scoped, sizeof(scoped), "%s%%%s", address, iface);
    play((struct plan){.master_addr = scoped}, call_each_other);
    play((struct plan){.iface = {address, scoped}}, call_each_other);
    snprintf(scoped, sizeof(scoped), "[%s%%%s]", address, iface);
    play((struct plan){.master_addr = scoped, .iface = {scoped, address}}, call_each_other);
}

/* ---- What errors say --------------------------------------------------------------------------------------------- */

/* Ends all listening sockets of this process but the store's: connects to the workers are refused from then on. */
static void stop_listening(int except_port)
{
    DIR *all = opendir("/proc/self/fd");
    MUST(all);
    for (struct dirent *at; (at = readdir(all));) {
        int fd = atoi(at->d_name), listens = 0;
        socklen_t size = sizeof(listens);
        struct sockaddr_in where;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || !listens)
            continue;
        size = sizeof(where);
        MUST(getsockname(fd, (struct sockaddr *)&where, &size) == 0);
        if (ntohs(where.sin_port) != except_port)
            MUST(shutdown(fd, SHUT_RDWR) == 0);
    }
    closedir(all);
}

static void cannot_connect(weft_agent *agent, void *arg)
{
    weft_error *error = NULL;
    weft_values *values;
    if (weft_agent_rank(agent) != 0)
        return;
    stop_listening(((const world *)arg)->port);
    weft_tensor *x = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)),
                          &(weft_rpc_options){.timeout_ms = WEFT_FOREVER, .error = &error}, &values),
            WEFT_ERR_UNREACHABLE);
    const char *at = strstr(weft_error_message(error), "connect to 127.0.0.1:");
    if (!at || !strstr(at, "refused"))
        fprintf(stderr, "\"%s\"\n", weft_error_message(error));
    MUST(at && strstr(at, "refused"));
    weft_error_unref(error);
    weft_tensor_unref(x);
}

static void unreachable_names_the_last_connect(void **state)
{
    play((struct plan){.death_timeout_ms = 200}, cannot_connect);
}

static weft_status open_alone(weft_agent_options *options, weft_error **error)
{
    weft_agent *agent = NULL;
    weft_status status = weft_agent_open(options, &agent, error);
    MUST(status || !weft_agent_close(agent, WEFT_FOREVER));
    return status;
}

/* The broadcast address has no route for TCP on any machine. */
static void a_name_without_a_route_is_unreachable(void **state)
{
    weft_error *error = NULL;
    weft_agent_options options = {
        .has_rank = true, .rank = 1, .world_size = 2, .master_addr = "255.255.255.255", .master_port = 1};
    assert_int_equal(open_alone(&options, &error), WEFT_ERR_UNREACHABLE);
    assert_non_null(strstr(weft_error_message(error), "no route to '255.255.255.255'"));
    weft_error_unref(error);
}

static void a_link_local_address_needs_its_interface(void **state)
{
    for (int rank = 0; rank < 2; rank++) {
        weft_error *error = NULL;
        weft_agent_options options = {
            .has_rank = true, .rank = rank, .world_size = 2, .master_addr = "[fe80::1]", .master_port = 1};
        assert_int_equal(open_alone(&options, &error), WEFT_ERR_INVALID);
        assert_non_null(strstr(weft_error_message(error), "its interface behind it: fe80::1%eth0"));
        weft_error_unref(error);
    }
}

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* A service that listens, and says nothing. On a busy machine an attempt may last longer: one of several must not. */
static void a_silent_service_is_reported_within_the_limit(void **state)
{
    enum { LIMIT_MS = 400, LATE_MS = 1500, ATTEMPTS = 10 };
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(where);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && !bind(fd, (struct sockaddr *)&where, size) && !listen(fd, 64) &&
                !getsockname(fd, (struct sockaddr *)&where, &size));
    bool in_time = false;
    for (int i = 0; i < ATTEMPTS && !in_time; i++) {
        weft_error *error = NULL;
        weft_agent_options options = {.has_rank = true,
                                      .rank = 1,
                                      .world_size = 2,
                                      .master_addr = "127.0.0.1",
                                      .master_port = ntohs(where.sin_port),
                                      .rendezvous_timeout_ms = LIMIT_MS};
        uint64_t begun_ms = now_ms();
        assert_int_equal(open_alone(&options, &error), WEFT_ERR_RENDEZVOUS);
        in_time = now_ms() - begun_ms < LATE_MS;
        assert_non_null(strstr(weft_error_message(error), "did not answer within 400 ms"));
        weft_error_unref(error);
    }
    close(fd);
    assert_true(in_time);
}

typedef struct member {
    weft_agent_options options;
    weft_status status;
    weft_error *error;
} member;

static void *open_member(void *arg)
{
    member *m = arg;
    m->status = open_alone(&m->options, &m->error);
    return NULL;
}

static void all_hear_why_rank_0_cannot_join(void **state)
{
    static const char secret[] = "thirty-two bytes of a job's secret";
    enum { WORKERS = 3 };
    member members[WORKERS] = {{.status = WEFT_OK}};
    pthread_t threads[WORKERS];
    int port = world_free_port();
    for (int rank = WORKERS - 1; rank >= 0; rank--) {
        members[rank].options = (weft_agent_options){.has_rank = true,
                                                     .rank = rank,
                                                     .world_size = WORKERS,
                                                     .master_addr = "127.0.0.1",
                                                     .master_port = port,
                                                     .secret = secret,
                                                     .secret_size = sizeof(secret),
                                                     .iface = rank == 0 ? "nosuch0" : NULL};
        assert_int_equal(pthread_create(&threads[rank], NULL, open_member, &members[rank]), 0);
    }
    for (int rank = 0; rank < WORKERS; rank++) {
        pthread_join(threads[rank], NULL);
        assert_int_equal(members[rank].status, rank == 0 ? WEFT_ERR_INVALID : WEFT_ERR_RENDEZVOUS);
        assert_non_null(strstr(weft_error_message(members[rank].error), "nosuch0"));
        weft_error_unref(members[rank].error);
    }
}

UNIT_MAIN(ipv6_may_stand_in_brackets, a_job_may_have_both_families, addresses_of_one_link_work,
          unreachable_names_the_last_connect, a_name_without_a_route_is_unreachable,
          a_link_local_address_needs_its_interface, a_silent_service_is_reported_within_the_limit,
          all_hear_why_rank_0_cannot_join)
