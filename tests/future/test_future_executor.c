/* SPDX-License-Identifier: Apache-2.0 */
/* test_future_executor.c - the three forms of the executor, and leader and followers with a made-up network. */
#include "base/mutex.h"
#include "future/executor.h"
#include "sim/fiber.h"
#include "unit.h"

#include <dirent.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct job {
    wfi_task task;
    wfi_executor *executor;
    atomic_int *count;
    wfi_parker *wake; /* unparked when it has run */
    int number, *order;
} job;

static void run_job(wfi_task *task)
{
    job *self = wfi_container_of(task, job, task);
    int place = atomic_fetch_add(self->count, 1);
    if (self->order)
        self->order[place] = self->number;
    if (self->wake)
        wfi_unpark(self->wake);
}

static wfi_executor *open_executor(int workers)
{
    wfi_executor_options options = {.workers = workers, .thread_name = "weft-test"};
    wfi_executor *executor = NULL;
    assert_int_equal(wfi_executor_create(&options, &executor), WEFT_OK);
    return executor;
}

static void destroy_runs_what_is_queued(void **state)
{
    enum { COUNT = 5000 };
    wfi_executor *executor = open_executor(3);
    job *jobs = calloc(COUNT, sizeof(*jobs));
    atomic_int count = 0;
    int i;
    for (i = 0; i < COUNT; i++) {
        jobs[i] = (job){.task.run = run_job, .count = &count};
        wfi_executor_submit(executor, &jobs[i].task);
    }
    wfi_executor_destroy(executor);
    assert_int_equal(count, COUNT);
    free(jobs);
}

static void one_worker_keeps_the_order(void **state)
{
    enum { COUNT = 500 };
    static int order[COUNT];
    static job jobs[COUNT];
    wfi_executor *executor = open_executor(1);
    atomic_int count = 0;
    int i;
    for (i = 0; i < COUNT; i++) {
        jobs[i] = (job){.task.run = run_job, .count = &count, .number = i, .order = order};
        wfi_executor_submit(executor, &jobs[i].task);
    }
    wfi_executor_destroy(executor);
    for (i = 0; i < COUNT; i++)
        assert_int_equal(order[i], i);
}

static void unused_and_bad_executors(void **state)
{
    wfi_executor_options bad = {.workers = 0};
    wfi_executor *executor = NULL;
    assert_int_equal(wfi_executor_create(&bad, &executor), WEFT_ERR_INVALID);
    wfi_executor_destroy(NULL);
    wfi_executor_destroy(open_executor(4));
    assert_null(wfi_executor_current());
}

/* A task that waits for the next one, submitted to the same executor: a chain as deep as `number`. */
static void run_nested(wfi_task *task)
{
    job *self = wfi_container_of(task, job, task);
    wfi_parker mine;
    job next = {.task.run = run_nested, .executor = self->executor, .count = self->count, .wake = &mine};
    wfi_parker_init(&mine);
    next.number = self->number - 1;
    assert_ptr_equal(wfi_executor_current(), self->executor);
    if (self->number > 0) {
        wfi_executor_submit(self->executor, &next.task);
        wfi_executor_block_begin();
        wfi_park(&mine, WFI_NEVER);
        wfi_executor_block_end();
    }
    run_job(task);
}

static void nested_waits_finish_with_one_worker(void **state)
{
    wfi_executor *executor = open_executor(1);
    atomic_int count = 0;
    wfi_parker mine;
    job first = {.task.run = run_nested, .executor = executor, .count = &count, .wake = &mine, .number = 30};
    wfi_parker_init(&mine);
    wfi_executor_submit(executor, &first.task);
    wfi_park(&mine, WFI_NEVER);
    wfi_executor_destroy(executor);
    assert_int_equal(count, 31);
}

static int count_threads(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/task");
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        count += entry->d_name[0] != '.';
    closedir(folder);
    return count;
}

