/* SPDX-License-Identifier: Apache-2.0 */
/* test_conformance_training.c - items 80 and 83: optimizers over several workers, and modules on them. */
#include "conformance/contexts.h"
#include "make.h"
#include "tensors.h"

#include <weft/dist_optim.h>
#include <weft/nn.h>
#include <weft/ops.h>
#include <weft/remote_module.h>

/* (tensor) -> a parameter with these values, which stays */
static weft_status serve_new_parameter(weft_call *call, void *user);
/* (rref of a parameter [R, C], index) -> those rows of it, whose gradient is by rows */
static weft_status serve_rows(weft_call *call, void *user);
/* (rref of a module, x) -> what the module makes of x, called from here */
static weft_status serve_run_module(weft_call *call, void *user);

static const weft_function functions[] = {
    CONTEXT_FUNCTIONS,
    {.name = "new parameter", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_new_parameter},
    {.name = "rows", .takes = {WEFT_TYPE_RREF, WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_rows},
    {.name = "run module",
     .takes = {WEFT_TYPE_RREF, WEFT_TYPE_TENSOR},
     .gives = {WEFT_TYPE_TENSOR},
     .run = serve_run_module},
};

/* ---- 80 ---------------------------------------------------------------------------------------------------------- */

static weft_status serve_new_parameter(weft_call *call, void *user)
{
    weft_tensor *parameter = tensor_clone(weft_call_tensor(call, 0));
    weft_tensor_set_requires_grad(parameter, true);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(parameter)));
    weft_tensor_unref(parameter);
    return WEFT_OK;
}

static weft_status serve_rows(weft_call *call, void *user)
{
    weft_value value;
    weft_status status = weft_rref_local_value(weft_call_rref(call, 0), WEFT_FOREVER, &value);
    if (status)
        return status;
    weft_tensor *rows = weft_embedding(weft_call_tape(call), value.as.tensor, weft_call_tensor(call, 1),
                                       &(weft_embedding_options){.sparse = true});
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(rows)));
    return WEFT_OK;
}

/* Two parameters of [3, 3], on the next worker and on the one after, and the same two here. */
typedef struct pair {
    weft_rref *there[2];
    weft_tensor *here[2];
} pair;

static pair make_pair(weft_agent *agent)
{
    pair p;
    for (int i = 0; i < 2; i++) {
        p.here[i] = leaf_drawn(WEFT_SHAPE(3, 3), WEFT_DTYPE_FLOAT32, 1 + (uint64_t)i);
        p.there[i] = make(agent, weft_to_rank((weft_agent_rank(agent) + 1 + i) % WORKERS), "new parameter",
                          WEFT_VALUES(weft_of_tensor(p.here[i])));
    }
    return p;
}

static void drop_pair(const pair *p)
{
    for (int i = 0; i < 2; i++) {
        weft_rref_unref(p->there[i]);
        weft_tensor_unref(p->here[i]);
    }
}

/* Parameter i there is what it is here. */
static void must_match(const pair *p, int i)
{
    weft_values *values = NULL;
    weft_tensor *tensor = NULL;
    MUST_OK(weft_rref_to_here(p->there[i], ITEM_PATIENCE_MS, &values, NULL));
    MUST_OK(weft_values_get_tensor(values, 0, &tensor));
    must_be_equal(tensor, p->here[i]);
    weft_values_unref(values);
}

static weft_tensor *loss_of(weft_tape *t, weft_tensor *a, weft_tensor *b, weft_tensor *x)
{
    return weft_sum(t, weft_matmul(t, weft_matmul(t, a, b), x));
}

static void step_here(const pair *p, weft_optimizer *optimizer, weft_tensor *x)
{
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, loss_of(t, p->here[0], p->here[1], x));
    MUST_OK(weft_optimizer_apply(optimizer, weft_tape_gradients(t, weft_optimizer_parameters(optimizer))));
    weft_tape_close(t);
}

static void step_there(weft_agent *agent, const pair *p, weft_dist_optimizer *optimizer, weft_tensor *x)
{
    step s;
    step_open(&s, agent);
    weft_tensor *a = step_fetch(&s, p->there[0]), *b = step_fetch(&s, p->there[1]);
    step_backward(&s, loss_of(s.tape, a, b, x), NULL);
    MUST_OK(weft_dist_optimizer_step(optimizer, &s.context, 1, NULL));
    step_close(&s);
}

