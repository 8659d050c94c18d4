/* SPDX-License-Identifier: Apache-2.0 */
/* serve.c - see serve.h. */
#include "perf/serve.h"

#include "perf/service.h"
#include "perf/stop.h"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define WORLD 4       /* this one, and the measuring one, whose former incarnation may not have left yet */
#define NEXT_MS 20000 /* from the end of one fabric to the begin of the next one */
#define CLOSE_MS 5000
#define FUNCTIONS_MAX 16
#define SERVES "serves:"

weft_agent_options serve_options(const char *host, int port, const char *fabrics)
{
    return (weft_agent_options){.functions = service_functions,
                                .function_count = service_function_count,
                                .has_rank = true,
                                .world_size = WORLD,
                                .elastic = true,
                                .master_addr = host,
                                .master_port = port,
                                .fabric = fabrics};
}

weft_status serve_tell_done(weft_agent *agent)
{
    weft_rpc_options options = {.timeout_ms = SERVICE_CALL_MS};
    return weft_rpc_sync(agent, weft_to_rank(0), "done", WEFT_NO_VALUES, &options, NULL);
}

/* ---- What the job tells ----------------------------------------------------------------------------------------- */

typedef struct server {
    pthread_mutex_t lock;
    int news; /* eventfd: something below has changed */
    /* Under `lock`. */
    bool has_come, is_done;
    bool is_here[WORLD]; /* by rank: a measuring worker */
    char dead[256];
} server;

static weft_status take_done(weft_call *call, void *user)
{
    server *s = user;
    (void)call;
    pthread_mutex_lock(&s->lock);
    s->is_done = true;
    pthread_mutex_unlock(&s->lock);
    (void)eventfd_write(s->news, 1);
    return WEFT_OK;
}

/* `s->lock` is held. */
static bool is_anyone_here(const server *s)
{
    for (int rank = 1; rank < WORLD; rank++)
        if (s->is_here[rank])
            return true;
    return false;
}

/* A worker that reached the store before this agent was open is not reported as joined. Its leaving is reported. */

static void on_member(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    server *s = arg;
    (void)agent;
    pthread_mutex_lock(&s->lock);
    if ((event == WEFT_MEMBER_JOINED || event == WEFT_MEMBER_LEFT) && rank > 0 && rank < WORLD) {
        s->has_come = true;
        s->is_here[rank] = event == WEFT_MEMBER_JOINED;
    } else if (event == WEFT_MEMBER_DEAD) {
        snprintf(s->dead, sizeof(s->dead), "the measuring side (worker %d) died: %s", rank, why ? why : "");
    }
    pthread_mutex_unlock(&s->lock);
    (void)eventfd_write(s->news, 1);
}

/* Says what to type on the other host. This agent is open and can be reached. */
static void print_command(const char *address, int port)
{
    const char *secret = getenv("WEFT_SECRET_FILE");
    bool is_v6 = strchr(address, ':');
    printf("weft-perf waits. On the other host, type:\n\n    %s%s%sweft-perf --to %s%s%s:%d\n\n",
           secret ? "WEFT_SECRET_FILE=" : "", secret ? secret : "", secret ? " " : "", is_v6 ? "[" : "", address,
           is_v6 ? "]" : "", port);
    if (secret)
        printf("(with a copy of that file)\n\n");
    fflush(stdout);
}

/* ---- This host's address ---------------------------------------------------------------------------------------- */

/* That of WEFT_IFACE, or of the first interface that is up and no loopback; IPv4 first. */
static const char *find_address(char out[INET6_ADDRSTRLEN])
{
    struct ifaddrs *all = NULL;
    const char *iface = getenv("WEFT_IFACE");
    snprintf(out, INET6_ADDRSTRLEN, "127.0.0.1");
    if (getifaddrs(&all) != 0)
        return out;
    bool found = false;
    for (int pass = 0; pass < 2 && !found; pass++)
        for (struct ifaddrs *i = all; i && !found; i = i->ifa_next) {
            int family = i->ifa_addr ? i->ifa_addr->sa_family : AF_UNSPEC;
            bool is_usable = (i->ifa_flags & IFF_UP) && (i->ifa_flags & IFF_RUNNING) && !(i->ifa_flags & IFF_LOOPBACK);
            if (!is_usable || (iface && strcmp(iface, i->ifa_name) != 0) || family != (pass ? AF_INET6 : AF_INET))
                continue;
            const struct sockaddr_in *four = (const void *)i->ifa_addr;
            const struct sockaddr_in6 *six = (const void *)i->ifa_addr;
            if (pass && IN6_IS_ADDR_LINKLOCAL(&six->sin6_addr))
                continue;
            const void *at = pass ? (const void *)&six->sin6_addr : (const void *)&four->sin_addr;
            found = inet_ntop(family, at, out, INET6_ADDRSTRLEN);
        }
    freeifaddrs(all);
    return out;
}

