/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_state.c - distributed optimizers: their rate is changed, their state is read, set, saved and loaded, at
 * owners that refuse it, die, or are silent; and types of the program's own.
 */
#include "rpc/inside.h"
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <math.h>
#include <unistd.h>

#define WORKERS 3
#define MANY 700 /* parameters of one owner: with three tensors of state each they need several pages */

/* ---- A type of one's own: Adam's state, and steps by a fixed length ---------------------------------------------- */

enum { LENGTH };

static weft_status own_step(const weft_optimizer_update *u)
{
    float *to = weft_tensor_data(u->to), *m = weft_tensor_data(u->slots[0]);
    const float *from = weft_tensor_data(u->from), *g = weft_tensor_data(u->gradient);
    for (int64_t i = 0; i < weft_tensor_numel(u->to); i++) {
        m[i] += g[i];
        to[i] = from[i] - (float)(u->lr * u->options[LENGTH]);
    }
    return WEFT_OK;
}

static const weft_optimizer_type own_type = {
    .name = "Own", .lr = 1, .options = {[LENGTH] = {"length", 1, .max = 10}}, .slots = {{"sums"}}, .step = own_step};
/* As another version of the program has it. */
static const weft_optimizer_type other_own = {
    .name = "Own", .lr = 1, .options = {{"size", 1, .max = 10}}, .slots = {{"sums"}}, .step = own_step};

/* ---- Models ------------------------------------------------------------------------------------------------------ */

/* The argument: how many vectors of two elements, all 0, the module has. */
static weft_module *make_vectors(int64_t argument)
{
    weft_module *module = dropout_create(0, NULL);
    for (int64_t i = 0; i < argument; i++) {
        char name[16];
        snprintf(name, sizeof(name), "v%d", (int)i);
        weft_module_add_parameter(module, name, tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32));
    }
    return module;
}

/* Gradients of 1 for each element of the module's parameters that is this worker's, by a call under the context. */
static weft_status run_loss(weft_call *call, void *user)
{
    (void)user;
    weft_tape *t = weft_call_tape(call);
    weft_tensor *sum = NULL;
    for (size_t i = 0; i < weft_call_count(call); i++) {
        weft_value value;
        MUST_OK(weft_rref_local_value(weft_call_rref(call, i), WEFT_FOREVER, &value));
        weft_tensor *one = weft_sum(t, value.as.tensor);
        sum = sum ? weft_add(t, sum, one) : one;
    }
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(sum)));
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "loss", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_TENSOR}, .run = run_loss}};

typedef struct model {
    weft_agent *agent;
    weft_rref *modules[WORKERS];
    weft_values *lists[WORKERS]; /* handles to the parameters */
    weft_rref **all;
    size_t counts[WORKERS], count;
    weft_dist_optimizer *optimizer;
} model;

static weft_status barrier(weft_agent *agent)
{
    weft_group *all;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    weft_status status = weft_group_barrier(all, WEFT_FOREVER);
    weft_group_close(all);
    return status;
}

/* counts[rank] vectors on each rank; the handles are in the order of ranks. */
static weft_status model_open(model *m, weft_agent *agent, const int counts[WORKERS], const weft_optimizer_spec *spec,
                              weft_error **error)
{
    *m = (model){.agent = agent, .all = calloc(WORKERS * MANY, sizeof(*m->all))};
    weft_value lists[WORKERS];
    size_t owners = 0;
    for (int rank = 0; rank < WORKERS; rank++) {
        if (!counts[rank])
            continue;
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), "vectors", WEFT_VALUES(weft_of_i64(counts[rank])), NULL,
                                &m->modules[rank]));
        MUST_OK(weft_remote_parameters(m->modules[rank], &m->lists[rank], NULL));
        m->counts[rank] = weft_values_count(m->lists[rank]);
        for (size_t i = 0; i < m->counts[rank]; i++)
            MUST_OK(weft_values_get_rref(m->lists[rank], i, &m->all[m->count++]));
        lists[owners++] = weft_of_list(weft_values_args(m->lists[rank]));
    }
    return weft_dist_optimizer_create(agent, (weft_args){lists, owners}, spec, &m->optimizer, error);
}

static void model_close(model *m)
{
    weft_dist_optimizer_unref(m->optimizer);
    for (int rank = 0; rank < WORKERS; rank++) {
        weft_values_unref(m->lists[rank]);
        weft_rref_unref(m->modules[rank]);
    }
    free(m->all);
}

