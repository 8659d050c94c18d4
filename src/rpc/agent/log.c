/* SPDX-License-Identifier: Apache-2.0 */
/* log.c - log lines with the rank of the worker and the id of the call. */
#include "rpc/agent/agent.h"

#include "base/error.h"
#include "base/text/log.h"
#include "sim/sim.h"

#include <stdarg.h>

void wfi_log_agent(const weft_agent *agent, weft_log_level level, uint64_t call_id, const char *format, ...)
{
    va_list args;
    wfi_log_context context = {.rank = agent ? wfi_agent_rank(agent) : -1, .call_id = call_id};
    if (!wfi_log_wants(level))
        return;
    if (agent && agent->options.values.sim)
        context.clock = wfi_sim_clock(agent->options.values.sim);
    va_start(args, format);
    wfi_log_line_in(&context, level, format, args);
    va_end(args);
}

weft_status wfi_refuse_null(const char *function, const char *what)
{
    wfi_log_agent(NULL, WEFT_LOG_ERROR, 0, "%s: %s is NULL", function, what);
    wfi_status_said(WEFT_ERR_INVALID);
    return WEFT_ERR_INVALID;
}

weft_status wfi_refuse_null_to(weft_error **error, const char *function, const char *what)
{
    return error ? wfi_error_fail(error, WEFT_ERR_INVALID, "%s: %s is NULL", function, what)
                 : wfi_refuse_null(function, what);
}
