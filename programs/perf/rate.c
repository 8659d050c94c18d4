/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rate.c - calls without arguments a second, 1 to 256 in flight: the handler inline, on the executor, and on the
 * executor from four calling threads. Floor: round trips of 64 bytes with libfabric alone, with the same number in
 * flight.
 */
#include "perf/bench.h"

#include <pthread.h>

#define THREADS 4

static const unsigned windows[] = {1, 4, 16, 64, 256};

static void *run(void *arg)
{
    service_stream_run(arg);
    return NULL;
}

static bool call(probe *p, double us, series *out)
{
    service_stream streams[THREADS];
    pthread_t threads[THREADS];
    unsigned running = 0;
    double start = measure_now_us(), calls = 0;
    bool ok = true;
    for (; running < p->threads; running++) {
        streams[running] = (service_stream){.agent = p->b->agent,
                                            .to = p->b->peer,
                                            .function = p->function,
                                            .window = p->window / p->threads,
                                            .us = us};
        if (running > 0 && pthread_create(&threads[running], NULL, run, &streams[running]))
            break;
    }
    service_stream_run(&streams[0]);
    for (unsigned i = 0; i < running; i++) {
        service_stream *s = &streams[i];
        if (i > 0)
            (void)pthread_join(threads[i], NULL);
        calls += s->calls;
        if (s->status)
            ok = bench_fail(p->b, p->function, p->b->peer, s->status, s->error);
    }
    series_add(out, calls / (measure_now_us() - start) * 1e6);
    return ok && (running == p->threads || task_fail(p->b->to, "a thread could not be started"));
}

bool measure_rate(bench *b)
{
    static const struct {
        const char *what, *function;
        unsigned threads;
    } callers[] = {{"inline", "inline", 1}, {"executor", "executor", 1}, {"executor, 4 threads", "executor", THREADS}};
    bool ok = true;
    for (size_t c = 0; c < sizeof(callers) / sizeof(*callers); c++)
        for (size_t i = 0; ok && i < sizeof(windows) / sizeof(*windows); i++) {
            probe p = {.b = b, .function = callers[c].function, .window = windows[i], .threads = callers[c].threads};
            p.ours = call;
            p.has_floor = true;
            p.floor = FLOOR_RATE;
            result r = result_of("rate", callers[c].what, "calls/s", true);
            if (p.window >= p.threads)
                ok = bench_measure(&p, &r);
        }
    return ok;
}