/* Steps by gradients of 1 for the first vectors of each owner, at most `most`. */
static void train(model *m, size_t most)
{
    weft_context *c;
    size_t at = 0;
    MUST_OK(weft_context_open(m->agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *loss = NULL;
    for (int rank = 0; rank < WORKERS; at += m->counts[rank++]) {
        weft_value handles[8];
        size_t count = m->counts[rank] < most ? m->counts[rank] : most;
        for (size_t i = 0; i < count; i++)
            handles[i] = weft_of_rref(m->all[at + i]);
        if (!count)
            continue;
        weft_values *values = NULL;
        weft_tensor *one;
        MUST_OK(weft_rpc_sync(m->agent, weft_to_rank(rank), "loss", (weft_args){handles, count},
                              &(weft_rpc_options){.tape = t}, &values));
        MUST_OK(weft_values_get_tensor(values, 0, &one));
        loss = loss ? weft_add(t, loss, one) : weft_scale(t, one, 1);
        weft_values_unref(values);
    }
    weft_dist_backward(t, loss, NULL);
    MUST_OK(weft_tape_status(t));
    MUST_OK(weft_dist_optimizer_step(m->optimizer, &c, 1, NULL));
    weft_tape_close(t);
    weft_context_close(c, NULL);
}

static float first_element(const model *m, size_t parameter)
{
    weft_values *values = NULL;
    weft_tensor *tensor;
    MUST_OK(weft_rref_to_here(m->all[parameter], 0, &values, NULL));
    MUST_OK(weft_values_get_tensor(values, 0, &tensor));
    float found = (float)weft_tensor_get_f64(tensor, 0);
    weft_values_unref(values);
    return found;
}

static void must_be_same(const weft_optimizer_states *a, const weft_optimizer_states *b)
{
    MUST(a->count == b->count);
    for (size_t i = 0; i < a->count; i++) {
        const weft_optimizer_state *x = &a->items[i], *y = &b->items[i];
        MUST(x->parameter == y->parameter && !strcmp(x->name, y->name));
        MUST(weft_tensor_nbytes(x->tensor) == weft_tensor_nbytes(y->tensor));
        MUST(!memcmp(weft_tensor_data(x->tensor), weft_tensor_data(y->tensor), weft_tensor_nbytes(x->tensor)));
    }
}

static void register_all(weft_agent *agent)
{
    world_serve_module(agent, "vectors", make_vectors);
    MUST_OK(weft_agent_register_optimizer(agent, &own_type));
    MUST_OK(barrier(agent));
}

static const weft_optimizer_spec adam = {.type = &weft_adam_type, .lr = 0.5};

static void the_rate_changes_at_all_owners(weft_agent *agent, void *arg)
{
    (void)arg;
    register_all(agent);
    if (weft_agent_rank(agent) == 0) {
        model m;
        weft_error *error = NULL;
        const weft_optimizer_spec sgd = {.type = &weft_sgd_type, .lr = 0.5};
        MUST_OK(model_open(&m, agent, (int[]){1, 2, 2}, &sgd, NULL));
        MUST(weft_dist_optimizer_lr(m.optimizer) == 0.5);
        MUST_OK(weft_dist_optimizer_set_lr(m.optimizer, 0, 0, NULL));
        train(&m, 8);
        MUST(weft_dist_optimizer_lr(m.optimizer) == 0 && first_element(&m, 0) == 0 && first_element(&m, 4) == 0);
        MUST_OK(weft_dist_optimizer_set_lr(m.optimizer, 0.25, WEFT_FOREVER, &error));
        train(&m, 8);
        for (size_t i = 0; i < m.count; i++)
            MUST(first_element(&m, i) == -0.25f);
        const double wrong[] = {-1, NAN, INFINITY};
        for (int i = 0; i < 3; i++) {
            MUST_BE(weft_dist_optimizer_set_lr(m.optimizer, wrong[i], 0, &error), WEFT_ERR_INVALID);
            MUST(strstr(weft_error_message(error), "SGD: lr is "));
            weft_error_unref(error);
        }
        MUST(weft_dist_optimizer_lr(m.optimizer) == 0.25);
        MUST_BE(weft_dist_optimizer_set_lr(NULL, 1, 0, &error), WEFT_ERR_INVALID);
        MUST(strstr(weft_error_message(error), "the optimizer is NULL"));
        weft_error_unref(error);
        MUST(weft_dist_optimizer_lr(NULL) == 0);
        model_close(&m);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(the_rate_changes_at_all_owners, 3, 1, .size = WORKERS, WORLD_FUNCTIONS(functions))

/* Read, set, saved and loaded, it is the same. A local optimizer takes the file: parameters stand owner by owner. */
static void state_goes_to_and_fro(weft_agent *agent, void *arg)
{
    (void)arg;
    register_all(agent);
    if (weft_agent_rank(agent) == 0) {
        model m;
        char path[] = "weft-test-remote-state-XXXXXX";
        int file = mkstemp(path);
        MUST(file >= 0 && !close(file));
        weft_optimizer_states before = {0}, after = {0}, nothing = {0};
        weft_error *error = NULL;
        MUST_OK(model_open(&m, agent, (int[]){1, 3, 2}, &adam, NULL));
        MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &nothing, &error));
        MUST(nothing.count == 0 && !error);
        weft_optimizer_states_drop(&nothing);
        train(&m, 2); /* all but one of rank 1's, which has no state then */
        train(&m, 2);
        MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &before, NULL));
        MUST(before.count == 15 && before.items[14].parameter == 5 && before.items[9].parameter == 4);
        MUST(!strcmp(before.items[0].name, "step") && weft_tensor_get_f64(before.items[0].tensor, 0) == 2);
        MUST_OK(weft_dist_optimizer_save(m.optimizer, path, 0, &error));
        train(&m, 8);
        MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &after, NULL));
        MUST(after.count == 18 && weft_tensor_get_f64(after.items[0].tensor, 0) == 3);
        for (int how = 0; how < 2; how++) {
            weft_optimizer_states_drop(&after);
            if (how)
                MUST_OK(weft_dist_optimizer_load(m.optimizer, path, 0, &error));
            else
                MUST_OK(weft_dist_optimizer_set_state(m.optimizer, before.items, before.count, 0, &error));
            MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &after, NULL));
            must_be_same(&before, &after);
            train(&m, 8);
        }
        weft_tensor *here[6];
        for (int i = 0; i < 6; i++)
            here[i] = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
        weft_optimizer *local = optimizer_create((weft_tensors){here, 6}, &adam, NULL);
        MUST_OK(weft_optimizer_load(local, path, NULL));
        MUST(weft_optimizer_state_count(local) == before.count);
        weft_optimizer_states none = {0};
        MUST_OK(weft_dist_optimizer_set_state(m.optimizer, NULL, 0, 0, NULL)); /* there is none then */
        MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &none, NULL));
        MUST(none.count == 0);
        weft_optimizer_states_drop(&none);
        weft_optimizer_unref(local);
        for (int i = 0; i < 6; i++)
            weft_tensor_unref(here[i]);
        weft_optimizer_states_drop(&before);
        weft_optimizer_states_drop(&after);
        model_close(&m);
        unlink(path);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(state_goes_to_and_fro, 3, 1, .size = WORKERS, WORLD_FUNCTIONS(functions))

