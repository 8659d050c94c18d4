/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.c - host functions, which a program queues on a stream (cuLaunchHostFunc). See gpu.h.
 *
 * A thread calls them, at once or late, as the seed chooses. If EMULATED_GPU_HOST is "polled" there is no thread: a
 * query of an event is a step, in which the seed chooses what runs. So a simulation can run in one thread.
 */
#include "gpu.h"

#include "../prng.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct host {
    pthread_cond_t wake, called; /* of the thread; of those who wait for a host function */
    bool is_started, is_polled, is_ending;
    uint64_t random;
} host = {.wake = PTHREAD_COND_INITIALIZER, .called = PTHREAD_COND_INITIALIZER};
static __thread bool is_host_thread, is_inside;

void gpu_host_start(void)
{
    const char *how = getenv("EMULATED_GPU_HOST");
    host.is_polled = how && strcmp(how, "polled") == 0;
}

void gpu_host_seed(uint64_t seed)
{
    host.random = seed;
}

unsigned gpu_host_draw(unsigned end)
{
    return (unsigned)prng_below(&host.random, end);
}

bool gpu_host_is_polled(void)
{
    return host.is_polled;
}

bool gpu_host_is_inside(void)
{
    return is_inside;
}

void gpu_host_end(void)
{
    host.is_ending = true;
}

static void sleep_until_woken(unsigned microseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)microseconds * 1000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&host.wake, &gpu_lock, &until);
}

static void *run(void *unused)
{
    static const unsigned delays_us[] = {0, 0, 100, 3000};
    (void)unused;
    is_host_thread = true;
    pthread_mutex_lock(&gpu_lock);
    for (;;) {
        bool is_needed;
        if (gpu_stream_host_functions(&is_needed) == 0) {
            pthread_cond_wait(&host.wake, &gpu_lock);
            continue;
        }
        unsigned delay_us = delays_us[gpu_host_draw(4)];
        if (!is_needed && delay_us > 0)
            sleep_until_woken(delay_us);
        unsigned count = gpu_stream_host_functions(&is_needed);
        if (count > 0)
            gpu_stream_run_host_function(is_needed ? count : gpu_host_draw(count));
    }
    return NULL;
}

void gpu_host_changed(void)
{
    pthread_t thread;
    if (host.is_polled)
        return;
    if (!host.is_started) {
        if (pthread_create(&thread, NULL, run, NULL) != 0)
            abort();
        pthread_detach(thread);
        host.is_started = true;
    }
    pthread_cond_signal(&host.wake);
    pthread_cond_broadcast(&host.called);
}

bool gpu_host_is_ending(void)
{
    return host.is_ending;
}

bool gpu_host_calls(void)
{
    return host.is_polled || is_host_thread || host.is_ending;
}

void gpu_host_call(void (*function)(void *argument), void *argument)
{
    if (host.is_ending)
        return; /* as the driver does at the end of a process */
    gpu_counts.host_functions++;
    pthread_mutex_unlock(&gpu_lock);
    is_inside = true;
    function(argument);
    is_inside = false;
    pthread_mutex_lock(&gpu_lock);
    pthread_cond_broadcast(&host.called);
}

void gpu_host_wait(void)
{
    pthread_cond_signal(&host.wake);
    pthread_cond_wait(&host.called, &gpu_lock);
}
