/* SPDX-License-Identifier: Apache-2.0 */
/* stand_in.c - see stand_in.h. */
#include "progress/stand_in.h"

#include "rpc/must.h"

#include <sys/eventfd.h>
#include <unistd.h>

static stand_in *of(wfi_source *source)
{
    return wfi_container_of(source, stand_in, source);
}

static int take_all(atomic_int *given, int fd)
{
    uint64_t count;
    if (fd >= 0)
        (void)!read(fd, &count, sizeof(count));
    return atomic_exchange(given, 0);
}

static size_t poll_it(wfi_source *source)
{
    stand_in *in = of(source);
    atomic_fetch_add(&in->polls, 1);
    in->polled += take_all(&in->completions, in->wait_fd);
    return (size_t)in->polled;
}

static void take_it(wfi_source *source)
{
    stand_in *in = of(source);
    atomic_fetch_add(&in->completions_taken, in->polled);
    in->polled = 0;
}

static size_t read_it(wfi_source *source)
{
    stand_in *in = of(source);
    atomic_fetch_add(&in->reads, 1);
    int count = take_all(&in->events, in->events_fd);
    atomic_fetch_add(&in->events_taken, count);
    return (size_t)count;
}

static bool arm_it(wfi_source *source, uint64_t *due_ns)
{
    stand_in *in = of(source);
    atomic_fetch_add(&in->arms, 1);
    uint64_t due = wfi_now(&wfi_clock_real) + in->due_after_ns;
    if (in->due_after_ns && due < *due_ns)
        *due_ns = due;
    return !atomic_load(&in->events);
}

static int events_fd_of(wfi_source *source)
{
    return of(source)->events_fd;
}

static int wait_fd_of(wfi_source *source)
{
    return of(source)->wait_fd;
}

static bool may_sleep_with(wfi_source *source)
{
    return !atomic_load(&of(source)->completions);
}

static wfi_expects expects_of(wfi_source *source)
{
    return (wfi_expects)atomic_load(&of(source)->expects);
}

static size_t outstanding_of(wfi_source *source)
{
    (void)source;
    return 0;
}

static const wfi_source_ops stand_in_ops = {.poll = poll_it,
                                            .take = take_it,
                                            .events = read_it,
                                            .events_arm = arm_it,
                                            .events_fd = events_fd_of,
                                            .wait_fd = wait_fd_of,
                                            .may_sleep = may_sleep_with,
                                            .expects = expects_of,
                                            .outstanding = outstanding_of};

static int make_eventfd(void)
{
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    MUST(fd >= 0);
    return fd;
}

void stand_open(stand *s, int sources, bool no_threads)
{
    *s = (stand){0};
    wfi_executor_options workers = {.workers = 1, .thread_name = "stand", .manual = no_threads};
    MUST(!wfi_executor_create(&workers, &s->executor));
    wfi_progress_options how = {.clock = &wfi_clock_real, .executor = s->executor, .no_threads = no_threads};
    wfi_progress_init(&s->progress, &how);
    MUST(!wfi_progress_open(&s->progress));
    for (int i = 0; i < sources; i++) {
        s->sources[i].source.ops = &stand_in_ops;
        atomic_init(&s->sources[i].expects, WFI_EXPECTS_MESSAGES);
        s->sources[i].events_fd = make_eventfd();
        s->sources[i].wait_fd = make_eventfd();
        wfi_progress_add(&s->progress, &s->sources[i].source);
    }
}

void stand_start(stand *s)
{
    MUST(!wfi_progress_start_threads(&s->progress));
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void stand_close(stand *s)
{
    MUST(wfi_progress_stop_threads(&s->progress) == 0);
    for (int i = 0; i < STAND_INS; i++) {
        if (s->sources[i].source.ops) {
            stand_lacks_wait_fd(&s->sources[i]);
            stand_lacks_events_fd(&s->sources[i]);
        }
    }
    wfi_progress_fini(&s->progress);
    wfi_executor_destroy(s->executor);
}

void stand_lacks_wait_fd(stand_in *source)
{
    close_fd(&source->wait_fd);
}

void stand_lacks_events_fd(stand_in *source)
{
    close_fd(&source->events_fd);
}

static void give(atomic_int *given, int fd)
{
    uint64_t one = 1;
    atomic_fetch_add(given, 1);
    if (fd >= 0)
        MUST(write(fd, &one, sizeof(one)) == sizeof(one));
}

void stand_event(stand_in *source)
{
    give(&source->events, source->events_fd);
}

void stand_completion(stand_in *source)
{
    give(&source->completions, source->wait_fd);
}

void stand_await(atomic_int *count, int least)
{
    uint64_t until = wfi_deadline(&wfi_clock_real, 20000);
    while (atomic_load(count) < least) {
        MUST(wfi_now(&wfi_clock_real) < until);
        usleep(100);
    }
}
