/* SPDX-License-Identifier: Apache-2.0 */
/* raw_pair.c - see raw_pair.h. Orders go to the other process through a socket, on which it sleeps between slices. */
#include "raw_pair.h"

#include "cores.h"
#include "raw_endpoint.h"

#include <rdma/fabric.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* What the other process is to do: answer `answers` messages with as many of `bytes`, then sleep again. */
typedef struct order {
    unsigned answers;
    size_t bytes;
} order;

struct raw_pair {
    raw_endpoint here;
    raw_memory there;
    cores cores;
    bool apart; /* there are two processors: the other process is bound to one, this one to the other during a slice */
    int control;
    pid_t child;
    char version[16];
};

/* ---- The other process ----------------------------------------------------------------------------------------- */

/*
 * Counts from the messages that were answered, not from those that were received. After its last answer this process
 * polls until that answer has left. It may receive the first message of the next slice there.
 */
static int answer(raw_endpoint *e, const order *o)
{
    unsigned end = e->asked + o->answers;
    while (e->asked != end) {
        if (raw_endpoint_wait(e, &e->received, e->asked + 1))
            return -1;
        while (e->asked != end && e->asked != e->received) {
            if (raw_endpoint_send(e, o->bytes))
                return -1;
        }
        if (raw_endpoint_receive(e))
            return -1;
    }
    return raw_endpoint_wait(e, &e->done, e->asked);
}

static int serve(int control, const char *provider, size_t bulk_bytes, bool alone)
{
    raw_endpoint e;
    raw_address address;
    order o;
    int failed = raw_endpoint_open(&e, provider, bulk_bytes) || raw_endpoint_listen(&e, &address) ||
                 write(control, &address, sizeof address) != sizeof address || raw_endpoint_accept(&e);
    raw_memory memory = failed ? (raw_memory){0} : raw_endpoint_memory(&e);
    failed = failed || write(control, &memory, sizeof memory) != sizeof memory;
    e.alone = alone;
    e.patient =
        true; /* the parent says when a slice takes too long: it sees its transfers, and this process does not */
    while (!failed && read(control, &o, sizeof o) == sizeof o)
        failed = answer(&e, &o);
    raw_endpoint_close(&e);
    return failed;
}

static void be_other(const raw_pair *p, int control, const char *provider, size_t bulk_bytes, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (p->apart)
        cores_pin(p->cores.other);
    _exit(getppid() == parent ? serve(control, provider, bulk_bytes, p->apart) : 1);
}

/* ---- This process ---------------------------------------------------------------------------------------------- */

static int connect_pair(raw_pair *p, const char *provider, size_t bulk_bytes)
{
    raw_address address;
    if (read(p->control, &address, sizeof address) != sizeof address ||
        raw_endpoint_open(&p->here, provider, bulk_bytes) || raw_endpoint_connect(&p->here, &address))
        return -1;
    p->here.alone = p->apart;
    return read(p->control, &p->there, sizeof p->there) == sizeof p->there ? 0 : -1;
}

int raw_pair_open(const char *provider, size_t bulk_bytes, raw_pair **out)
{
    int fds[2];
    raw_pair *p = calloc(1, sizeof *p);
    provider = provider ? provider : "tcp";
    if (!p || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds)) {
        perror("raw pair");
        free(p);
        return -1;
    }
    fflush(NULL);
    pid_t parent = getpid();
    p->apart = cores_find(&p->cores);
    p->child = fork();
    if (p->child == 0) {
        close(fds[0]);
        be_other(p, fds[1], provider, bulk_bytes, parent);
    }
    close(fds[1]);
    p->control = fds[0];
    snprintf(p->version, sizeof p->version, "%u.%u", FI_MAJOR(fi_version()), FI_MINOR(fi_version()));
    if (p->child < 0 || connect_pair(p, provider, bulk_bytes)) {
        raw_pair_close(p);
        return -1;
    }
    *out = p;
    return 0;
}

/* Closing the control socket ends the other process; one that is stuck is killed. */
void raw_pair_close(raw_pair *p)
{
    if (!p)
        return;
    close(p->control);
    for (int i = 0; p->child > 0 && waitpid(p->child, NULL, WNOHANG) == 0; i++) {
        if (i == 1000)
            kill(p->child, SIGKILL);
        usleep(1000);
    }
    raw_endpoint_close(&p->here);
    free(p);
}

/* A slice: between begin and finish this thread has the core that the other process does not use. */
static int begin(raw_pair *p, unsigned answers, size_t bytes)
{
    order o = {answers, bytes};
    if (p->apart)
        cores_pin(p->cores.mine);
    if (write(p->control, &o, sizeof o) == sizeof o)
        return 0;
    perror("raw pair");
    return -1;
}

static int finish(raw_pair *p, int failed)
{
    if (p->apart)
        cores_free(&p->cores);
    return failed ? -1 : 0;
}

static int ask(raw_endpoint *e, size_t bytes)
{
    return raw_endpoint_send(e, bytes) || raw_endpoint_wait(e, &e->received, e->received + 1) ? -1 : 0;
}

static int trips(raw_endpoint *e, size_t bytes, unsigned count, series *out)
{
    for (unsigned i = 0; i < count; i++) {
        double start = measure_now_us();
        if (ask(e, bytes))
            return -1;
        series_add(out, measure_now_us() - start);
        if (raw_endpoint_receive(e))
            return -1;
    }
    return 0;
}

