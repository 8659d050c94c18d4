/* SPDX-License-Identifier: Apache-2.0 */
/* calls.c - calls of every kind under attack: the threads of a worker, and what the driver prints and checks. */
#include "faults/calls.h"

#define CALLERS 2
#define UNDER_WAY_MOST 40 /* calls of one worker */
#define PAUSE_MS 8        /* between two of one thread, at most */

static void call_until_over(void)
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
}

static void run(int number)
{
    if (number < CALLERS)
        call_until_over();
    else
        meet_until_over();
}

static void end(void)
{
    while (calls_under_way()) /* the driver sees that this ends */
        sleep_ms(2);
}

static void drop(void)
{
    const calls_life *life = &book->lives[self.life];
    drop_things();
    while (atomic_load(&life->dropped) < atomic_load(&life->made) && !weft_agent_status(self.agent))
        sleep_ms(2);
}

static void closed(void)
{
    functions_end();
    rooms_end();
}

int main(int argc, char **argv)
{
    const faults_program program = {
        .name = "calls",
        .about = "Workers call each other in every way while they are killed, stopped, throttled and cut off.",
        .book_bytes = sizeof(calls_book),
        .workers = SEATS,
        .fixed_workers = true,
        .operations = "calls",
        .kinds = calls_kind_names,
        .kind_count = KINDS,
        .threads = CALLERS + 1,
        .run = run,
        .functions = calls_functions,
        .function_count = &calls_function_count,
        .begin = functions_begin,
        .end = end,
        .drop = drop,
        .closed = closed,
        .job_begins = book_new_job,
        .job_ended = book_check,
        .look = book_check_answers,
    };
    return faults_main(&program, argc, argv);
}
