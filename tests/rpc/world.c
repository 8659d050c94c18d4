/* SPDX-License-Identifier: Apache-2.0 */
/* world.c - see world.h. */
#include "rpc/world.h"
#include "make.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { RESERVED = 16 /* ports */, MANY = 16 /* agents */ };

static const char *const fabric_names[WORLD_FABRICS] = {[WORLD_SIM] = "sim", [WORLD_TCP] = "tcp"};

const char *world_fabric_name(world_fabric fabric)
{
    const char *instead = getenv("TEST_FABRIC");
    return fabric == WORLD_TCP && instead ? instead : fabric_names[fabric];
}

typedef struct seat {
    world *w;
    int rank;
} seat;

/* cmocka's assertions jump, which only its own thread may do: elsewhere say it and end. */
static void must(bool good, const char *what, int rank, const weft_error *error)
{
    if (good)
        return;
    fprintf(stderr, "rank %d: %s\n", rank, what);
    weft_error_print(error, stderr);
    abort();
}

static void run_seat(world *w, int rank)
{
    weft_error *error = NULL;
    weft_agent *agent = NULL;
    weft_agent_options options = {.functions = w->functions,
                                  .function_count = w->function_count,
                                  .has_rank = true,
                                  .rank = rank,
                                  .world_size = w->size,
                                  .master_addr = "127.0.0.1",
                                  .master_port = w->port,
                                  .fabric = world_fabric_name(w->fabric),
                                  .sim = w->sim,
                                  .rendezvous_timeout_ms = 60000};
    /* Hundreds of threads of one process, on few cores that have other work: one that waits for its turn is not
     * dead. */
    if (w->fabric == WORLD_TCP && w->size > MANY)
        options.death_timeout_ms = 20000;
    if (w->adjust)
        w->adjust(&options, w->arg);
    weft_status status = weft_agent_open(&options, &agent, &error);
    must(status == WEFT_OK, "could not open", rank, error);
    w->program(agent, w->arg);
    if (w->close) {
        w->close(agent, w->arg);
        return;
    }
    if (w->stop) {
        weft_agent_stop(agent);
        return;
    }
    status = weft_agent_close(agent, WEFT_FOREVER);
    must(status == WEFT_OK || w->close_may_fail, weft_status_name(status), rank, NULL);
}

static void *run_thread(void *arg)
{
    seat *s = arg;
    run_seat(s->w, s->rank);
    return NULL;
}

static void run_fiber(weft_sim *sim, int rank, void *arg)
{
    run_seat(arg, rank);
}

/*
 * Binds a socket to a free port, and does not listen: then the system gives the port to nobody who asks for any,
 * while the store, which binds with SO_REUSEADDR too, still can.
 */
static int reserve_port(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1;
    must(fd > 0 && !setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) &&
             !bind(fd, (struct sockaddr *)&address, size) && !getsockname(fd, (struct sockaddr *)&address, &size),
         "no free port", 0, NULL);
    *port = ntohs(address.sin_port);
    return fd;
}

int world_free_port(void)
{
    static atomic_int reserved[RESERVED];
    static atomic_uint count;
    int port;
    int oldest = atomic_exchange(&reserved[atomic_fetch_add(&count, 1) % RESERVED], reserve_port(&port));
    if (oldest)
        close(oldest);
    return port;
}

static void run_tcp(world *w)
{
    pthread_t threads[256];
    seat seats[256];
    int reserved = reserve_port(&w->port);
    for (int rank = 0; rank < w->size; rank++) {
        seats[rank] = (seat){w, rank};
        must(!pthread_create(&threads[rank], NULL, run_thread, &seats[rank]), "no thread", rank, NULL);
    }
    for (int rank = 0; rank < w->size; rank++)
        pthread_join(threads[rank], NULL);
    close(reserved);
}

static void run_sim(world *w)
{
    w->sim = sim_open(&(weft_sim_options){.seed = w->seed, .ranks_per_host = w->ranks_per_host});
    assert_non_null(w->sim);
    for (int rank = 0; rank < w->size; rank++)
        assert_int_equal(weft_sim_spawn(w->sim, rank, run_fiber, w), WEFT_OK);
    weft_status status = weft_sim_run(w->sim, 3600 * 1000);
    assert_string_equal(weft_status_name(status), "OK");
    weft_sim_close(w->sim);
    w->sim = NULL;
}

void world_run(world *w)
{
    if (w->fabric == WORLD_SIM)
        run_sim(w);
    else
        run_tcp(w);
}

void world_play(const world *like, uint64_t seeds, int on_tcp)
{
    seeds = world_seeds(seeds);
#ifdef __SANITIZE_THREAD__
    if (seeds > 1 && on_tcp) /* its threads run on tcp; the order of locks is seen once */
        seeds = 1;
#endif
    for (uint64_t i = 0; i < seeds + (uint64_t)on_tcp; i++) {
        world w = *like;
        w.fabric = i < seeds ? WORLD_SIM : WORLD_TCP;
        w.seed = i < seeds ? i + 1 : 0;
        if (!w.arg)
            w.arg = &w;
        if (w.begin)
            w.begin(&w);
        world_run(&w);
        if (w.end)
            w.end(&w);
    }
}

void world_sleep_ms(world *w, int ms)
{
    if (w->sim)
        weft_sim_sleep(w->sim, (uint64_t)ms * 1000000u);
    else
        nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000}, NULL);
}

weft_stats world_stats(const weft_agent *agent)
{
    weft_stats stats;
    weft_agent_stats(agent, &stats);
    return stats;
}

weft_status world_run_nothing(weft_call *call, void *user)
{
    return WEFT_OK;
}

weft_status world_run_echo(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0))));
    return WEFT_OK;
}

static weft_status run_make(weft_call *call, void *user)
{
    world_make_fn make = (world_make_fn)user;
    weft_call_give_object(call, &weft_module_object, make(weft_call_count(call) ? weft_call_i64(call, 0) : 0));
    return WEFT_OK;
}

void world_serve_module(weft_agent *agent, const char *name, world_make_fn make)
{
    const weft_function function = {.name = name, .takes = {WEFT_TYPE_REST}, .run = run_make, .user = (void *)make};
    MUST_OK(weft_agent_register(agent, &function));
}

void world_one_worker(weft_agent_options *options, void *arg)
{
    options->threads = 1;
}

void world_no_threads(weft_agent_options *options, void *arg)
{
    options->no_threads = true;
}

void world_leaks_fail(weft_agent_options *options, void *arg)
{
    options->leaks_fail = true;
}

uint64_t world_seeds(uint64_t seeds)
{
    if (getenv("TEST_FABRIC"))
        return 0;
#ifdef __SANITIZE_THREAD__ /* there fibers cost a hundred times as much, and have no threads to race */
    return seeds < 2 ? seeds : 2;
#elif defined(__SANITIZE_ADDRESS__) /* memory goes wrong by the kind of step more than by the order of events */
    return seeds < 2 ? seeds : 1 + seeds / 8;
#else
    return seeds;
#endif
}
