/* SPDX-License-Identifier: Apache-2.0 */
/* test_future_basic.c - completion once, callbacks in order, waiting, then, collect_all, wait_all, dropping. */
#include "future/future.h"
#include "sim/fiber.h"
#include "patience.h"
#include "unit.h"
#include "said.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_int drops;

static void count_drop(void *arg)
{
    atomic_fetch_add(&drops, 1);
}

static int reset(void **state)
{
    atomic_store(&drops, 0);
    return 0;
}

static weft_future *failed(weft_status code)
{
    weft_future *future = wfi_future_create(NULL, NULL);
    weft_error *error = weft_error_create(code, "made to fail");
    assert_int_equal(weft_future_fail(future, error), WEFT_OK);
    weft_error_unref(error);
    return future;
}

static void reading_null_gives_nothing(void **state)
{
    assert_false(weft_future_done(NULL));
    assert_null(weft_future_payload(NULL));
    assert_null(weft_future_error(NULL));
}

static void the_second_completion_is_refused_and_dropped(void **state)
{
    weft_future *future = wfi_future_create(NULL, NULL);
    int payload;
    assert_false(weft_future_done(future));
    assert_null(weft_future_payload(future));
    assert_int_equal(weft_future_complete(future, &payload, count_drop), WEFT_OK);
    assert_int_equal(weft_future_complete(future, NULL, count_drop), WEFT_ERR_COMPLETED);
    assert_int_equal(drops, 1);
    assert_ptr_equal(weft_future_payload(future), &payload);
    assert_true(wfi_future_payload_kind(future) == count_drop);
    assert_int_equal(weft_future_wait(future, 0), WEFT_OK);
    weft_future_unref(future);
    assert_int_equal(drops, 2);
}

static void a_failed_future_tells_why(void **state)
{
    weft_future *future = failed(WEFT_ERR_SHAPE);
    assert_int_equal(await_future(future), WEFT_ERR_SHAPE);
    assert_int_equal(weft_error_code(weft_future_error(future)), WEFT_ERR_SHAPE);
    assert_null(weft_future_payload(future));
    assert_int_equal(weft_future_fail(future, NULL), WEFT_ERR_INVALID);
    weft_future_unref(future);
}

static void waiting_ends_at_the_deadline(void **state)
{
    weft_future *future = wfi_future_create(NULL, NULL);
    assert_int_equal(weft_future_wait(future, 0), WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_future_wait(future, 10), WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_future_wait(future, -2), WEFT_ERR_INVALID);
    assert_false(weft_future_done(future));
    weft_future_unref(future);
    weft_future_unref(NULL);
}

typedef struct record {
    char text[16];
    atomic_int count;
} record;
typedef struct note {
    record *to;
    char letter;
} note;

static void write_note(weft_future *future, void *arg)
{
    note *self = arg;
    assert_true(weft_future_done(future));
    self->to->text[atomic_load(&self->to->count)] = self->letter;
    atomic_fetch_add(&self->to->count, 1);
}

static void callbacks_run_in_order_and_outside(void **state)
{
    wfi_executor_options options = {.workers = 1, .manual = true};
    wfi_executor *executor = NULL;
    weft_future *future;
    record all = {.count = 0};
    note notes[4] = {{&all, 'a'}, {&all, 'b'}, {&all, 'c'}, {&all, 'd'}};
    int i;
    assert_int_equal(wfi_executor_create(&options, &executor), WEFT_OK);
    future = wfi_future_create(executor, NULL);
    for (i = 0; i < 3; i++)
        assert_int_equal(weft_future_add_done_callback(future, write_note, &notes[i], count_drop), WEFT_OK);
    assert_int_equal(weft_future_complete(future, NULL, NULL), WEFT_OK);
    assert_int_equal(weft_future_add_done_callback(future, write_note, &notes[3], count_drop), WEFT_OK);
    assert_int_equal(all.count, 0);
    weft_future_unref(future); /* the callbacks hold it */
    wfi_executor_run_some(executor, &wfi_clock_real, WFI_NEVER);
    assert_string_equal(all.text, "abcd");
    assert_int_equal(drops, 4);
    wfi_executor_destroy(executor);
}