int raw_pair_trips(raw_pair *p, size_t bytes, unsigned count, series *out)
{
    return finish(p, begin(p, count, bytes) || trips(&p->here, bytes, count, out));
}

static int window_of_trips(raw_endpoint *e, size_t bytes, unsigned count, unsigned window, double *us)
{
    unsigned first = e->received, sent = 0;
    double start = measure_now_us();
    while (e->received - first < count) {
        while (sent < count && sent - (e->received - first) < window) {
            if (raw_endpoint_send(e, bytes))
                return -1;
            sent++;
        }
        if (raw_endpoint_wait(e, &e->received, e->received + 1) || raw_endpoint_receive(e))
            return -1;
    }
    *us = measure_now_us() - start;
    return 0;
}

int raw_pair_window(raw_pair *p, size_t bytes, unsigned count, unsigned window, double *us)
{
    return finish(p, begin(p, count, bytes) || window_of_trips(&p->here, bytes, count, window, us));
}

static int transfer(raw_pair *p, bool writes, size_t bytes, raw_cut cut)
{
    raw_endpoint *e = &p->here;
    unsigned first = e->done, posted = 0;
    for (size_t at = 0; at < bytes; at += cut.chunk) {
        size_t piece = bytes - at < cut.chunk ? bytes - at : cut.chunk;
        if (posted >= cut.window && raw_endpoint_wait(e, &e->done, first + posted - cut.window + 1))
            return -1;
        if (raw_endpoint_rma(e, writes, at, piece, &p->there))
            return -1;
        posted++;
    }
    return raw_endpoint_wait(e, &e->done, first + posted);
}

/* The target of remote access must make progress: it polls until the last message of the slice comes. */
static int transfers(raw_pair *p, int what, size_t bytes, raw_cut cut, unsigned count, series *out)
{
    raw_endpoint *e = &p->here;
    if (ask(e, 1) || raw_endpoint_receive(e) || raw_endpoint_wait(e, &e->done, e->asked))
        return -1;
    for (unsigned i = 0; i < count; i++) {
        double start = measure_now_us();
        if ((what & RAW_READ && transfer(p, false, bytes, cut)) || (what & RAW_WRITE && transfer(p, true, bytes, cut)))
            return -1;
        series_add(out, measure_now_us() - start);
    }
    return ask(e, 1) || raw_endpoint_receive(e) ? -1 : 0;
}

int raw_pair_bulk(raw_pair *p, int what, size_t bytes, raw_cut cut, unsigned count, series *out)
{
    return finish(p, begin(p, 2, 1) || transfers(p, what, bytes, cut, count, out));
}

/* ---- The floor ------------------------------------------------------------------------------------------------- */

#define TRY_TURNS 3
#define TRY_US 3e6 /* a busy machine may need much longer for all of them */

static const size_t chunks[] = {64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20};
static const unsigned windows[] = {1, 2, 4, 8};
#define COUNT(array) (sizeof(array) / sizeof *(array))
#define CUTS_MAX (COUNT(chunks) * COUNT(windows) + 1)

/* A window wider than the number of pieces adds nothing. */
static size_t list_cuts(size_t bytes, raw_cut out[CUTS_MAX])
{
    size_t count = 0;
    out[count++] = (raw_cut){bytes, 1};
    for (size_t i = 0; i < COUNT(chunks) && chunks[i] < bytes; i++) {
        size_t pieces = (bytes + chunks[i] - 1) / chunks[i];
        for (size_t j = 0; j < COUNT(windows) && (j == 0 || windows[j - 1] < pieces); j++)
            out[count++] = (raw_cut){chunks[i], windows[j]};
    }
    return count;
}

/* Turns, not one long try each: a neighbour's burst then hits some of every cut's tries, and the median leaves it out.
 * When the time is over, cuts that were not tried are left out. */
static int try_cuts(raw_pair *p, int what, size_t bytes, const raw_cut *cuts, size_t count, series *times)
{
    unsigned repeats = bytes <= 1 << 20 ? 20 : bytes <= 16 << 20 ? 5 : 1;
    double end = measure_now_us() + TRY_US;
    for (int turn = 0; turn < TRY_TURNS; turn++) {
        for (size_t i = 0; i < count && (times[0].count == 0 || measure_now_us() < end); i++) {
            if (raw_pair_bulk(p, what, bytes, cuts[i], repeats, &times[i]))
                return -1;
        }
    }
    return 0;
}

int raw_pair_best_cut(raw_pair *p, int what, size_t bytes, raw_cut *out)
{
    raw_cut cuts[CUTS_MAX];
    series times[CUTS_MAX] = {{0}};
    size_t count = list_cuts(bytes, cuts);
    int failed = try_cuts(p, what, bytes, cuts, count, times);
    double best = 0;
    for (size_t i = 0; i < count; i++) {
        double us = series_summary(&times[i]).p50;
        if (times[i].count > 0 && (best == 0 || us < best)) {
            best = us;
            *out = cuts[i];
        }
        series_fini(&times[i]);
    }
    return failed;
}

const char *raw_pair_version(const raw_pair *p)
{
    return p->version;
}
