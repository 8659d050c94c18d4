/* SPDX-License-Identifier: Apache-2.0 */
/* pair_test.c - perf/common/raw_pair: the two processes of a floor agree on where a slice ends, and have a core
 * each. */
#include "common/cores.h"
#include "common/raw_endpoint.h"
#include "common/raw_pair.h"

#include "unit.h"

#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

enum { BULK = 1 << 20, SLICES = 40 };

static pid_t this_process;

int __real_raw_endpoint_send(raw_endpoint *e, size_t bytes);
int __wrap_raw_endpoint_send(raw_endpoint *e, size_t bytes);

/*
 * The other process loses its core after each answer, as it does on a busy machine. So the first message of the next
 * slice is there before that process has seen that its last answer left.
 */
int __wrap_raw_endpoint_send(raw_endpoint *e, size_t bytes)
{
    int failed = __real_raw_endpoint_send(e, bytes);
    if (getpid() != this_process)
        usleep(2000);
    return failed;
}

static raw_pair *open_pair(void)
{
    raw_pair *pair = NULL;
    this_process = getpid();
    assert_int_equal(raw_pair_open(NULL, BULK, &pair), 0);
    return pair;
}

static void slices_follow_each_other_at_once(void **state)
{
    raw_pair *pair = open_pair();
    series times = {0};
    double us;
    for (int i = 0; i < SLICES; i++) {
        assert_int_equal(raw_pair_trips(pair, 1 + (size_t)i, 2, &times), 0);
        assert_int_equal(raw_pair_bulk(pair, RAW_READ | RAW_WRITE, BULK, (raw_cut){BULK / 4, 2}, 1, &times), 0);
        assert_int_equal(raw_pair_window(pair, 8, 4, 3, &us), 0);
    }
    assert_int_equal(times.count, 3 * SLICES); /* two trips and a transfer each */
    series_fini(&times);
    raw_pair_close(pair);
}

static void this_thread_may_run_where_it_could_before(void **state)
{
    cpu_set_t before, after;
    series times = {0};
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    raw_pair *pair = open_pair();
    assert_int_equal(raw_pair_trips(pair, 8, 3, &times), 0);
    assert_int_equal(raw_pair_bulk(pair, RAW_READ, BULK, (raw_cut){BULK, 1}, 2, &times), 0);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    series_fini(&times);
    raw_pair_close(pair);
}

static void one_processor_is_enough(void **state)
{
    cpu_set_t before;
    cores c;
    series times = {0};
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int processor = 0;
    while (!CPU_ISSET(processor, &before))
        processor++;
    cores_pin(processor);
    assert_false(cores_find(&c));
    raw_pair *pair = open_pair();
    assert_int_equal(raw_pair_trips(pair, 8, 20, &times), 0);
    assert_int_equal(raw_pair_bulk(pair, RAW_READ, BULK, (raw_cut){BULK / 4, 2}, 2, &times), 0);
    raw_pair_close(pair);
    cores_free(&(cores){.allowed = before});
    if (CPU_COUNT(&before) > 1) {
        assert_true(cores_find(&c));
        assert_true(c.mine != c.other && CPU_ISSET(c.mine, &before) && CPU_ISSET(c.other, &before));
    }
    series_fini(&times);
}

UNIT_MAIN(slices_follow_each_other_at_once, this_thread_may_run_where_it_could_before, one_processor_is_enough)
