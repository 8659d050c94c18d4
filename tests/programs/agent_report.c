/* SPDX-License-Identifier: Apache-2.0 */
/*
 * agent_report.c [COMMAND...] - what an agent does here, for weft_info.py: rank 1 of a job of two prints the fabrics of
 * its lanes to rank 0, and its metrics. With a COMMAND rank 1 is started by it: it executes this program.
 */
#include <weft/job.h>
#include <weft/metrics.h>
#include <weft/rpc.h>

#include <stdio.h>

static weft_status report(const weft_agent *agent)
{
    static const char *const names[] = {[WEFT_LANE_CONTROL] = "control", [WEFT_LANE_BULK] = "bulk"};
    for (int lane = WEFT_LANE_CONTROL; lane <= WEFT_LANE_BULK; lane++) {
        char text[600];
        weft_status status = weft_agent_fabric(agent, 0, (weft_lane)lane, text, sizeof(text));
        if (status)
            return status;
        printf("%s %s\n", names[lane], text);
    }
    return weft_metrics_write(agent, stdout);
}

int main(int argc, char **argv)
{
    weft_job *job = NULL;
    weft_agent *agent = NULL;
    weft_job_options children = {.count = 1};
    if (argc > 1)
        children = (weft_job_options){.count = 1, .program = argv[1], .argv = (const char *const *)argv + 1};
    weft_status status = weft_job_is_launched(NULL, NULL) ? WEFT_OK : weft_job_open(&children, &job, NULL);
    if (!status)
        status = weft_agent_open(&(weft_agent_options){.job = job}, &agent, NULL);
    if (!status)
        status = weft_agent_rank(agent) > 0 ? report(agent) : weft_agent_serve(agent, WEFT_FOREVER);
    weft_status closed = weft_agent_close(agent, WEFT_FOREVER), ended = weft_job_close(job, WEFT_FOREVER, NULL);
    return weft_report(status ? status : closed ? closed : ended);
}
