/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stray_trainer.c - a trainer of batch_parameter_server whose gradients do not fit, in several ways. Each has to
 * fail with an error that says why, and nothing else may happen; then it leaves. Exits with 0 if so.
 */
#include "../tensors.h"

#include <weft/weft.h>

#include <string.h>

static int check(weft_agent *agent, const char *function, weft_args arguments, weft_status code, const char *words)
{
    weft_error *error = NULL;
    weft_rpc_options how = {.error = &error};
    weft_status status = weft_rpc_sync(agent, weft_to_rank(0), function, arguments, &how, NULL);
    weft_status inner = status == WEFT_ERR_REMOTE ? weft_error_handler_code(error) : status;
    bool good = inner == code && (!words || strstr(weft_error_message(error), words));
    if (!good)
        fprintf(stderr, "stray_trainer: expected %s with '%s', found %s: %s\n", weft_status_name(code),
                words ? words : "", weft_status_name(inner), weft_error_message(error));
    weft_error_unref(error);
    return good ? 0 : 1;
}

static int send(weft_agent *agent, weft_tensor *const *gradients, size_t count, weft_status code, const char *words)
{
    weft_tensors list = {gradients, count};
    return check(agent, "update_and_fetch",
                 WEFT_VALUES(weft_of_tensors(list), weft_of_tensor(gradients[0]), weft_of_f64(0), weft_of_f64(0)), code,
                 words);
}

static int misbehave(weft_agent *agent, weft_values *model)
{
    weft_tensors parameters;
    weft_tensor *gradients[64], *odd = tensor_zeros(WEFT_SHAPE(3, 3), WEFT_DTYPE_FLOAT32),
                                *wide = tensor_zeros(WEFT_SHAPE(32, 1, 3, 3), WEFT_DTYPE_FLOAT64);
    if (weft_values_get_tensors(model, 0, &parameters) || parameters.count > 64 || !odd || !wide)
        return 1;
    memcpy(gradients, parameters.items, parameters.count * sizeof(*gradients));
    int bad = send(agent, gradients, parameters.count - 1, WEFT_ERR_SHAPE, "");
    bad += send(agent, gradients, 0, WEFT_ERR_SHAPE, "");
    gradients[0] = odd;
    bad += send(agent, gradients, parameters.count, WEFT_ERR_SHAPE, "3, 3");
    gradients[0] = wide;
    bad += send(agent, gradients, parameters.count, WEFT_ERR_TYPE, "float64");
    bad += check(agent, "update_and_fetch", WEFT_VALUES(weft_of_i64(1)), WEFT_ERR_TYPE, "");
    bad += check(agent, "update_and_forget", WEFT_NO_VALUES, WEFT_ERR_NOT_FOUND, "update_and_forget");
    weft_tensor_unref(odd);
    weft_tensor_unref(wide);
    return bad;
}

int main(void)
{
    weft_agent *agent;
    weft_values *model;
    weft_status status = weft_agent_open(NULL, &agent, NULL);
    if (status)
        return weft_report(status);
    status = weft_rpc_sync(agent, weft_to_rank(0), "fetch", WEFT_NO_VALUES, NULL, &model);
    if (status)
        return weft_report(status);
    int bad = misbehave(agent, model);
    weft_values_unref(model);
    weft_agent_stop(agent);
    return bad ? 1 : 0;
}