/* ---- Waiting ---------------------------------------------------------------------------------------------------- */

/* Whether the other side is done and has left, or is lost: `s->dead` then says why. `*is_between`: it has left, and may
 * come back for the next fabric. */
static bool is_over(server *s, bool *is_between)
{
    pthread_mutex_lock(&s->lock);
    bool over = s->dead[0] || (s->is_done && !is_anyone_here(s));
    *is_between = s->has_come && !is_anyone_here(s);
    pthread_mutex_unlock(&s->lock);
    return over;
}

static void give_up(server *s)
{
    pthread_mutex_lock(&s->lock);
    if (!is_anyone_here(s) && !s->is_done)
        snprintf(s->dead, sizeof(s->dead), "the measuring side left without saying that it is done");
    pthread_mutex_unlock(&s->lock);
}

/* Until is_over, or a signal. */
static void wait_for_end(server *s)
{
    bool is_between;
    while (!stop_signal() && !is_over(s, &is_between)) {
        eventfd_t count;
        struct pollfd ready[] = {{.fd = s->news, .events = POLLIN}, {.fd = stop_fd(), .events = POLLIN}};
        int got = poll(ready, 2, is_between ? NEXT_MS : -1);
        if (got == 0)
            give_up(s);
        else if (got > 0 && ready[0].revents)
            (void)eventfd_read(s->news, &count);
    }
}

/* The name of the serving worker, which says over which fabrics it can be reached: a name has no commas. */
static void put_name(const char *fabrics, char *out, size_t room)
{
    snprintf(out, room, SERVES "%s", fabrics);
    for (char *at = out; *at; at++)
        *at = *at == ',' ? ':' : *at;
}

void serve_list(weft_agent *agent, char *out, size_t room)
{
    const char *name = weft_agent_name(agent, 0);
    bool is_known = name && strncmp(name, SERVES, sizeof(SERVES) - 1) == 0;
    snprintf(out, room, "%s", is_known ? name + sizeof(SERVES) - 1 : "");
    for (char *at = out; *at; at++)
        *at = *at == ':' ? ',' : *at;
}

int serve(const settings *o, const char *fabrics)
{
    char found[INET6_ADDRSTRLEN], name[160];
    server s = {.lock = PTHREAD_MUTEX_INITIALIZER, .news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    if (s.news < 0) {
        fprintf(stderr, "weft-perf: eventfd: %s\n", strerror(errno));
        return 1;
    }
    put_name(fabrics, name, sizeof(name));
    const char *address = o->address ? o->address : find_address(found);
    weft_function functions[FUNCTIONS_MAX] = {{0}};
    size_t count = service_function_count;
    memcpy(functions, service_functions, count * sizeof(*functions));
    functions[count++] = (weft_function){.name = "done", .run = take_done, .user = &s};
    weft_agent_options options = serve_options(address, o->port ? (int)o->port : WEFT_ANY_PORT, fabrics);
    options.name = name;
    options.functions = functions;
    options.function_count = count;
    options.on_membership = on_member;
    options.membership_arg = &s;
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_status status = weft_agent_open(&options, &agent, &error);
    if (status) {
        fprintf(stderr, "weft-perf: waiting at %s, port %d: %s (%s)\n", address, (int)o->port,
                error ? weft_error_message(error) : weft_status_text(status), weft_status_name(status));
        weft_error_unref(error);
        close(s.news);
        return 1;
    }
    print_command(address, weft_agent_store_port(agent));
    wait_for_end(&s);
    if (s.dead[0] || stop_signal())
        weft_agent_stop(agent);
    else
        (void)!weft_agent_close(agent, CLOSE_MS);
    if (s.dead[0])
        fprintf(stderr, "weft-perf: %s\n", s.dead);
    close(s.news);
    return s.dead[0] ? 1 : 0;
}
