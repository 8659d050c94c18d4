/* SPDX-License-Identifier: Apache-2.0 */
/* dismissal.c - how a job ends early. */
#include "dismissal.h"

#include "ending.h"

#include <signal.h>
#include <stdlib.h>

#define AT_MOST_MS 300 /* for the others to hear it: all have to be gone soon */

/* All at once: one that ends at the news does not answer, and is waited for until the time is over. */
static void tell(weft_agent *agent, const weft_target *to, size_t count, const char *why)
{
    const weft_rpc_options how = {.timeout_ms = AT_MOST_MS};
    weft_future *told = NULL;
    if (!weft_rpc_multicast(agent, to, count, dismissal_function.name, WEFT_VALUES(weft_of_string(why)), &how, &told))
        (void)!weft_future_wait(told, WEFT_FOREVER);
    weft_future_unref(told);
}

void dismissal_send(weft_agent *agent, const weft_job *job, const char *why)
{
    int size = weft_agent_world_size(agent);
    weft_target *alive = calloc((size_t)size, sizeof *alive);
    size_t count = 0;
    for (int rank = 1; rank < size && alive; rank++) {
        if (weft_agent_alive(agent, rank))
            alive[count++] = weft_to_rank(rank);
        else if (job && weft_job_pid(job, rank) > 0)
            kill(weft_job_pid(job, rank), SIGKILL);
    }
    if (count)
        tell(agent, alive, count, why);
    free(alive);
    weft_agent_stop(agent);
}

static weft_status dismissed(weft_call *call, void *arg)
{
    (void)arg;
    ending_exit("the %s ended the job: %s", ending_first(), weft_call_string(call, 0));
}

const weft_function dismissal_function = {.name = "dismiss", .takes = {WEFT_TYPE_STRING}, .run = dismissed};

void dismissal_on_news(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg)
{
    (void)agent, (void)rank, (void)arg;
    if (event == WEFT_MEMBER_SELF_EVICTED)
        ending_exit("this %s was declared dead, and is out of the job: %s", ending_other(), why);
    if (event == WEFT_MEMBER_STORE_LOST)
        ending_exit("the %s is gone: %s", ending_first(), why);
}