static weft_status double_it(weft_future *parent, weft_future *child, void *arg)
{
    return weft_future_complete(child, (void *)((uintptr_t)weft_future_payload(parent) * 2), NULL);
}

static weft_status refuse(weft_future *parent, weft_future *child, void *arg)
{
    return WEFT_ERR_TYPE;
}

static void then_makes_chains_and_carries_failures(void **state)
{
    weft_future *a = wfi_future_create(NULL, NULL), *b, *c;
    b = weft_future_then(a, double_it, NULL, count_drop);
    c = weft_future_then(b, refuse, NULL, count_drop);
    assert_int_equal(weft_future_complete(a, (void *)21, NULL), WEFT_OK);
    assert_int_equal(await_future(b), WEFT_OK);
    assert_int_equal((uintptr_t)weft_future_payload(b), 42);
    assert_int_equal(await_future(c), WEFT_ERR_TYPE);
    assert_comes(atomic_load(&drops) >= 2); /* they follow the completion, on the executor's thread */
    weft_future_unref(a);
    weft_future_unref(b);
    weft_future_unref(c);
}

static void dropping_incomplete_drops_all_and_cancels_children(void **state)
{
    weft_future *a = wfi_future_create(NULL, NULL), *b;
    assert_int_equal(weft_future_add_done_callback(a, write_note, NULL, count_drop), WEFT_OK);
    b = weft_future_then(a, double_it, NULL, count_drop);
    weft_future_unref(a);
    assert_int_equal(drops, 2);
    assert_int_equal(weft_future_wait(b, 0), WEFT_ERR_CANCELLED);
    weft_future_unref(b);
}

static void a_long_chain_drops_without_deep_recursion(void **state)
{
    weft_future *first = wfi_future_create(NULL, NULL), *last = weft_future_ref(first);
    int i;
    for (i = 0; i < 50000; i++) {
        weft_future *next = weft_future_when_all(&last, 1);
        weft_future_unref(last);
        last = next;
    }
    assert_int_equal(weft_future_complete(first, NULL, count_drop), WEFT_OK);
    assert_true(weft_future_done(last));
    weft_future_unref(first);
    assert_int_equal(drops, 0);
    weft_future_unref(last);
    assert_int_equal(drops, 1);
}

static void collect_all_succeeds_even_over_failures(void **state)
{
    weft_future *parts[3] = {wfi_future_create(NULL, NULL), failed(WEFT_ERR_IO), wfi_future_create(NULL, NULL)}, *all;
    weft_future **result;
    int i;
    all = weft_future_when_all(parts, 3);
    assert_int_equal(weft_future_complete(parts[2], NULL, NULL), WEFT_OK);
    assert_false(weft_future_done(all));
    assert_int_equal(weft_future_complete(parts[0], NULL, NULL), WEFT_OK);
    assert_int_equal(weft_future_wait(all, 0), WEFT_OK);
    result = weft_future_payload(all);
    for (i = 0; i < 3; i++) {
        assert_ptr_equal(result[i], parts[i]);
        weft_future_unref(parts[i]);
    }
    assert_int_equal(weft_error_code(weft_future_error(result[1])), WEFT_ERR_IO);
    weft_future_unref(all);
    all = weft_future_when_all(NULL, 0);
    assert_true(weft_future_done(all));
    weft_future_unref(all);
}

static void wait_all_returns_early_with_a_failure(void **state)
{
    weft_future *parts[20];
    int i;
    for (i = 0; i < 20; i++)
        parts[i] = i == 11 ? failed(WEFT_ERR_BUSY) : wfi_future_create(NULL, NULL);
    assert_int_equal(weft_future_wait_all(parts, 11, 5), WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_future_wait_all(parts, 20, PATIENCE_MS), WEFT_ERR_BUSY);
    assert_int_equal(weft_future_wait_all(NULL, 0, 0), WEFT_OK);
    assert_int_equal(weft_future_wait_all(NULL, 1, 0), WEFT_ERR_INVALID);
    for (i = 0; i < 20; i++)
        weft_future_unref(parts[i]);
}