static void threads_of_a_burst_go_when_it_is_over(void **state)
{
    wfi_executor *executor = open_executor(2);
    int before = count_threads();
    for (int burst = 0; burst < 2; burst++) {
        atomic_int count = 0;
        wfi_parker mine;
        job first = {.task.run = run_nested, .executor = executor, .count = &count, .wake = &mine, .number = 40};
        wfi_parker_init(&mine);
        wfi_executor_submit(executor, &first.task);
        wfi_park(&mine, WFI_NEVER);
        assert_int_equal(count, 41);
        assert_true(count_threads() > before + 20); /* they wait a second for the next burst */
        while (count_threads() > before + 2)        /* the test's time limit ends this */
            usleep(10000);
    }
    wfi_executor_destroy(executor);
    while (count_threads() > before) /* joined, and just about to leave the list */
        usleep(1000);
}

static void run_resubmitting(wfi_task *task)
{
    job *self = wfi_container_of(task, job, task);
    atomic_fetch_add(self->count, 1);
    if (self->number-- > 0)
        wfi_executor_submit(self->executor, task);
}

static void destroy_while_tasks_still_submit(void **state)
{
    wfi_executor *executor = open_executor(2);
    static job jobs[8];
    atomic_int count = 0;
    int i;
    for (i = 0; i < 8; i++) {
        jobs[i] = (job){.task.run = run_resubmitting, .executor = executor, .count = &count, .number = 200};
        wfi_executor_submit(executor, &jobs[i].task);
    }
    wfi_executor_destroy(executor);
    assert_int_equal(count, 8 * 201);
}

static void a_late_task_goes_to_the_process(void **state)
{
    wfi_executor *executor = open_executor(1);
    atomic_int count = 0;
    wfi_parker mine;
    job late = {.task.run = run_job, .count = &count, .wake = &mine};
    wfi_parker_init(&mine);
    wfi_executor_ref(executor);
    wfi_executor_destroy(executor);
    assert_true(wfi_executor_has_ended(executor));
    wfi_executor_submit(executor, &late.task);
    wfi_park(&mine, WFI_NEVER);
    assert_int_equal(count, 1);
    wfi_executor_unref(executor);
}

/* ---- A made-up network: a list of messages, each a task for the leader ---- */

typedef struct network {
    wfi_executor *executor;
    wfi_mutex lock;
    wfi_list messages;
    wfi_parker *leader;
    atomic_bool nudged;
    atomic_int inside, most_inside, polled;
    bool gives_all; /* the leader brings back all messages, not one */
} network;

static wfi_task *network_idle(void *arg)
{
    network *net = arg;
    wfi_parker mine;
    wfi_list *link;
    int inside = atomic_fetch_add(&net->inside, 1) + 1;
    if (inside > atomic_load(&net->most_inside))
        atomic_store(&net->most_inside, inside);
    wfi_parker_init(&mine);
    wfi_mutex_lock(&net->lock);
    net->leader = &mine;
    while (!(link = wfi_list_pop_front(&net->messages)) && !atomic_exchange(&net->nudged, false)) {
        wfi_mutex_unlock(&net->lock);
        wfi_park(&mine, wfi_deadline(&wfi_clock_real, 1)); /* nudge takes no lock, so it may come between: look again */
        wfi_mutex_lock(&net->lock);
    }
    net->leader = NULL;
    if (net->gives_all && link && !wfi_list_empty(&net->messages))
        wfi_executor_submit_led(net->executor, &net->messages);
    wfi_mutex_unlock(&net->lock);
    atomic_fetch_sub(&net->inside, 1);
    return link ? wfi_container_of(link, wfi_task, link) : NULL;
}

static void network_nudge(void *arg)
{
    network *net = arg;
    atomic_store(&net->nudged, true);
}

static void deliver(network *net, job *message)
{
    wfi_mutex_lock(&net->lock);
    wfi_list_push_back(&net->messages, &message->task.link);
    if (net->leader)
        wfi_unpark(net->leader);
    wfi_mutex_unlock(&net->lock);
}