/* More tensors than one message has. */
static void many_states(weft_agent *agent, void *arg)
{
    (void)arg;
    register_all(agent);
    if (weft_agent_rank(agent) == 0) {
        model m;
        size_t count = 3 * (MANY + 1);
        weft_optimizer_state *items = calloc(count, sizeof(*items));
        weft_optimizer_states found = {0};
        const char *names[] = {"step", "exp_avg", "exp_avg_sq"};
        MUST_OK(model_open(&m, agent, (int[]){0, MANY, 1}, &adam, NULL));
        for (size_t i = 0; i < count; i++) {
            weft_tensor *tensor = i % 3 ? tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, (double)i)
                                        : tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, (double)i + 1);
            items[i] = (weft_optimizer_state){i / 3, names[i % 3], tensor};
        }
        MUST_OK(weft_dist_optimizer_set_state(m.optimizer, items, count, 0, NULL));
        MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &found, NULL));
        must_be_same(&(weft_optimizer_states){items, count}, &found);
        for (size_t i = 0; i < count; i++)
            weft_tensor_unref(items[i].tensor);
        weft_optimizer_states_drop(&found);
        free(items);
        model_close(&m);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(many_states, 1, 1, .size = WORKERS, WORLD_FUNCTIONS(functions))

/* If one owner refuses its part, no owner changes; the error names it. */
static void a_state_that_is_refused_changes_nothing(weft_agent *agent, void *arg)
{
    (void)arg;
    register_all(agent);
    if (weft_agent_rank(agent) == 0) {
        model m;
        weft_optimizer_states before = {0}, after = {0};
        MUST_OK(model_open(&m, agent, (int[]){0, 1, 2}, &adam, NULL));
        train(&m, 8);
        MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &before, NULL));
        weft_tensor *two = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 2),
                    *three = tensor_zeros(WEFT_SHAPE(3), WEFT_DTYPE_FLOAT32),
                    *step = tensor_full(WEFT_SCALAR, WEFT_DTYPE_FLOAT64, 7);
        char longest[64];
        memset(longest, 'x', sizeof(longest));
        longest[63] = '\0';
        const struct {
            weft_optimizer_state last;
            weft_status code, remote;
            const char *text;
        } cases[] = {
            {{2, "exp_avg", two}, WEFT_ERR_REMOTE, WEFT_ERR_INVALID, "parameter 1: its step is missing"},
            {{2, "exp_avg", three}, WEFT_ERR_REMOTE, WEFT_ERR_SHAPE, "parameter 1: exp_avg is [3], the parameter [2]"},
            {{2, "momentum_buffer", two}, WEFT_ERR_REMOTE, WEFT_ERR_NOT_FOUND, "Adam with these options keeps no"},
            {{0, "step", step}, WEFT_ERR_REMOTE, WEFT_ERR_EXISTS, "parameter 0: step is given twice"},
            {{3, "step", step}, WEFT_ERR_NOT_FOUND, WEFT_OK, "step of parameter 3: there are 3 parameters"},
            {{2, longest, step}, WEFT_ERR_NOT_FOUND, WEFT_OK, "parameter 2: Adam keeps no \"xxx"},
            {{2, NULL, step}, WEFT_ERR_INVALID, WEFT_OK, "a name or a tensor of the state is NULL"},
            {{2, "step", NULL}, WEFT_ERR_INVALID, WEFT_OK, "a name or a tensor of the state is NULL"},
        };
        for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
            weft_error *error = NULL;
            const weft_optimizer_state items[] = {
                {0, "step", step}, {0, "exp_avg", two}, {0, "exp_avg_sq", two}, cases[i].last};
            MUST_BE(weft_dist_optimizer_set_state(m.optimizer, items, 4, 0, &error), cases[i].code);
            MUST(strstr(weft_error_message(error), cases[i].text));
            if (cases[i].remote)
                MUST(weft_error_handler_code(error) == cases[i].remote &&
                     weft_error_worker(error) == (cases[i].last.parameter ? 2 : 1));
            weft_error_unref(error);
            MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &after, NULL));
            must_be_same(&before, &after);
            weft_optimizer_states_drop(&after);
        }
        MUST_BE(weft_dist_optimizer_set_state(m.optimizer, NULL, 1, 0, NULL), WEFT_ERR_INVALID);
        MUST_BE(weft_dist_optimizer_set_state(NULL, NULL, 0, 0, NULL), WEFT_ERR_INVALID);
        MUST_BE(weft_dist_optimizer_ref_state(m.optimizer, 0, NULL, NULL), WEFT_ERR_INVALID);
        MUST_BE(weft_dist_optimizer_ref_state(NULL, 0, &after, NULL), WEFT_ERR_INVALID);
        MUST_BE(weft_dist_optimizer_save(m.optimizer, NULL, 0, NULL), WEFT_ERR_INVALID);
        MUST_BE(weft_dist_optimizer_load(m.optimizer, NULL, 0, NULL), WEFT_ERR_INVALID);
        MUST_BE(weft_dist_optimizer_load(m.optimizer, "no-such-file", 0, NULL), WEFT_ERR_NOT_FOUND);
        MUST_BE(weft_dist_optimizer_save(m.optimizer, "no-such-folder/file", 0, NULL), WEFT_ERR_IO);
        weft_tensor_unref(two);
        weft_tensor_unref(three);
        weft_tensor_unref(step);
        weft_optimizer_states_drop(&before);
        model_close(&m);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(a_state_that_is_refused_changes_nothing, 2, 1, .size = WORKERS, WORLD_FUNCTIONS(functions))