typedef struct fake_driver {
    wfi_driver driver;
    weft_future *completes;
    int turns, until;
    bool useless;
} fake_driver;

static bool drive(wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns)
{
    fake_driver *self = wfi_container_of(driver, fake_driver, driver);
    if (self->useless)
        return false;
    if (++self->turns == self->until)
        assert_int_equal(weft_future_complete(self->completes, NULL, NULL), WEFT_OK);
    return true;
}

static void a_waiter_drives_the_network(void **state)
{
    fake_driver fake = {.driver = {drive}, .until = 5};
    weft_future *future = wfi_future_create(NULL, &fake.driver);
    fake.completes = future;
    assert_int_equal(weft_future_wait(future, 0), WEFT_ERR_TIMEOUT); /* one turn even so */
    assert_int_equal(fake.turns, 1);
    assert_int_equal(await_future(future), WEFT_OK);
    assert_int_equal(fake.turns, 5);
    weft_future_unref(future);
}

static void several_drivers_all_get_turns(void **state)
{
    fake_driver fakes[2] = {{.driver = {drive}, .until = 5}, {.driver = {drive}, .until = 3}};
    weft_future *futures[2] = {wfi_future_create(NULL, &fakes[0].driver), wfi_future_create(NULL, &fakes[1].driver)};
    fakes[0].completes = futures[0];
    fakes[1].completes = futures[1];
    assert_int_equal(weft_future_wait_all(futures, 2, 5000), WEFT_OK);
    weft_future_unref(futures[0]);
    weft_future_unref(futures[1]);
}

static void waiting_where_it_could_never_end_is_refused(void **state)
{
    fake_driver fake = {.driver = {drive}, .useless = true};
    weft_future *future = wfi_future_create(NULL, &fake.driver);
    assert_int_equal(weft_future_wait(future, WEFT_FOREVER), WEFT_ERR_DEADLOCK);
    weft_future_unref(future);
}

static void a_future_outlives_its_executor_and_driver(void **state)
{
    fake_driver fake = {.driver = {drive}, .useless = true};
    wfi_executor_options options = {.workers = 1};
    wfi_executor *executor = NULL;
    weft_future *future, *child;
    assert_int_equal(wfi_executor_create(&options, &executor), WEFT_OK);
    future = wfi_future_create(executor, &fake.driver);
    wfi_executor_destroy(executor);
    child = weft_future_then(future, double_it, NULL, count_drop);
    assert_int_equal(weft_future_wait(future, 1), WEFT_ERR_TIMEOUT); /* the driver is not asked any more */
    assert_int_equal(weft_future_complete(future, (void *)1, NULL), WEFT_OK);
    assert_int_equal(await_future(child), WEFT_OK);
    weft_future_unref(child);
    weft_future_unref(future);
}

typedef struct fiber_case {
    weft_future *future;
    weft_status first, second;
    uint64_t now;
    wfi_clock clock;
} fiber_case;

static uint64_t case_now(const wfi_clock *clock)
{
    return wfi_container_of(clock, fiber_case, clock)->now;
}

static void wait_twice(void *arg)
{
    fiber_case *self = arg;
    self->first = weft_future_wait(self->future, 10);
    self->second = weft_future_wait(self->future, WEFT_FOREVER);
}

static void a_fiber_waits_in_its_schedulers_time(void **state)
{
    fiber_case self = {.future = wfi_future_create(NULL, NULL), .second = WEFT_ERR_UNKNOWN};
    wfi_fibers *fibers;
    self.clock.now_ns = case_now;
    fibers = wfi_fibers_create(&self.clock, (size_t)64 << 10);
    assert_int_equal(wfi_fiber_spawn(fibers, 0, wait_twice, &self), WEFT_OK);
    wfi_fibers_run(fibers);
    assert_int_equal(wfi_fibers_next_deadline(fibers), 10000000);
    self.now = 10000000;
    wfi_fibers_expire(fibers);
    wfi_fibers_run(fibers);
    assert_int_equal(self.first, WEFT_ERR_TIMEOUT);
    assert_int_equal(weft_future_complete(self.future, NULL, NULL), WEFT_OK);
    wfi_fibers_run(fibers);
    assert_int_equal(self.second, WEFT_OK);
    wfi_fibers_destroy(fibers);
    weft_future_unref(self.future);
}

