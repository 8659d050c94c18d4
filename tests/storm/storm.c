/* SPDX-License-Identifier: Apache-2.0 */
/* storm.c - calls of every kind under attack: the threads of a worker, and what the driver prints and checks. */
#include "storm/storm.h"

#include "rpc/must.h"

#include <pthread.h>

#define CALLERS 2
#define UNDER_WAY_MOST 40 /* calls of one worker */
#define PAUSE_MS 8        /* between two of one thread, at most */

static pthread_t callers[CALLERS], meeting;

static void *call_until_over(void *arg)
{
    while (goes_on()) {
        sleep_ms(chance_below(PAUSE_MS));
        if (calls_under_way() >= UNDER_WAY_MOST)
            continue;
        if (atomic_exchange(&self.seat->hauls, false) || once_in(600))
            step_haul();
        else if (once_in(5))
            step_thing();
        else
            step_call();
    }
    return arg;
}

static void *meet_thread(void *arg)
{
    meet_until_over();
    return arg;
}

static void begin(void)
{
    functions_begin();
    for (int i = 0; i < CALLERS; i++)
        MUST(pthread_create(&callers[i], NULL, call_until_over, NULL) == 0);
    MUST(pthread_create(&meeting, NULL, meet_thread, NULL) == 0);
}

static void end(void)
{
    for (int i = 0; i < CALLERS; i++)
        pthread_join(callers[i], NULL);
    pthread_join(meeting, NULL);
    while (calls_under_way()) /* the driver sees that this ends */
        sleep_ms(2);
}

static void drop(void)
{
    const storm_life *life = &book->lives[self.life];
    drop_things();
    while (atomic_load(&life->dropped) < atomic_load(&life->made) && !weft_agent_status(self.agent))
        sleep_ms(2);
}

static void closed(void)
{
    functions_end();
    rooms_end();
}

/* ---- In the driver ----------------------------------------------------------------------------------------------- */

static unsigned long sum_outcomes(int status)
{
    unsigned long sum = 0;
    for (int kind = 1; kind < KINDS; kind++)
        sum += atomic_load(&book->outcomes[kind][status]);
    return sum;
}

static unsigned long count(unsigned long *well)
{
    unsigned long sum = 0;
    for (int status = 0; status < STATUSES; status++)
        sum += sum_outcomes(status);
    *well = sum_outcomes(0);
    return sum;
}

static void table(void)
{
    printf("\n%-14s %10s   most of them\n", "calls", "ended");
    for (int status = 0; status < STATUSES; status++) {
        unsigned long sum = sum_outcomes(status);
        if (!sum)
            continue;
        printf("%-14s %10lu  ", weft_status_name((weft_status)-status), sum);
        for (int kind = 1; kind < KINDS; kind++)
            if (atomic_load(&book->outcomes[kind][status]) > sum / 8)
                printf(" %s %lu", storm_kind_names[kind], atomic_load(&book->outcomes[kind][status]));
        printf("\n");
    }
}

int main(int argc, char **argv)
{
    const chaos_program program = {
        .name = "storm",
        .about = "Workers call each other in every way while they are killed, stopped, throttled and cut off.",
        .book_bytes = sizeof(storm_book),
        .workers = SEATS,
        .fixed_workers = true,
        .leaks_fail = true,
        .functions = storm_functions,
        .function_count = &storm_function_count,
        .begin = begin,
        .end = end,
        .drop = drop,
        .closed = closed,
        .job_begins = book_new_job,
        .job_ended = book_check,
        .look = book_check_answers,
        .count = count,
        .table = table,
    };
    return chaos_main(&program, argc, argv);
}
