/* SPDX-License-Identifier: Apache-2.0 */
/* workers.c - see workers.h. */
#include "workers.h"

#include <stdlib.h>

#define END_MS 10000

bool workers_complain(const char *what, weft_status status, weft_error *error)
{
    fprintf(stderr, "%s: %s\n", what, weft_status_name(status));
    if (error)
        weft_error_print(error, stderr);
    weft_error_unref(error);
    return false;
}

bool workers_is_child(void)
{
    const char *rank = getenv("RANK");
    return rank && atoi(rank) > 0;
}

int workers_serve(const weft_function *functions, size_t count)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_agent_options options = {.functions = functions, .function_count = count};
    weft_status status = weft_agent_open(&options, &agent, &error);
    if (status == WEFT_OK)
        status = weft_agent_close(agent, WEFT_FOREVER);
    return status == WEFT_OK || workers_complain("worker", status, error) ? 0 : 1;
}

bool workers_open(const weft_function *functions, size_t function_count, int count, workers *out)
{
    workers w = {0};
    weft_error *error = NULL;
    weft_job_options spawn = {.count = count};
    weft_status status = weft_job_open(&spawn, &w.job, &error);
    if (status != WEFT_OK)
        return workers_complain("starting the workers", status, error);
    weft_agent_options options = {.functions = functions, .function_count = function_count, .job = w.job};
    status = weft_agent_open(&options, &w.agent, &error);
    if (status != WEFT_OK) {
        if (weft_job_close(w.job, 0, NULL) != WEFT_OK)
            fprintf(stderr, "the workers were ended\n");
        return workers_complain("opening the agent", status, error);
    }
    *out = w;
    return true;
}

bool workers_close(workers *w)
{
    weft_status left = weft_agent_close(w->agent, WEFT_FOREVER), ended = weft_job_close(w->job, END_MS, NULL);
    *w = (workers){0};
    if (left != WEFT_OK)
        return workers_complain("closing the agent", left, NULL);
    return ended == WEFT_OK || workers_complain("ending the workers", ended, NULL);
}