static void leaders_and_followers_run_everything(void **state)
{
    enum { COUNT = 2000 };
    network net = {.executor = open_executor(2)};
    job *jobs = calloc(COUNT + 1, sizeof(*jobs));
    atomic_int count = 0;
    int i;
    wfi_mutex_init(&net.lock);
    wfi_list_init(&net.messages);
    wfi_executor_set_idle(net.executor, network_idle, &net, network_nudge);
    for (i = 0; i <= COUNT; i++) {
        jobs[i] = (job){.task.run = run_job, .count = &count};
        if (i % 2 == 0)
            wfi_executor_submit(net.executor, &jobs[i].task);
        else
            deliver(&net, &jobs[i]);
    }
    while (atomic_load(&count) <= COUNT)
        sched_yield();
    wfi_executor_destroy(net.executor);
    assert_int_equal(count, COUNT + 1);
    assert_int_equal(net.most_inside, 1);
    wfi_mutex_fini(&net.lock);
    free(jobs);
}

static void a_nudged_leader_runs_a_submitted_task(void **state)
{
    network net = {.executor = open_executor(1)};
    atomic_int count = 0;
    int i;
    wfi_mutex_init(&net.lock);
    wfi_list_init(&net.messages);
    wfi_executor_set_idle(net.executor, network_idle, &net, network_nudge);
    for (i = 0; i < 200; i++) { /* one after the other: each finds the only worker inside the hook */
        wfi_parker mine;
        job one = {.task.run = run_job, .count = &count, .wake = &mine};
        wfi_parker_init(&mine);
        wfi_executor_submit(net.executor, &one.task);
        wfi_park(&mine, WFI_NEVER);
    }
    wfi_executor_destroy(net.executor);
    assert_int_equal(count, 200);
    wfi_mutex_fini(&net.lock);
}

/* A task that ends when `number` tasks run at once. It does not tell the executor that it waits. */
static void run_together(wfi_task *task)
{
    job *self = wfi_container_of(task, job, task);
    atomic_fetch_add(self->count, 1);
    while (atomic_load(self->count) < self->number)
        sched_yield();
    wfi_unpark(self->wake);
}

/* While tasks are brief, one worker runs them. The others come nevertheless if the next ones need each other. */
static void workers_come_after_brief_tasks(bool by_leader)
{
    enum { WORKERS = 3, BRIEF = 64, ROUNDS = 300 };
    network net = {.executor = open_executor(WORKERS), .gives_all = true};
    wfi_mutex_init(&net.lock);
    wfi_list_init(&net.messages);
    if (by_leader)
        wfi_executor_set_idle(net.executor, network_idle, &net, network_nudge);
    for (int round = 0; round < ROUNDS; round++) {
        atomic_int count = 0, together = 0;
        wfi_parker mine[WORKERS];
        job jobs[BRIEF + WORKERS];
        wfi_mutex_lock(&net.lock);
        for (int i = 0; i < BRIEF + WORKERS; i++) {
            jobs[i] = (job){.task.run = run_job, .count = &count};
            if (i >= BRIEF) {
                wfi_parker_init(&mine[i - BRIEF]);
                jobs[i] =
                    (job){.task.run = run_together, .count = &together, .number = WORKERS, .wake = &mine[i - BRIEF]};
            }
            if (by_leader && round > 0) /* there is a leader */
                wfi_list_push_back(&net.messages, &jobs[i].task.link);
            else
                wfi_executor_submit(net.executor, &jobs[i].task);
        }
        if (net.leader)
            wfi_unpark(net.leader);
        wfi_mutex_unlock(&net.lock);
        for (int i = 0; i < WORKERS; i++)
            wfi_park(&mine[i], WFI_NEVER);
        while (atomic_load(&count) < BRIEF)
            sched_yield();
    }
    wfi_executor_destroy(net.executor);
    wfi_mutex_fini(&net.lock);
}

static void workers_come_after_brief_submitted_tasks(void **state)
{
    workers_come_after_brief_tasks(false);
}

static void workers_come_after_brief_messages(void **state)
{
    workers_come_after_brief_tasks(true);
}