typedef struct mapped_driver {
    fiber_case self;
    wfi_driver *driver; /* in a page of its own */
    wfi_executor *executor;
} mapped_driver;

static bool sleep_in_driver(wfi_driver *driver, wfi_parker *parker, uint64_t deadline_ns)
{
    (void)wfi_park(parker, deadline_ns);
    return true;
}

static void end_the_executor(void *arg)
{
    mapped_driver *mapped = arg;
    wfi_executor_destroy(mapped->executor);
    assert_int_equal(munmap(mapped->driver, sizeof(*mapped->driver)), 0);
    assert_int_equal(weft_future_complete(mapped->self.future, NULL, NULL), WEFT_OK);
}

static void a_fiber_waits_while_its_driver_is_freed(void **state)
{
    mapped_driver mapped = {.self = {.first = WEFT_ERR_UNKNOWN, .clock = {case_now}}};
    wfi_fibers *fibers = wfi_fibers_create(&mapped.self.clock, (size_t)64 << 10);
    wfi_executor_options options = {.workers = 1, .fibers = fibers};
    assert_int_equal(wfi_executor_create(&options, &mapped.executor), WEFT_OK);
    mapped.driver = mmap(NULL, sizeof(*mapped.driver), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(mapped.driver != MAP_FAILED);
    mapped.driver->drive = sleep_in_driver;
    mapped.driver->is_simulated = true;
    mapped.self.future = wfi_future_create(mapped.executor, mapped.driver);
    assert_int_equal(wfi_fiber_spawn(fibers, 0, wait_twice, &mapped.self), WEFT_OK);
    assert_int_equal(wfi_fiber_spawn(fibers, 0, end_the_executor, &mapped), WEFT_OK);
    wfi_fibers_run(fibers);
    assert_int_equal(mapped.self.first, WEFT_OK);
    wfi_fibers_destroy(fibers);
    weft_future_unref(mapped.self.future);
}

typedef struct several {
    weft_future *futures[3];
    weft_status all, any;
    size_t index;
    uint64_t now;
    wfi_clock clock;
} several;

static uint64_t several_now(const wfi_clock *clock)
{
    return wfi_container_of(clock, several, clock)->now;
}

static void wait_for_all(void *arg)
{
    several *self = arg;
    self->all = weft_future_wait_all(self->futures, 3, WEFT_FOREVER);
}

static void wait_for_any(void *arg)
{
    several *self = arg;
    self->any = weft_future_wait_any(self->futures, 3, WEFT_FOREVER, &self->index);
}

/* Nothing ends their waiting but the failure: time stands still, and the other futures never complete. */
static void a_failure_wakes_those_who_wait_already(void **state)
{
    several self = {.all = WEFT_ERR_UNKNOWN, .any = WEFT_ERR_UNKNOWN, .clock.now_ns = several_now};
    weft_error *error = weft_error_create(WEFT_ERR_BUSY, "made to fail");
    wfi_fibers *fibers = wfi_fibers_create(&self.clock, (size_t)64 << 10);
    for (int i = 0; i < 3; i++)
        self.futures[i] = wfi_future_create(NULL, NULL);
    assert_int_equal(wfi_fiber_spawn(fibers, 0, wait_for_all, &self), WEFT_OK);
    assert_int_equal(wfi_fiber_spawn(fibers, 0, wait_for_any, &self), WEFT_OK);
    wfi_fibers_run(fibers);
    assert_int_equal(self.all, WEFT_ERR_UNKNOWN); /* both wait */
    assert_int_equal(self.any, WEFT_ERR_UNKNOWN);
    assert_int_equal(weft_future_fail(self.futures[1], error), WEFT_OK);
    wfi_fibers_run(fibers);
    assert_int_equal(self.all, WEFT_ERR_BUSY);
    assert_int_equal(self.any, WEFT_OK);
    assert_int_equal(self.index, 1);
    for (int i = 0; i < 3; i++)
        weft_future_unref(self.futures[i]);
    wfi_fibers_destroy(fibers);
    weft_error_unref(error);
}

static void wrong_arguments_are_named(void **state)
{
    weft_future *future = weft_future_create(NULL), *two[] = {future, NULL};
    size_t index;
    REFUSES(weft_future_wait(NULL, 0), WEFT_ERR_INVALID, "weft_future_wait: the future is NULL");
    REFUSES(weft_future_wait(future, -9), WEFT_ERR_INVALID, "weft_future_wait: wait_ms is -9");
    REFUSES(weft_future_wait(future, 0), WEFT_ERR_TIMEOUT, NULL);
    REFUSES(weft_future_wait_until(NULL, 0), WEFT_ERR_INVALID, "weft_future_wait_until: the future is NULL");
    REFUSES(weft_future_wait_all(two, 2, 0), WEFT_ERR_INVALID, "weft_future_wait_all: future 1 of 2 is NULL");
    REFUSES(weft_future_wait_all(NULL, 2, 0), WEFT_ERR_INVALID, "the list of 2 futures is NULL");
    REFUSES(weft_future_wait_all(NULL, 0, 0), WEFT_OK, NULL);
    REFUSES(weft_future_wait_any(two, 1, -9, &index), WEFT_ERR_INVALID, "weft_future_wait_any: wait_ms is -9");
    REFUSES(weft_future_wait_any(two, 1, 0, NULL), WEFT_ERR_INVALID, "weft_future_wait_any: index is NULL");
    REFUSES(weft_future_wait_any(NULL, 0, 0, &index), WEFT_ERR_INVALID, "the list is empty");
    REFUSES(weft_future_when_all(two, 2), NULL, "weft_future_when_all: future 1 of 2 is NULL");
    REFUSES(weft_future_when_any(NULL, 3), NULL, "weft_future_when_any: the list of 3 futures is NULL");
    REFUSES(weft_future_then(future, NULL, NULL, NULL), NULL, "weft_future_then: fn is NULL");
    REFUSES(weft_future_add_done_callback(future, NULL, NULL, NULL), WEFT_ERR_INVALID, "fn is NULL");
    REFUSES(weft_future_complete(NULL, NULL, NULL), WEFT_ERR_INVALID, "weft_future_complete: the future is NULL");
    REFUSES(weft_future_fail(future, NULL), WEFT_ERR_INVALID, "weft_future_fail: error is NULL");
    REFUSES(weft_future_cancel(NULL), WEFT_ERR_INVALID, "weft_future_cancel: the future is NULL");
    weft_future *both = weft_future_when_all(two, 1);
    REFUSES(weft_future_complete(both, NULL, NULL), WEFT_ERR_STATE, "weft completes this future");
    weft_future_unref(both);
    REFUSES(weft_future_complete(future, NULL, NULL), WEFT_OK, NULL);
    REFUSES(weft_future_complete(future, NULL, NULL), WEFT_ERR_COMPLETED, NULL); /* a race, perhaps */
    weft_future_unref(future);
}

int main(void)
{
#define T(name) cmocka_unit_test_setup(name, reset)
    const struct CMUnitTest tests[] = {
        T(reading_null_gives_nothing),
        T(the_second_completion_is_refused_and_dropped),
        T(a_failed_future_tells_why),
        T(waiting_ends_at_the_deadline),
        T(callbacks_run_in_order_and_outside),
        T(then_makes_chains_and_carries_failures),
        T(dropping_incomplete_drops_all_and_cancels_children),
        T(a_long_chain_drops_without_deep_recursion),
        T(collect_all_succeeds_even_over_failures),
        T(wait_all_returns_early_with_a_failure),
        T(a_waiter_drives_the_network),
        T(several_drivers_all_get_turns),
        T(waiting_where_it_could_never_end_is_refused),
        T(a_future_outlives_its_executor_and_driver),
        T(a_fiber_waits_in_its_schedulers_time),
        T(a_fiber_waits_while_its_driver_is_freed),
        T(a_failure_wakes_those_who_wait_already),
        T(wrong_arguments_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
