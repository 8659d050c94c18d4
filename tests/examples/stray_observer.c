/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stray_observer.c - an observer of cartpole that lives, and does not do its work: stray_observer HOW
 *   fails     fails in its episode
 *   returns   gives returns of another shape
 *   states    brings states that fit no policy, has to hear so each time, and then fails
 * Serves until the agent ends the job.
 */
#include "../tensors.h"

#include <weft/weft.h>

#include <string.h>

static const char *how;

static bool is(const char *what)
{
    return strcmp(how, what) == 0;
}

static bool is_told_off(weft_call *call, weft_args arguments)
{
    const weft_rpc_options options = {.parent = call};
    weft_status status =
        weft_rpc_sync(weft_call_agent(call), weft_to_rank(0), "select_action", arguments, &options, NULL);
    if (status != WEFT_ERR_REMOTE && status != WEFT_ERR_TYPE)
        fprintf(stderr, "stray_observer: expected to be told off, found %s\n", weft_status_name(status));
    return status == WEFT_ERR_REMOTE || status == WEFT_ERR_TYPE;
}

static bool bring_bad_states(weft_call *call)
{
    weft_tensor *wide = tensor_zeros(WEFT_SHAPE(1, 5), WEFT_DTYPE_FLOAT32),
                *doubles = tensor_zeros(WEFT_SHAPE(1, 4), WEFT_DTYPE_FLOAT64);
    bool good = wide && doubles && is_told_off(call, WEFT_VALUES(weft_of_i64(0), weft_of_tensor(wide))) &&
                is_told_off(call, WEFT_VALUES(weft_of_i64(0), weft_of_tensor(doubles))) &&
                is_told_off(call, WEFT_VALUES(weft_of_f64(0)));
    weft_tensor_unref(wide);
    weft_tensor_unref(doubles);
    return good;
}

static weft_status run_episode(weft_call *call, void *arg)
{
    (void)arg;
    if (is("returns")) {
        weft_tensor *returns = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT64);
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(returns), weft_of_f64(1)));
        weft_tensor_unref(returns);
        return WEFT_OK;
    }
    bool good = !is("states") || bring_bad_states(call);
    weft_call_fail(call, WEFT_ERR_STATE, good ? "the pole is gone" : "it was not told off");
    return WEFT_ERR_STATE;
}

int main(int argc, char **argv)
{
    const weft_function function = {
        .name = "run_episode", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_REST}, .run = run_episode};
    weft_agent_options options = {.functions = &function, .function_count = 1};
    weft_agent *agent;
    how = argc == 2 ? argv[1] : "";
    weft_status status = weft_agent_open(&options, &agent, NULL);
    if (!status)
        status = weft_agent_close(agent, WEFT_FOREVER);
    return weft_report(status);
}