/* ---- Manual and fibers ---- */

static void the_manual_form_runs_when_told(void **state)
{
    wfi_executor_options options = {.workers = 1, .manual = true};
    wfi_executor *executor = NULL;
    atomic_int count = 0;
    int order[3] = {0}, i;
    job jobs[3];
    assert_int_equal(wfi_executor_create(&options, &executor), WEFT_OK);
    for (i = 0; i < 3; i++) {
        jobs[i] = (job){.task.run = run_job, .count = &count, .number = i, .order = order};
        wfi_executor_submit(executor, &jobs[i].task);
    }
    assert_int_equal(count, 0);
    assert_true(wfi_executor_has_work(executor));
    assert_int_equal(wfi_executor_run_some(executor, &wfi_clock_real, WFI_NEVER), 3);
    assert_int_equal(order[2], 2);
    wfi_executor_submit(executor, &jobs[0].task);
    jobs[0].order = NULL;
    wfi_executor_destroy(executor);
    assert_int_equal(count, 4);
}

static void the_fiber_form_nests_and_is_drained_from_outside(void **state)
{
    wfi_fibers *fibers = wfi_fibers_create(&wfi_clock_real, (size_t)64 << 10);
    wfi_executor_options options = {.workers = 1, .fibers = fibers, .group = 2};
    wfi_executor *executor = NULL;
    atomic_int count = 0;
    job first;
    assert_int_equal(wfi_executor_create(&options, &executor), WEFT_OK);
    first = (job){.task.run = run_nested, .executor = executor, .count = &count, .number = 30};
    wfi_executor_submit(executor, &first.task);
    assert_int_equal(count, 0);
    assert_int_equal(wfi_fibers_live(fibers, 2), 1);
    wfi_fibers_run(fibers);
    assert_int_equal(count, 31);
    assert_int_equal(wfi_fibers_live(fibers, 2), 0); /* idle workers leave nothing behind */
    first.task.run = run_job;
    wfi_executor_submit(executor, &first.task);
    wfi_executor_destroy(executor);
    assert_int_equal(count, 32);
    wfi_fibers_destroy(fibers);
}

/* ---- Urgency ---- */

enum { EACH = 40 };

/* Which of the jobs, EACH of every urgency and lazy ones submitted first, run when: order[place] is the urgency. */
static void submit_mixed(wfi_executor *executor, job *jobs, atomic_int *count, int *order)
{
    static const wfi_urgency submitted[] = {WFI_LAZY, WFI_NORMAL, WFI_URGENT};
    for (int i = 0; i < 3 * EACH; i++) {
        jobs[i] = (job){.task = {.run = run_job, .urgency = submitted[i / EACH]}, .count = count, .order = order};
        jobs[i].number = (int)jobs[i].task.urgency;
        wfi_executor_submit(executor, &jobs[i].task);
    }
}

/* Urgent, normal, lazy, but for one start in 16, which the oldest has: at first all of those are lazy. */
static void assert_mixed_order(const int *order, int starts_before)
{
    int left[] = {EACH, EACH, EACH};
    for (int i = 0; i < 3 * EACH; i++) {
        bool oldest = (starts_before + i + 1) % WFI_OLDEST_EVERY == 0;
        wfi_urgency wanted = left[WFI_URGENT] ? WFI_URGENT : left[WFI_NORMAL] ? WFI_NORMAL : WFI_LAZY;
        if (oldest)
            wanted = left[WFI_LAZY] ? WFI_LAZY : left[WFI_NORMAL] ? WFI_NORMAL : WFI_URGENT;
        assert_int_equal(order[i], wanted);
        left[wanted]--;
    }
}

static void run_gate(wfi_task *task)
{
    job *self = wfi_container_of(task, job, task);
    wfi_park(self->wake, WFI_NEVER);
}