/* ---- Types of the program's own ---------------------------------------------------------------------------------- */

static void own_types_are_registered_by_owners(weft_agent *agent, void *arg)
{
    (void)arg;
    const weft_optimizer_type wrong = {.name = "Stepless"}, sgd = {.name = "SGD", .step = own_step};
    world_serve_module(agent, "vectors", make_vectors);
    MUST_BE(weft_agent_register_optimizer(agent, &wrong), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_register_optimizer(agent, NULL), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_register_optimizer(NULL, &own_type), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_register_optimizer(agent, &sgd), WEFT_ERR_EXISTS);
    if (weft_agent_rank(agent) == 1) {
        MUST_OK(weft_agent_register_optimizer(agent, &own_type));
        MUST_BE(weft_agent_register_optimizer(agent, &other_own), WEFT_ERR_EXISTS);
    }
    MUST_OK(barrier(agent));
    const weft_optimizer_spec spec = {.type = &own_type, .lr = 0.5, .own = {[LENGTH] = 4}};
    for (int round = 0; round < 3; round++) {
        model m;
        weft_error *error = NULL;
        if (weft_agent_rank(agent) == 0 && round < 2) {
            MUST_BE(model_open(&m, agent, (int[]){0, 1, 1}, &spec, &error), WEFT_ERR_REMOTE);
            MUST(weft_error_worker(error) == 2);
            MUST(weft_error_handler_code(error) == (round ? WEFT_ERR_INVALID : WEFT_ERR_NOT_FOUND));
            MUST(strstr(weft_error_message(error), round ? "optimizer type Own of rank 2 has no option length"
                                                         : "rank 2 has no optimizer type \"Own\": register it there"));
            weft_error_unref(error);
            model_close(&m);
        } else if (weft_agent_rank(agent) == 0) {
            weft_optimizer_states found = {0};
            MUST_OK(model_open(&m, agent, (int[]){0, 2, 0}, &spec, &error));
            train(&m, 8);
            train(&m, 8);
            MUST(first_element(&m, 0) == -4 && first_element(&m, 1) == -4);
            MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &found, NULL));
            MUST(found.count == 4 && !strcmp(found.items[3].name, "sums"));
            MUST(weft_tensor_get_f64(found.items[3].tensor, 1) == 2);
            weft_optimizer_states_drop(&found);
            model_close(&m);
        }
        MUST_OK(barrier(agent));
        if (weft_agent_rank(agent) == 2 && round == 0)
            MUST_OK(weft_agent_register_optimizer(agent, &other_own));
        MUST_OK(barrier(agent));
    }
}
WORLD_TEST(own_types_are_registered_by_owners, 2, 1, .size = WORKERS, WORLD_FUNCTIONS(functions))