static void trained_as_locally(weft_agent *agent, const weft_optimizer_spec *spec)
{
    pair p = make_pair(agent);
    weft_tensor *x = leaf_drawn(WEFT_SHAPE(3, 3), WEFT_DTYPE_FLOAT32, 3);
    weft_tensor_set_requires_grad(x, false);
    weft_optimizer *here = optimizer_create((weft_tensors){p.here, 2}, spec, NULL);
    weft_dist_optimizer *there = NULL;
    MUST(here);
    MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(p.there[0]), weft_of_rref(p.there[1])), spec,
                                       &there, NULL));
    MUST(weft_dist_optimizer_owners(there) == 2);
    for (int i = 0; i < 4; i++) {
        step_here(&p, here, x);
        step_there(agent, &p, there, x);
        must_match(&p, 0);
        must_match(&p, 1);
    }
    weft_dist_optimizer_unref(there);
    weft_optimizer_unref(here);
    weft_tensor_unref(x);
    drop_pair(&p);
}

/* The nine that the reference tests, with a rate that shows. */
static const weft_optimizer_spec configurations[] = {
    {.type = &weft_sgd_type, .lr = 0.05},
    {.type = &weft_sgd_type, .lr = 0.05, .sgd = {.momentum = 0.9, .weight_decay = 0.01, .nesterov = true}},
    {.type = &weft_adam_type, .lr = 0.05, .adam.amsgrad = true},
    {.type = &weft_adamw_type, .lr = 0.05, .adam.weight_decay = 0.01},
    {.type = &weft_adagrad_type, .lr = 0.05, .maximize = true, .adagrad.lr_decay = 0.1},
    {.type = &weft_rmsprop_type, .lr = 0.05, .rmsprop = {.momentum = 0.9, .centered = true}},
    {.type = &weft_rprop_type, .lr = 0.05},
    {.type = &weft_adadelta_type, .adadelta.rho = 0.95},
    {.type = &weft_adamax_type, .lr = 0.05},
};

/* A loss that needs one of the two parameters: the other stays as it was. */
static void without_a_gradient(weft_agent *agent)
{
    pair p = make_pair(agent);
    weft_dist_optimizer *there = NULL;
    weft_optimizer *here = optimizer_create((weft_tensors){p.here, 1}, &configurations[1], NULL);
    MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(p.there[0]), weft_of_rref(p.there[1])),
                                       &configurations[1], &there, NULL));
    for (int i = 0; i < 2; i++) {
        weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
        weft_backward(t, weft_sum(t, weft_exp(t, p.here[0])));
        MUST_OK(weft_optimizer_apply(here, weft_tape_gradients(t, weft_optimizer_parameters(here))));
        weft_tape_close(t);
        step s;
        step_open(&s, agent);
        weft_tensor *a = step_fetch(&s, p.there[0]);
        (void)step_fetch(&s, p.there[1]);
        step_backward(&s, weft_sum(s.tape, weft_exp(s.tape, a)), NULL);
        MUST_OK(weft_dist_optimizer_step(there, &s.context, 1, NULL));
        step_close(&s);
        must_match(&p, 0);
        must_match(&p, 1);
    }
    weft_dist_optimizer_unref(there);
    weft_optimizer_unref(here);
    drop_pair(&p);
}

static void errors_in_the_constructor(weft_agent *agent)
{
    pair p = make_pair(agent);
    const weft_optimizer_spec negative = {.type = &weft_sgd_type, .lr = -0.5};
    weft_rref *number;
    weft_dist_optimizer *none = NULL;
    weft_error *error = NULL;
    MUST_BE(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(p.there[0]), weft_of_rref(p.there[1])),
                                       &negative, &none, &error),
            WEFT_ERR_INVALID);
    MUST(says(error, "-0.5") && weft_error_worker(error) == -1); /* no owner was asked */
    weft_error_unref(error);
    error = NULL;
    MUST_OK(weft_rref_create(agent, weft_of_i64(3), &number, NULL)); /* a number, of this worker */
    MUST_BE(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(p.there[0]), weft_of_rref(number)),
                                       &configurations[0], &none, &error),
            WEFT_ERR_REMOTE);
    MUST(says(error, "neither a tensor") && weft_error_worker(error) == weft_agent_rank(agent));
    weft_error_unref(error);
    weft_rref_unref(number);
    MUST(!none);
    drop_pair(&p);
}