static void urgent_tasks_go_ahead_on_a_thread(void **state)
{
    wfi_executor *executor = open_executor(1);
    wfi_parker opened;
    job gate = {.task.run = run_gate, .wake = &opened}, jobs[3 * EACH];
    int order[3 * EACH];
    atomic_int count = 0;
    wfi_parker_init(&opened);
    wfi_executor_submit(executor, &gate.task);
    while (wfi_executor_has_work(executor)) /* the worker took it */
        sched_yield();
    submit_mixed(executor, jobs, &count, order);
    wfi_unpark(&opened);
    wfi_executor_destroy(executor);
    assert_int_equal(count, 3 * EACH);
    assert_mixed_order(order, 1);
}

static void urgent_tasks_go_ahead_by_hand_and_on_fibers(void **state)
{
    for (int form = 0; form < 2; form++) {
        wfi_fibers *fibers = form ? wfi_fibers_create(&wfi_clock_real, (size_t)64 << 10) : NULL;
        wfi_executor_options options = {.workers = 1, .fibers = fibers, .manual = !form};
        wfi_executor *executor = NULL;
        job jobs[3 * EACH];
        int order[3 * EACH];
        atomic_int count = 0;
        assert_int_equal(wfi_executor_create(&options, &executor), WEFT_OK);
        submit_mixed(executor, jobs, &count, order);
        if (form)
            wfi_fibers_run(fibers);
        else
            assert_int_equal(wfi_executor_run_some(executor, &wfi_clock_real, WFI_NEVER), 3 * EACH);
        wfi_executor_destroy(executor);
        assert_int_equal(count, 3 * EACH);
        assert_mixed_order(order, 0);
        wfi_fibers_destroy(fibers);
    }
}

/* What a leader brings back does not go ahead of a more urgent task that was queued meanwhile. */
static wfi_task *lazy_then_urgent(void *arg)
{
    job *jobs = arg;
    if (jobs[0].number == 0) { /* it was given before: until the executor ends, sleep */
        wfi_parker nobody;
        wfi_parker_init(&nobody);
        wfi_park(&nobody, wfi_deadline(&wfi_clock_real, 1));
        return NULL;
    }
    jobs[0].number = 0;
    wfi_executor_submit(jobs[0].executor, &jobs[1].task);
    return &jobs[0].task;
}

static void needs_no_nudge(void *arg) {}

static void a_leader_lets_urgent_tasks_ahead(void **state)
{
    wfi_executor *executor = open_executor(1);
    int order[3] = {-1, -1, -1};
    atomic_int count = 0;
    job jobs[2] = {{.task = {.run = run_job, .urgency = WFI_LAZY}, .number = 9},
                   {.task = {.run = run_job}, .number = 1}};
    job start = {.task.run = run_job, .count = &count, .order = order, .number = 2};
    jobs[1].task.urgency = WFI_URGENT;
    for (int i = 0; i < 2; i++) {
        jobs[i].executor = executor;
        jobs[i].count = &count;
        jobs[i].order = order;
    }
    wfi_executor_set_idle(executor, lazy_then_urgent, jobs, needs_no_nudge);
    wfi_executor_submit(executor, &start.task); /* makes the worker, which then leads */
    while (atomic_load(&count) < 3)
        sched_yield();
    wfi_executor_destroy(executor);
    assert_int_equal(order[0], 2);
    assert_int_equal(order[1], 1);
    assert_int_equal(order[2], 0);
}

UNIT_MAIN(destroy_runs_what_is_queued, one_worker_keeps_the_order, unused_and_bad_executors,
          nested_waits_finish_with_one_worker, threads_of_a_burst_go_when_it_is_over, destroy_while_tasks_still_submit,
          a_late_task_goes_to_the_process, leaders_and_followers_run_everything, a_nudged_leader_runs_a_submitted_task,
          workers_come_after_brief_submitted_tasks, workers_come_after_brief_messages, the_manual_form_runs_when_told,
          the_fiber_form_nests_and_is_drained_from_outside, urgent_tasks_go_ahead_on_a_thread,
          urgent_tasks_go_ahead_by_hand_and_on_fibers, a_leader_lets_urgent_tasks_ahead)
