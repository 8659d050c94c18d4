/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - log lines with the rank of the worker and the id of the call. */
#include "rpc/agent/agent.h"

#include "base/text/log.h"

#include <stdarg.h>

void wfi_agent_log(const weft_agent *agent, weft_log_level level, uint64_t call_id, const char *format, ...)
{
    va_list args;
    wfi_log_context context = {.rank = agent ? wfi_agent_rank(agent) : -1, .call_id = call_id};
    if (!wfi_log_wants(level))
        return;
    if (agent && agent->options.values.sim)
        context.clock = wfi_clock_of(agent->options.values.sim);
    va_start(args, format);
    wfi_log_line_in(&context, level, format, args);
    va_end(args);
}
