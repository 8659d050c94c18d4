/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.c - connection events. One thread reads them for all sources: the event thread or, without threads, the thread
 * that polls. Without threads, the link to the store is a source too: it reads the store's messages as events.
 *
 * No event is lost: a source is armed after its last event was read, and its descriptor is asked for after that. A
 * source without a descriptor for events must lower its due time in events_arm: only that and wfi_events_wake wake the
 * thread for the source.
 */
#include "progress/progress.h"

#include "base/socket.h"

#include <poll.h>
#include <unistd.h>

/* A source without a descriptor for completions is polled only while it has connections. So its first connection must
 * wake the sleeping poller. */
static size_t read_events(wfi_progress *progress, wfi_source *source)
{
    size_t count = source->ops->events(source);
    if (count && !progress->fibers && source->ops->wait_fd(source) < 0)
        wfi_progress_wake(progress);
    return count;
}

/* Waits until a source may have events, or the thread is woken. */
static void wait_for_events(wfi_progress *progress)
{
    struct pollfd fds[1 + WFI_SOURCES] = {{.fd = progress->events_fd, .events = POLLIN}};
    uint64_t until_ns = WFI_NEVER;
    bool may_sleep = true;
    for (size_t i = 0; i < progress->source_count; i++) {
        wfi_source *source = progress->sources[i];
        wfi_watch *watch = &progress->watches[i];
        watch->due_ns = WFI_NEVER;
        watch->due = !source->ops->events_arm(source, &watch->due_ns);
        may_sleep = may_sleep && !watch->due;
        until_ns = watch->due_ns < until_ns ? watch->due_ns : until_ns;
        fds[1 + i] = (struct pollfd){.fd = source->ops->events_fd(source), .events = POLLIN};
    }
    int timeout_ms = may_sleep ? wfi_poll_timeout(wfi_now(progress->clock), until_ns) : 0;
    (void)poll(fds, 1 + progress->source_count, timeout_ms);
    uint64_t count, now = wfi_now(progress->clock);
    for (size_t i = 0; i < progress->source_count; i++) {
        wfi_watch *watch = &progress->watches[i];
        watch->due = watch->due || fds[1 + i].revents || watch->due_ns <= now;
    }
    ssize_t got = read(progress->events_fd, &count, sizeof(count));
    (void)got; /* non-blocking: it may be empty */
}

void wfi_events_serve(wfi_progress *progress)
{
    for (size_t i = 0; i < progress->source_count; i++) {
        if (progress->watches[i].due)
            (void)read_events(progress, progress->sources[i]);
    }
    wait_for_events(progress);
}

size_t wfi_events_read(wfi_progress *progress)
{
    size_t count = 0;
    for (size_t i = 0; i < progress->source_count; i++)
        count += read_events(progress, progress->sources[i]);
    return count;
}

void wfi_events_wake(wfi_progress *progress)
{
    uint64_t one = 1;
    if (progress->fibers) {
        wfi_progress_ready(progress);
        return;
    }
    ssize_t written = write(progress->events_fd, &one, sizeof(one));
    (void)written; /* a full eventfd also wakes */
}

uint64_t wfi_events_arm(wfi_progress *progress, uint64_t until_ns)
{
    for (size_t i = 0; i < progress->source_count; i++) {
        if (!progress->sources[i]->ops->events_arm(progress->sources[i], &until_ns))
            until_ns = 0;
    }
    return until_ns;
}