/* Momentum takes no gradient by rows: that owner fails, the other has stepped, and the optimizer works on. */
static void errors_in_a_step(weft_agent *agent)
{
    pair p = make_pair(agent);
    weft_tensor *index = tensor_arange(2, WEFT_DTYPE_INT64), *before = tensor_clone(p.here[0]);
    weft_dist_optimizer *there = NULL;
    weft_error *error = NULL;
    weft_optimizer *here = optimizer_create((weft_tensors){p.here + 1, 1}, &configurations[1], NULL);
    MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(p.there[0]), weft_of_rref(p.there[1])),
                                       &configurations[1], &there, NULL));
    step s;
    step_open(&s, agent);
    weft_tensor *rows = step_call(&s, weft_rref_owner(p.there[0]), "rows",
                                  WEFT_VALUES(weft_of_rref(p.there[0]), weft_of_tensor(index)));
    weft_tensor *b = step_fetch(&s, p.there[1]);
    step_backward(&s, weft_add(s.tape, weft_sum(s.tape, rows), weft_sum(s.tape, weft_exp(s.tape, b))), NULL);
    MUST_BE(weft_dist_optimizer_step(there, &s.context, 1, &(weft_dist_step_options){.error = &error}),
            WEFT_ERR_REMOTE);
    MUST_BE(weft_error_handler_code(error), WEFT_ERR_UNSUPPORTED);
    MUST(weft_error_worker(error) == weft_rref_owner(p.there[0]) && says(error, "takes these only without momentum"));
    weft_error_unref(error);
    step_close(&s);
    weft_tape *t = weft_tape_open(&(weft_tape_options){.record = true});
    weft_backward(t, weft_sum(t, weft_exp(t, p.here[1])));
    MUST_OK(weft_optimizer_apply(here, weft_tape_gradients(t, weft_optimizer_parameters(here))));
    weft_tape_close(t);
    must_match(&p, 1);
    must_be_equal(before, p.here[0]);
    must_match(&p, 0);
    weft_tensor_unref(before);
    weft_tensor_unref(index);
    weft_dist_optimizer_unref(there);
    weft_optimizer_unref(here);
    drop_pair(&p);
}

static void optimizers(weft_agent *agent, void *arg)
{
    for (size_t i = 0; i < sizeof(configurations) / sizeof(*configurations); i++)
        trained_as_locally(agent, &configurations[i]);
    without_a_gradient(agent);
    errors_in_the_constructor(agent);
    errors_in_a_step(agent);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_80_distributed_optimizers, .program = optimizers, ITEM_FUNCTIONS(functions))

/* ---- 83 ---------------------------------------------------------------------------------------------------------- */

static weft_module *make_layers(int64_t argument)
{
    weft_module *layers[] = {linear_create(4, 6, false, (uint64_t)argument, NULL), dropout_create(0.5, NULL)};
    return sequential_create(layers, 2, NULL);
}

static weft_module *make_bag(int64_t argument)
{
    return embedding_bag_create(&(weft_embedding_bag_layer){.rows = 10, .width = 3, .seed = 5}, NULL);
}

static weft_module *make_lstm(int64_t argument)
{
    return lstm_create(&(weft_lstm_layer){.in_features = 4, .hidden_features = 3, .layers = 2, .seed = 6}, NULL);
}

static weft_module *make_nothing(int64_t argument)
{
    return NULL;
}

static weft_status serve_run_module(weft_call *call, void *user)
{
    const weft_forward_options eval = {.mode = WEFT_MODE_EVAL};
    weft_tensor *y =
        weft_remote_forward(weft_call_tape(call), weft_call_rref(call, 0), weft_call_tensor(call, 1), &eval);
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(y)));
    return WEFT_OK;
}

enum { SEED = 7 }; /* of the layers */

/* What the same module gives here, with this mode and seed of the tape; the tape's. */
static weft_tensor *layers_here(weft_tape *t, weft_module *layers, weft_tensor *x, weft_mode mode, uint64_t seed)
{
    weft_tape_set_mode(t, mode);
    weft_tape_set_seed(t, seed);
    return weft_module_forward(t, layers, x);
}