/* ---- Pulls while a server steps ---------------------------------------------------------------------------------- */

#define ELEMENTS (1 << 17) /* far more than a message has: they are pulled */
#define PULLS 40           /* of each of two workers */

static weft_module *served;
static atomic_int pulled;

static weft_status run_pull(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(weft_module_parameters(served).items[0])));
    return WEFT_OK;
}

static const weft_function pulls[] = {{.name = "pull", .gives = {WEFT_TYPE_TENSOR}, .run = run_pull}};

/* A step changes all elements alike, so a mixture of two values shows. The optimizer updates as it does by default. */
static void pulls_are_never_torn(weft_agent *agent, void *arg)
{
    world *w = arg;
    if (weft_agent_rank(agent) == 0) {
        pulled = 0;
        served = dropout_create(0, NULL);
        weft_module_add_parameter(served, "p", tensor_zeros(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32));
    }
    MUST_OK(barrier(agent));
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *ones = tensor_full(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32, 1);
        weft_optimizer *sgd = optimizer_create(weft_module_parameters(served),
                                               &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, NULL);
        while (pulled < (WORKERS - 1) * PULLS) {
            MUST_OK(weft_optimizer_apply(sgd, (weft_gradients){&(weft_gradient){ones, NULL}, 1}));
            if (w->fabric == WORLD_SIM)
                weft_sim_sleep(w->sim, 3000);
        }
        weft_optimizer_unref(sgd);
        weft_tensor_unref(ones);
    } else {
        float last = 1;
        int changes = 0;
        for (int i = 0; i < PULLS; i++) {
            weft_values *values = NULL;
            weft_tensor *tensor;
            MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "pull", WEFT_NO_VALUES, NULL, &values));
            MUST_OK(weft_values_get_tensor(values, 0, &tensor));
            const float *elements = weft_tensor_data(tensor);
            for (int k = 1; k < ELEMENTS; k++)
                MUST(elements[k] == elements[0]);
            MUST(elements[0] <= last);
            changes += elements[0] != last;
            last = elements[0];
            weft_values_unref(values);
            pulled++;
        }
        MUST(changes > 1);
    }
    MUST_OK(barrier(agent));
    if (weft_agent_rank(agent) == 0)
        weft_module_unref(served);
}
WORLD_TEST(pulls_are_never_torn, 3, 1, .size = WORKERS, WORLD_FUNCTIONS(pulls))

/* ---- Calls that are cancelled ------------------------------------------------------------------------------------ */

static model of_rank1; /* made and used by the handler of rank 1 */
static atomic_bool has_saved, has_ended;

