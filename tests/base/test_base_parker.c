/* SPDX-License-Identifier: Apache-2.0 */
/* test_base_parker.c - no wake-up is lost, none is invented, and a parker may go as soon as it was unparked. */
#include "base/mutex.h"
#include "base/parker.h"
#include "unit.h"

#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ROUNDS 20000

static void an_unpark_before_the_park_counts_once(void **state)
{
    wfi_parker parker;
    wfi_parker_init(&parker);
    wfi_unpark(&parker);
    wfi_unpark(&parker);
    assert_true(wfi_park(&parker, WFI_NEVER));
    assert_false(wfi_park(&parker, wfi_deadline(&wfi_clock_real, 5)));
}

typedef struct sleeper {
    uint64_t start;
    bool woken, again, in_time;
    int done; /* written to at the end */
} sleeper;

static void *sleep_twice(void *arg)
{
    sleeper *self = arg;
    wfi_parker parker;
    wfi_parker_init(&parker);
    self->woken = wfi_park(&parker, self->start + 20000000);
    self->in_time = wfi_now(&wfi_clock_real) >= self->start + 20000000;
    self->again = wfi_park(&parker, 0);
    (void)!write(self->done, &(uint64_t){1}, sizeof(uint64_t));
    return NULL;
}

static bool comes(int fd)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, 25000) == 1;
}

static void a_deadline_is_waited_for(void **state)
{
    static sleeper self; /* the thread may be there still if the assertion fails */
    pthread_t thread;
    self = (sleeper){.start = wfi_now(&wfi_clock_real), .done = eventfd(0, EFD_CLOEXEC)};
    assert_int_equal(pthread_create(&thread, NULL, sleep_twice, &self), 0);
    if (!comes(self.done)) {
        print_error("a sleep with a deadline does not end\n");
        abort(); /* what follows would not end either */
    }
    pthread_join(thread, NULL);
    assert_false(self.woken || self.again);
    assert_true(self.in_time);
    close(self.done);
}

/* Who sleeps on a descriptor of its own finds it readable, and empty afterwards. */
static void an_unpark_wakes_who_sleeps_on_a_descriptor(void **state)
{
    wfi_parker parker;
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    uint64_t count;
    wfi_parker_init(&parker);
    assert_true(wfi_park_on_begin(&parker, fd));
    wfi_unpark(&parker);
    assert_true(comes(fd));
    wfi_park_on_end(&parker);
    assert_true(wfi_parker_is_unparked(&parker));
    assert_int_equal(read(fd, &count, sizeof(count)), -1);
    assert_false(wfi_park_on_begin(&parker, fd));
    assert_true(wfi_park(&parker, 0));
    close(fd);
}

typedef struct table_tennis {
    wfi_parker *_Atomic players[2];
    atomic_int ball;
} table_tennis;

static void play(table_tennis *game, int me)
{
    wfi_parker mine;
    int round;
    wfi_parker_init(&mine);
    atomic_store(&game->players[me], &mine);
    while (!atomic_load(&game->players[1 - me]))
        continue;
    for (round = 0; round < ROUNDS; round++) {
        while (atomic_load(&game->ball) != me)
            wfi_park(&mine, WFI_NEVER);
        atomic_store(&game->ball, 1 - me);
        wfi_unpark(atomic_load(&game->players[1 - me]));
    }
    while (atomic_load(&game->ball) != 2 && me == 0)
        wfi_park(&mine, WFI_NEVER); /* the other's last stroke must find this stack */
    if (me == 1) {
        atomic_store(&game->ball, 2);
        wfi_unpark(atomic_load(&game->players[0]));
    }
}

static void *second_player(void *arg)
{
    play(arg, 1);
    return NULL;
}

static void two_threads_alternate_without_losing_a_wake_up(void **state)
{
    table_tennis game = {.ball = 0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, second_player, &game), 0);
    play(&game, 0);
    pthread_join(thread, NULL);
}

typedef struct queue {
    wfi_mutex lock;
    wfi_list sleepers;
    int permits, taken;
} queue;

static void *take_permits(void *arg)
{
    queue *shared = arg;
    int i;
    for (i = 0; i < ROUNDS / 10; i++) {
        wfi_parker mine; /* a new one each time: it goes right after it was unparked */
        wfi_parker_init(&mine);
        wfi_mutex_lock(&shared->lock);
        while (shared->permits == 0) {
            wfi_list_push_back(&shared->sleepers, &mine.link);
            wfi_mutex_unlock(&shared->lock);
            wfi_park(&mine, wfi_deadline(&wfi_clock_real, i % 7 == 0 ? 0 : WFI_NEVER));
            wfi_mutex_lock(&shared->lock);
            wfi_list_remove(&mine.link);
        }
        shared->permits--;
        shared->taken++;
        wfi_mutex_unlock(&shared->lock);
    }
    return NULL;
}

static void many_sleepers_with_deadlines_all_get_their_permits(void **state)
{
    queue shared = {.permits = 0};
    pthread_t threads[4];
    int i;
    wfi_mutex_init(&shared.lock);
    wfi_list_init(&shared.sleepers);
    for (i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, take_permits, &shared), 0);
    for (i = 0; i < 4 * (ROUNDS / 10); i++) {
        wfi_list *first;
        wfi_mutex_lock(&shared.lock);
        shared.permits++;
        first = wfi_list_pop_front(&shared.sleepers);
        if (first)
            wfi_unpark(wfi_container_of(first, wfi_parker, link));
        wfi_mutex_unlock(&shared.lock);
    }
    for (i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(shared.taken, 4 * (ROUNDS / 10));
    wfi_mutex_fini(&shared.lock);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_deadline_is_waited_for), /* the others rely on it */
        cmocka_unit_test(an_unpark_before_the_park_counts_once),
        cmocka_unit_test(an_unpark_wakes_who_sleeps_on_a_descriptor),
        cmocka_unit_test(two_threads_alternate_without_losing_a_wake_up),
        cmocka_unit_test(many_sleepers_with_deadlines_all_get_their_permits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
