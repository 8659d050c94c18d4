/* SPDX-License-Identifier: Apache-2.0 */
/*
 * split_model.c - a model on two workers: rank 0 has the first layer and trains, rank 1 has the last layer. It learns
 * which of four numbers is the largest. Start it by: weft-run -n 2 split_model
 */
#include <weft/weft.h>

static weft_status make_back(weft_call *call, void *user) /* runs on rank 1, and leaves the layer there */
{
    weft_module *layer = NULL;
    weft_status status = weft_linear_create(64, 4, false, 2, &layer, NULL);
    (void)user;
    weft_call_give_object(call, &weft_module_object, layer); /* fails the call if there is no layer */
    return status;
}

static weft_status train(weft_agent *agent)
{
    weft_module *front = NULL;
    weft_rref *back = NULL;
    weft_dist_optimizer *adam = NULL;
    weft_status status = weft_linear_create(4, 64, false, 1, &front, NULL);
    if (!status)
        status = weft_rpc_remote(agent, weft_to_rank(1), "back", WEFT_NO_VALUES, NULL, &back);
    weft_args all = WEFT_VALUES(weft_of_tensors(weft_module_parameters(front)), weft_of_rref(back));
    if (!status)
        status = weft_dist_optimizer_create(agent, all, &(weft_optimizer_spec){.type = &weft_adam_type}, &adam, NULL);
    for (uint64_t step = 1; step <= 1000 && !status; step++) {
        weft_tape *t = weft_dist_tape_open(agent, &(weft_tape_options){.seed = step});
        weft_tensor *x = weft_uniform(t, WEFT_SHAPE(64, 4), WEFT_DTYPE_FLOAT32, 0, 1);
        weft_tensor *h = weft_relu(t, weft_module_forward(t, front, x));
        weft_tensor *loss = weft_cross_entropy(t, weft_remote_forward(t, back, h, NULL), weft_argmax(t, x, 1));
        weft_dist_backward(t, loss, &(weft_pass_options){.step = adam}); /* both workers step their own layer */
        status = weft_tape_status(t);
        if (!status && step % 200 == 0)
            printf("step %d: loss %.3f\n", (int)step, weft_tensor_get_f64(loss, 0));
        weft_error_print(weft_tape_error(t), stderr); /* nothing if all succeeded */
        weft_tape_close(t);
    }
    weft_dist_optimizer_unref(adam);
    weft_rref_unref(back);
    weft_module_unref(front);
    return status;
}

int main(void)
{
    weft_function back = {.name = "back", .run = make_back};
    weft_agent *agent = NULL;
    weft_status status = weft_agent_open(&(weft_agent_options){.functions = &back, .function_count = 1}, &agent, NULL);
    if (!status && weft_agent_rank(agent) == 0)
        status = train(agent);
    weft_status closed = weft_agent_close(agent, WEFT_FOREVER); /* rank 1 serves until rank 0 closes too */
    return weft_report(status ? status : closed);
}