/* Waiting and not; in both modes; with a seed, which is what stands for keywords. */
static void forward_in_all_ways(weft_agent *agent, weft_rref *there, weft_tensor *x)
{
    weft_module *here = make_layers(SEED);
    weft_tape *t = weft_tape_open(NULL), *local = weft_tape_open(NULL);
    const weft_forward_options seeded = {.has_seed = true, .seed = 11}, eval = {.mode = WEFT_MODE_EVAL};
    weft_args inputs = WEFT_VALUES(weft_of_tensor(x));
    weft_future *future = NULL;
    weft_tensor *y = NULL;
    must_be_equal(weft_remote_forward(t, there, x, &eval), layers_here(local, here, x, WEFT_MODE_EVAL, 0));
    weft_tensor *dropped = layers_here(local, here, x, WEFT_MODE_TRAIN, 11);
    must_be_equal(weft_remote_forward(t, there, x, &seeded), dropped);
    MUST_OK(weft_remote_call_async(t, there, inputs, &seeded, &future));
    MUST_OK(weft_future_wait(future, WEFT_FOREVER));
    MUST_OK(weft_values_get_tensor(weft_future_values(future), 0, &y));
    must_be_equal(y, dropped);
    weft_future_unref(future);
    weft_tape_set_mode(t, WEFT_MODE_EVAL); /* the tape's mode */
    must_be_equal(weft_remote_forward(t, there, x, NULL), layers_here(local, here, x, WEFT_MODE_EVAL, 0));
    MUST_OK(weft_tape_status(t));
    MUST_OK(weft_tape_status(local));
    weft_tape_close(t);
    weft_tape_close(local);
    weft_module_unref(here);
}

/* Handles to the parameters, in the module's order, with its values. */
static void parameters_of(weft_rref *there)
{
    weft_module *here = make_layers(SEED);
    weft_tensors all = weft_module_parameters(here);
    weft_values *handles = NULL;
    MUST_OK(weft_remote_parameters(there, &handles, NULL));
    MUST(weft_values_count(handles) == all.count);
    for (size_t i = 0; i < all.count; i++) {
        weft_rref *rref = NULL;
        weft_values *values = NULL;
        weft_tensor *tensor = NULL;
        MUST_OK(weft_values_get_rref(handles, i, &rref));
        MUST(weft_rref_owner(rref) == weft_rref_owner(there));
        MUST_OK(weft_rref_to_here(rref, ITEM_PATIENCE_MS, &values, NULL));
        MUST_OK(weft_values_get_tensor(values, 0, &tensor));
        must_be_equal(tensor, all.items[i]);
        weft_values_unref(values);
    }
    weft_values_unref(handles);
    weft_module_unref(here);
}

/* A third worker runs it, from a handle that it was sent; so does the owner of one that was made here. */
static void over_the_wire(weft_agent *agent, weft_rref *there, weft_tensor *x)
{
    int third = (weft_agent_rank(agent) + 2) % WORKERS;
    weft_module *here = make_layers(SEED);
    weft_rref *ours = NULL;
    weft_tape *local = weft_tape_open(NULL);
    weft_tensor *wanted = layers_here(local, here, x, WEFT_MODE_EVAL, 0);
    MUST_OK(weft_rref_create_typed(agent, &weft_module_object, weft_module_ref(here), &ours, NULL));
    for (int i = 0; i < 2; i++) {
        weft_values *results = NULL;
        weft_tensor *y = NULL;
        weft_rref *handle = i ? ours : there;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(third), "run module",
                              WEFT_VALUES(weft_of_rref(handle), weft_of_tensor(x)), NULL, &results));
        MUST_OK(weft_values_get_tensor(results, 0, &y));
        must_be_equal(y, wanted);
        weft_values_unref(results);
    }
    weft_tape_close(local);
    weft_rref_unref(ours);
    weft_module_unref(here);
}

