/* SPDX-License-Identifier: Apache-2.0 */
/* floors_test.c - programs/perf/floors: the two processes of a floor agree on where a slice ends, and have a core each;
 * a helper that does not answer, or ends, is given up. */
#include "perf/floors.h"
#include "perf/helper.h"
#include "perf/raw_endpoint.h"

#include "unit.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BULK = 1 << 20, SLICES = 40 };

static pid_t this_process;
static char why[256];

bool __real_raw_endpoint_send(raw_endpoint *e, size_t bytes);
bool __wrap_raw_endpoint_send(raw_endpoint *e, size_t bytes);

/*
 * The other process of the pair, whose parent is the helper, loses its core after each answer, as it does on a busy
 * machine. So the first message of the next slice is there before that process has seen that its last answer left.
 */
bool __wrap_raw_endpoint_send(raw_endpoint *e, size_t bytes)
{
    bool ok = __real_raw_endpoint_send(e, bytes);
    if (getppid() != this_process)
        usleep(2000);
    return ok;
}

static floors *open_floors(const char *fabric)
{
    this_process = getpid();
    floors *f = floors_open(fabric, BULK, why, sizeof(why));
    if (!f)
        fail_msg("%s has no floor: %s", fabric, why);
    return f;
}

/* One slice, as short as there is. */
static void measure(floors *f, floor_kind kind, size_t bytes, unsigned window, series *out)
{
    size_t before = out->count;
    if (!floors_measure(f, kind, bytes, window, 0, out, why, sizeof(why)))
        fail_msg("%s", why);
    assert_int_equal(out->count, before + 1);
    assert_true(out->values[before] > 0);
}

static void slices_follow_each_other_at_once(void **state)
{
    floors *f = open_floors("tcp");
    series times = {0};
    for (int i = 0; i < SLICES; i++)
        measure(f, FLOOR_ECHO, BULK, 0, &times);
    for (int i = 0; i < 3; i++) {
        measure(f, FLOOR_TRIP, 1 + (size_t)i, 0, &times);
        measure(f, FLOOR_READ, BULK, 0, &times);
        measure(f, FLOOR_RATE, 0, 4, &times);
    }
    series_fini(&times);
    floors_close(f);
}

static void shared_memory_has_a_floor(void **state)
{
    floors *f = open_floors("host");
    series times = {0};
    measure(f, FLOOR_TRIP, 8, 0, &times);
    measure(f, FLOOR_READ, BULK, 0, &times);
    measure(f, FLOOR_ECHO, BULK, 0, &times);
    assert_false(floors_have(f, FLOOR_RATE));
    series_fini(&times);
    floors_close(f);
}

static void this_thread_may_run_where_it_could_before(void **state)
{
    cpu_set_t before, after;
    series times = {0};
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    floors *f = open_floors("tcp");
    measure(f, FLOOR_TRIP, 8, 0, &times);
    assert_int_equal(sched_getaffinity(0, sizeof(after), &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    series_fini(&times);
    floors_close(f);
}

static void one_processor_is_enough(void **state)
{
    cpu_set_t before, one;
    series times = {0};
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    int processor = 0;
    while (!CPU_ISSET(processor, &before))
        processor++;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    floors *f = open_floors("tcp");
    measure(f, FLOOR_TRIP, 8, 0, &times);
    measure(f, FLOOR_READ, BULK, 0, &times);
    floors_close(f);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    series_fini(&times);
}

static void an_unknown_fabric_has_none(void **state)
{
    assert_null(floors_open("shm", BULK, why, sizeof(why)));
    assert_string_equal(why, "none is known");
}

/* ---- Helpers that fail ------------------------------------------------------------------------------------------ */

enum { STALL, END, REFUSE, ANSWER };

static bool obey(void *arg, const order *o, series *out)
{
    if (o->what == STALL)
        pause();
    if (o->what == END)
        _exit(0);
    series_add(out, o->us);
    return o->what == ANSWER || helper_say("not that");
}

static int be_helper(int fd, void *arg)
{
    return helper_serve(fd, true, obey, arg);
}

static int refuse_to_start(int fd, void *arg)
{
    (void)helper_say("not here");
    return helper_serve(fd, false, obey, arg);
}

static void helpers_that_fail_are_given_up(void **state)
{
    helper h;
    series samples = {0};
    assert_false(helper_open(&h, refuse_to_start, NULL, why, sizeof(why)));
    assert_string_equal(why, "not here");
    for (int what = STALL; what <= END; what++) {
        assert_true(helper_open(&h, be_helper, NULL, why, sizeof(why)));
        order next = {.what = REFUSE};
        assert_false(helper_measure(&h, &next, 60, &samples, why, sizeof(why)));
        assert_string_equal(why, "not that");
        next = (order){.what = ANSWER, .us = 7};
        assert_true(helper_measure(&h, &next, 60, &samples, why, sizeof(why))); /* a refusal does not end it */
        next = (order){.what = what};
        pid_t pid = h.pid;
        assert_false(helper_measure(&h, &next, what == STALL ? 0.2 : 60, &samples, why, sizeof(why)));
        assert_non_null(strstr(why, what == STALL ? "no answer" : "ended"));
        assert_int_equal(h.pid, 0);
        assert_int_equal(kill(pid, 0), -1); /* reaped */
        assert_false(helper_measure(&h, &next, 60, &samples, why, sizeof(why)));
    }
    assert_int_equal(samples.count, 2);
    assert_true(samples.values[0] == 7);
    series_fini(&samples);
}

UNIT_MAIN(slices_follow_each_other_at_once, shared_memory_has_a_floor, this_thread_may_run_where_it_could_before,
          one_processor_is_enough, an_unknown_fabric_has_none, helpers_that_fail_are_given_up)