/* Saves again and again, until its caller cancels it: no save is interrupted. */
static weft_status run_save(weft_call *call, void *user)
{
    (void)user;
    char path[] = "weft-test-remote-state-XXXXXX";
    int file = mkstemp(path);
    MUST(file >= 0 && !close(file));
    while (!weft_call_cancelled(call)) {
        MUST_OK(weft_dist_optimizer_save(of_rank1.optimizer, path, 0, NULL));
        has_saved = true;
    }
    MUST_OK(weft_dist_optimizer_load(of_rank1.optimizer, path, 0, NULL));
    unlink(path);
    has_ended = true;
    return WEFT_ERR_CANCELLED;
}

static const weft_function saves[] = {
    {.name = "save", .run = run_save},
    {.name = "loss", .takes = {WEFT_TYPE_REST}, .gives = {WEFT_TYPE_TENSOR}, .run = run_loss}};

/* A save in a handler is not interrupted if the call is cancelled, and the optimizer can be used further. */
static void a_call_that_saves_is_cancelled(weft_agent *agent, void *arg)
{
    world *w = arg;
    has_saved = has_ended = false;
    register_all(agent);
    if (weft_agent_rank(agent) == 1) {
        MUST_OK(model_open(&of_rank1, agent, (int[]){1, 0, 2}, &adam, NULL));
        train(&of_rank1, 8);
    }
    MUST_OK(barrier(agent));
    if (weft_agent_rank(agent) == 0) {
        weft_future *save;
        MUST_OK(weft_rpc_async(agent, weft_to_rank(1), "save", WEFT_NO_VALUES, NULL, &save));
        while (!has_saved)
            world_sleep_ms(w, 1);
        MUST_OK(weft_future_cancel(save));
        MUST_BE(weft_future_wait(save, WEFT_FOREVER), WEFT_ERR_CANCELLED);
        weft_future_unref(save);
    }
    MUST_OK(barrier(agent));
    if (weft_agent_rank(agent) == 1) {
        weft_optimizer_states states = {0};
        while (!has_ended) /* the caller does not wait for the handler */
            world_sleep_ms(w, 1);
        MUST_OK(weft_dist_optimizer_ref_state(of_rank1.optimizer, 0, &states, NULL));
        MUST(states.count == 9);
        weft_optimizer_states_drop(&states);
        train(&of_rank1, 8);
        model_close(&of_rank1);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(a_call_that_saves_is_cancelled, 3, 1, .size = WORKERS, WORLD_FUNCTIONS(saves))

/* ---- Owners that die, are silent, or lie ------------------------------------------------------------------------- */

static void kill_soon(weft_sim *sim, int rank, void *arg)
{
    const world *w = arg;
    (void)rank;
    weft_sim_sleep(sim, w->seed * 20000);
    weft_sim_kill(sim, 1);
}

/* An owner dies at any moment: the call ends with an error, and the file is the old one or complete. */
static void an_owner_dies(weft_agent *agent, void *arg)
{
    world *w = arg;
    register_all(agent);
    if (weft_agent_rank(agent) == 0) {
        model m;
        char path[] = "weft-test-remote-state-XXXXXX";
        int file = mkstemp(path);
        MUST(file >= 0 && !close(file));
        weft_error *error = NULL;
        weft_status status = WEFT_OK;
        weft_optimizer_states states = {0};
        MUST_OK(model_open(&m, agent, (int[]){0, 40, 2}, &adam, NULL));
        train(&m, 8);
        MUST_OK(weft_dist_optimizer_save(m.optimizer, path, 0, NULL));
        MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &states, NULL));
        MUST_OK(weft_sim_spawn(w->sim, 0, kill_soon, w));
        for (int i = 0; !status && i < 100000; i++) {
            status = i % 4 == 0   ? weft_dist_optimizer_save(m.optimizer, path, 0, &error)
                     : i % 4 == 1 ? weft_dist_optimizer_load(m.optimizer, path, 0, &error)
                     : i % 4 == 2 ? weft_dist_optimizer_set_lr(m.optimizer, 0.25, 0, &error)
                                  : weft_dist_optimizer_set_state(m.optimizer, states.items, states.count, 0, &error);
            if (status)
                MUST(weft_error_worker(error) == 1 || strstr(weft_error_message(error), "1"));
        }
        MUST(status == WEFT_ERR_PEER_DEAD);
        weft_error_unref(error);
        weft_optimizer *local;
        weft_tensor *here[42];
        for (int i = 0; i < 42; i++)
            here[i] = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
        local = optimizer_create((weft_tensors){here, 42}, &adam, NULL);
        MUST_OK(weft_optimizer_load(local, path, NULL)); /* the save that failed has not touched it */
        MUST(weft_optimizer_state_count(local) == states.count);
        weft_optimizer_unref(local);
        for (int i = 0; i < 42; i++)
            weft_tensor_unref(here[i]);
        weft_optimizer_states_drop(&states);
        model_close(&m);
        unlink(path);
    }
}
WORLD_TEST(an_owner_dies, 12, 0, .size = WORKERS, WORLD_FUNCTIONS(functions), .close_may_fail = true)