/* Several inputs, of other dtypes; several results. */
static void several_inputs_and_results(weft_agent *agent, weft_tensor *x)
{
    weft_rref *bag = NULL, *lstm = NULL;
    weft_target to = weft_to_rank(next_rank(agent));
    weft_module *bag_here = make_bag(0), *lstm_here = make_lstm(0);
    weft_tensor *index = tensor_arange(5, WEFT_DTYPE_INT64);
    weft_tensor *offsets = tensor_copy_of(WEFT_SHAPE(2), WEFT_DTYPE_INT64, (int64_t[]){0, 2});
    weft_tensor *sequence = tensor_reshape(x, WEFT_SHAPE(2, 1, 4));
    weft_tape *t = weft_tape_open(NULL);
    MUST_OK(weft_rpc_remote(agent, to, "bag", WEFT_NO_VALUES, NULL, &bag));
    MUST_OK(weft_rpc_remote(agent, to, "lstm", WEFT_NO_VALUES, NULL, &lstm));
    weft_args inputs = WEFT_VALUES(weft_of_tensor(index), weft_of_tensor(offsets));
    must_be_equal(weft_args_tensor(weft_remote_call(t, bag, inputs, NULL), 0),
                  weft_args_tensor(weft_module_call(t, bag_here, inputs), 0));
    weft_args one = WEFT_VALUES(weft_of_tensor(sequence));
    weft_args there = weft_remote_call(t, lstm, one, NULL), here = weft_module_call(t, lstm_here, one);
    MUST(there.count == 3 && here.count == 3);
    for (size_t i = 0; i < 3; i++)
        must_be_equal(weft_args_tensor(there, i), weft_args_tensor(here, i));
    MUST_OK(weft_tape_status(t));
    weft_tape_close(t);
    weft_tensor_unref(sequence);
    weft_tensor_unref(index);
    weft_tensor_unref(offsets);
    weft_rref_unref(bag);
    weft_rref_unref(lstm);
    weft_module_unref(bag_here);
    weft_module_unref(lstm_here);
}

/* Running `module` fails with this. */
static void must_not_run(weft_rref *module, weft_tensor *x, weft_status remote, const char *text)
{
    weft_tape *t = weft_tape_open(NULL);
    MUST(!weft_remote_forward(t, module, x, NULL));
    const weft_error *error = weft_tape_error(t);
    weft_status status = weft_error_handler_code(error) ? weft_error_handler_code(error) : weft_error_code(error);
    if (status != remote)
        weft_error_print(error, stderr);
    MUST_BE(status, remote);
    MUST(says(error, text));
    weft_tape_close(t);
    weft_rref_unref(module);
}

static void what_is_no_module(weft_agent *agent, weft_tensor *x)
{
    weft_target to = weft_to_rank(next_rank(agent));
    weft_rref *none = NULL;
    weft_rref *number = NULL;
    MUST_OK(weft_rpc_remote(agent, to, "nothing", WEFT_NO_VALUES, NULL, &none));
    must_not_run(none, x, WEFT_ERR_INVALID, "could not be made");
    MUST_OK(weft_rpc_remote(agent, to, "unknown", WEFT_NO_VALUES, NULL, &none));
    must_not_run(none, x, WEFT_ERR_NOT_FOUND, "unknown");
    MUST_OK(weft_rref_create(agent, weft_of_i64(3), &number, NULL));
    must_not_run(number, x, WEFT_ERR_TYPE, "");
    MUST_BE(weft_rref_create_typed(agent, &weft_module_object, NULL, &none, NULL), WEFT_ERR_INVALID);
}

static void modules(weft_agent *agent, void *arg)
{
    weft_rref *there = NULL;
    weft_tensor *x = leaf_drawn(WEFT_SHAPE(2, 4), WEFT_DTYPE_FLOAT32, 9);
    world_serve_module(agent, "layers", make_layers);
    world_serve_module(agent, "bag", make_bag);
    world_serve_module(agent, "lstm", make_lstm);
    world_serve_module(agent, "nothing", make_nothing);
    nothing_is_left(agent);          /* and all have registered */
    for (int to = 0; to < 2; to++) { /* this worker too */
        int rank = (weft_agent_rank(agent) + to) % WORKERS;
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), "layers", WEFT_VALUES(weft_of_i64(SEED)), NULL, &there));
        forward_in_all_ways(agent, there, x);
        parameters_of(there);
        over_the_wire(agent, there, x);
        weft_rref_unref(there);
    }
    several_inputs_and_results(agent, x);
    what_is_no_module(agent, x);
    weft_tensor_unref(x);
    nothing_is_left(agent);
}

CONTEXT_ITEM(item_83_remote_modules, .program = modules, ITEM_FUNCTIONS(functions))

UNIT_MAIN(item_80_distributed_optimizers, item_83_remote_modules)
