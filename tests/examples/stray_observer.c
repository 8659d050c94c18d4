/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stray_observer.c - an observer of cartpole_batch that lives, and does not do its work: stray_observer HOW
 *   refuses   will not be made           fails     fails in its episode
 *   returns   gives returns of another shape
 *   states    brings states that fit no policy, has to hear so each time, and then fails
 * Serves until the agent dismisses it.
 */
#include <weft/weft.h>

#include <string.h>
#include <unistd.h>

static const char *how;

static bool is(const char *what)
{
    return strcmp(how, what) == 0;
}

static void drop_nothing(void *object)
{
    (void)object;
}

static const weft_object_type type = {.name = "observer", .drop = drop_nothing};

static weft_status make_observer(weft_call *call, void *arg)
{
    static int nothing;
    (void)arg;
    if (is("refuses")) {
        weft_call_fail(call, WEFT_ERR_MEMORY, "no pole to be had");
        return WEFT_ERR_MEMORY;
    }
    weft_call_give_object(call, &type, &nothing);
    return WEFT_OK;
}

static bool is_told_off(weft_call *call, weft_args arguments)
{
    const weft_rpc_options options = {.parent = call};
    weft_status st = weft_rpc_sync(weft_call_agent(call), weft_to_rank(0), "select_action", arguments, &options, NULL);
    if (st != WEFT_ERR_REMOTE && st != WEFT_ERR_TYPE)
        fprintf(stderr, "stray_observer: expected to be told off, found %s\n", weft_status_name(st));
    return st == WEFT_ERR_REMOTE || st == WEFT_ERR_TYPE;
}

static bool bring_bad_states(weft_call *call)
{
    weft_tensor *wide = weft_tensor_zeros(WEFT_SHAPE(1, 5), WEFT_DTYPE_FLOAT32),
                *doubles = weft_tensor_zeros(WEFT_SHAPE(1, 4), WEFT_DTYPE_FLOAT64);
    bool good = wide && doubles && is_told_off(call, WEFT_VALUES(weft_of_i64(0), weft_of_tensor(wide))) &&
                is_told_off(call, WEFT_VALUES(weft_of_i64(0), weft_of_tensor(doubles))) &&
                is_told_off(call, WEFT_VALUES(weft_of_f64(0)));
    weft_tensor_unref(wide);
    weft_tensor_unref(doubles);
    return good;
}

static weft_status run_episode(weft_call *call, void *arg)
{
    void *object;
    (void)arg;
    weft_status st = weft_rref_local_typed(weft_call_rref(call, 0), &type, WEFT_FOREVER, &object);
    if (st)
        return st;
    if (is("returns")) {
        weft_tensor *returns = weft_tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT64);
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(returns), weft_of_f64(1)));
        weft_tensor_unref(returns);
        return WEFT_OK;
    }
    bool good = !is("states") || bring_bad_states(call);
    weft_call_fail(call, WEFT_ERR_STATE, good ? "the pole is gone" : "it was not told off");
    return WEFT_ERR_STATE;
}

static weft_status dismissed(weft_call *call, void *arg)
{
    (void)arg;
    fprintf(stderr, "stray_observer: the agent ended the job: %s\n", weft_call_string(call, 0));
    _exit(1);
}

int main(int argc, char **argv)
{
    const weft_function functions[] = {{.name = "make_observer",
                                        .takes = {WEFT_TYPE_I64, WEFT_TYPE_I64, WEFT_TYPE_F64, WEFT_TYPE_I64},
                                        .gives = {WEFT_TYPE_ANY},
                                        .run = make_observer},
                                       {.name = "run_episode",
                                        .takes = {WEFT_TYPE_RREF, WEFT_TYPE_I64},
                                        .gives = {WEFT_TYPE_REST},
                                        .run = run_episode},
                                       {.name = "dismiss", .takes = {WEFT_TYPE_STRING}, .run = dismissed}};
    weft_agent_options options = {.functions = functions, .function_count = sizeof functions / sizeof *functions};
    weft_agent *agent;
    how = argc == 2 ? argv[1] : "";
    weft_status st = weft_agent_open(&options, &agent, NULL);
    if (!st)
        st = weft_agent_close(agent);
    return weft_report(st);
}