static void pause_owner(weft_sim *sim, int rank, void *arg)
{
    (void)rank, (void)arg;
    weft_sim_pause(sim, 2);
    weft_sim_sleep(sim, 100000000);
    weft_sim_resume(sim, 2);
}

/* Time limits pass, and the optimizer goes on. */
static void an_owner_is_silent(weft_agent *agent, void *arg)
{
    world *w = arg;
    register_all(agent);
    if (weft_agent_rank(agent) == 0) {
        model m;
        weft_error *error = NULL;
        weft_optimizer_states states = {0};
        MUST_OK(model_open(&m, agent, (int[]){0, 2, 2}, &adam, NULL));
        train(&m, 8);
        MUST_OK(weft_sim_spawn(w->sim, 0, pause_owner, w));
        weft_sim_sleep(w->sim, 1000000);
        MUST_BE(weft_dist_optimizer_set_lr(m.optimizer, 0.25, 5, &error), WEFT_ERR_TIMEOUT);
        MUST(weft_error_worker(error) == 2 && weft_dist_optimizer_lr(m.optimizer) == 0.5);
        weft_error_unref(error);
        error = NULL;
        MUST_BE(weft_dist_optimizer_ref_state(m.optimizer, 5, &states, &error), WEFT_ERR_TIMEOUT);
        MUST(weft_error_worker(error) == 2 && !states.items);
        weft_error_unref(error);
        MUST_OK(weft_dist_optimizer_set_lr(m.optimizer, 0.25, 0, NULL));
        MUST_OK(weft_dist_optimizer_ref_state(m.optimizer, 0, &states, NULL));
        MUST(states.count == 12);
        weft_optimizer_states_drop(&states);
        model_close(&m);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(an_owner_is_silent, 3, 0, .size = WORKERS, WORLD_FUNCTIONS(functions))

enum { CUT, FAR_PARAMETER, MORE_NAMES, STEPS_MEANWHILE, NEVER_ENDS, LIES };

static int lie, pages;

static weft_status lie_about_state(weft_call *call, void *user)
{
    (void)user;
    uint8_t bytes[64] = {0};
    const uint32_t one = 1, far = 7;
    uint64_t head[] = {lie == STEPS_MEANWHILE ? (uint64_t)pages : 0, 2, 3}; /* changes, parameters, items */
    size_t size = sizeof(head);
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    pages++;
    memcpy(bytes, head, sizeof(head));
    memcpy(bytes + size, lie == FAR_PARAMETER ? &far : &one, sizeof(one));
    memcpy(bytes + size + 4, &one, sizeof(one));
    bytes[size + 8] = 'm';
    size = lie == CUT ? 30 : lie == MORE_NAMES ? 64 : size + 9;
    weft_call_give(call, WEFT_VALUES(weft_of_bytes(bytes, lie == NEVER_ENDS ? sizeof(head) : size),
                                     weft_of_tensors((weft_tensors){&tensor, lie != NEVER_ENDS})));
    weft_tensor_unref(tensor);
    return WEFT_OK;
}

static void an_owner_that_lies(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) == 1)
        inside_replace(agent, "weft:state", lie_about_state);
    register_all(agent);
    if (weft_agent_rank(agent) == 0) {
        model m;
        MUST_OK(model_open(&m, agent, (int[]){0, 2, 0}, &adam, NULL));
        for (lie = 0; lie < LIES; lie++) {
            weft_error *error = NULL;
            weft_optimizer_states states = {0};
            bool steps = lie == STEPS_MEANWHILE;
            pages = 0;
            MUST_BE(weft_dist_optimizer_ref_state(m.optimizer, 0, &states, &error),
                    steps ? WEFT_ERR_STATE : WEFT_ERR_PROTOCOL);
            MUST(strstr(weft_error_message(error),
                        steps ? "rank 1 has stepped while its state was read" : "the state of rank 1: "));
            MUST(!states.items);
            weft_error_unref(error);
        }
        model_close(&m);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(an_owner_that_lies, 1, 0, .size = WORKERS, WORLD_FUNCTIONS(functions))

/* Pages of a state that no caller sends: without a beginning, after the end, of another whole, cut. */
static void forged_pages(weft_agent *agent, void *arg)
{
    (void)arg;
    register_all(agent);
    if (weft_agent_rank(agent) == 0) {
        weft_rref *module;
        weft_values *list, *page;
        weft_rref *first, *part;
        uint8_t spec[] = {3, 0, 0, 0, 'S', 'G', 'D', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                          0, 0, 0, 0, 0,   0,   0,   0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
        const uint8_t begin[] = {1}, end[] = {2}, both[] = {3}, cut[] = {3, 0, 0}, more[] = {0};
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "vectors", WEFT_VALUES(weft_of_i64(1)), NULL, &module));
        MUST_OK(weft_remote_parameters(module, &list, NULL));
        MUST_OK(weft_values_get_rref(list, 0, &first));
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), "weft:optimizer",
                                WEFT_VALUES(weft_of_bytes(spec, sizeof(spec)), weft_of_rref(first)), NULL, &part));
        const struct {
            int64_t number;
            const uint8_t *bytes; /* NULL: it is to be set */
            size_t size;
            weft_status code;
        } calls[] = {
            {1, NULL, 0, WEFT_ERR_STATE}, {1, more, 1, WEFT_ERR_STATE}, {1, end, 1, WEFT_ERR_STATE},
            {1, begin, 1, WEFT_OK},       {1, NULL, 0, WEFT_ERR_STATE}, {2, end, 1, WEFT_ERR_STATE},
            {1, end, 1, WEFT_OK},         {1, more, 1, WEFT_ERR_STATE}, {2, NULL, 0, WEFT_ERR_STATE},
            {1, NULL, 0, WEFT_OK},        {1, NULL, 0, WEFT_ERR_STATE}, {3, cut, 3, WEFT_ERR_PROTOCOL},
            {3, NULL, 0, WEFT_ERR_STATE}, {4, both, 1, WEFT_OK},        {5, begin, 1, WEFT_OK},
            {4, NULL, 0, WEFT_ERR_STATE}, {6, both, 0, WEFT_ERR_STATE},
        };
        for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
            weft_error *error = NULL;
            weft_value values[] = {weft_of_i64(calls[i].number), weft_of_bytes(calls[i].bytes, calls[i].size),
                                   weft_of_tensors((weft_tensors){NULL, 0})};
            weft_status status = weft_rref_rpc_sync(part, calls[i].bytes ? "weft:state_in" : "weft:state_set",
                                                    (weft_args){values, calls[i].bytes ? 3 : 1},
                                                    &(weft_rpc_options){.error = &error}, NULL);
            MUST(calls[i].code ? status == WEFT_ERR_REMOTE && weft_error_handler_code(error) == calls[i].code
                               : !status);
            weft_error_unref(error);
        }
        MUST(weft_rref_rpc_sync(part, "weft:state", WEFT_VALUES(weft_of_i64(-1), weft_of_i64(1)), NULL, NULL) ==
             WEFT_ERR_REMOTE);
        MUST_OK(weft_rref_rpc_sync(part, "weft:state", WEFT_VALUES(weft_of_i64(INT64_MAX), weft_of_i64(INT64_MAX)),
                                   NULL, &page)); /* it lives */
        MUST(weft_rref_rpc_sync(first, "weft:rate", WEFT_VALUES(weft_of_f64(1)), NULL, NULL) == WEFT_ERR_REMOTE);
        MUST(weft_rref_rpc_sync(part, "weft:rate", WEFT_VALUES(weft_of_f64(NAN)), NULL, NULL) == WEFT_ERR_REMOTE);
        weft_values_unref(page);
        weft_rref_unref(part);
        weft_values_unref(list);
        weft_rref_unref(module);
    }
    MUST_OK(barrier(agent));
}
WORLD_TEST(forged_pages, 1, 1, .size = WORKERS, WORLD_FUNCTIONS(functions))

UNIT_MAIN(test_the_rate_changes_at_all_owners, test_state_goes_to_and_fro, test_many_states,
          test_a_state_that_is_refused_changes_nothing, test_own_types_are_registered_by_owners,
          test_pulls_are_never_torn, test_a_call_that_saves_is_cancelled, test_an_owner_dies, test_an_owner_is_silent,
          test_an_owner_that_lies, test_forged_pages)
