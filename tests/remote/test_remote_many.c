/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_remote_many.c - modules with more parameters than one list has values (WEFT_MAX_VALUES): handles to all, and an
 * optimizer over all. An optimizer over handles to no module.
 */
#include "rpc/inside.h"
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#define WORKERS 3
#define MANY 10000
#define FEWER 1500 /* of the module of rank 2 */

static weft_tensor *add_all(weft_tape *t, weft_module *m, weft_tensor *x)
{
    weft_tensors p = weft_module_parameters(m);
    for (size_t i = 0; i < p.count; i++)
        x = weft_add(t, x, p.items[i]);
    return x;
}

static const weft_module_type adder = {.name = "adder", .forward = add_all};

static weft_module *make_adder(int64_t argument)
{
    weft_module *m = module_create(&adder, NULL, NULL);
    for (int64_t i = 0; i < argument; i++) {
        char name[24];
        snprintf(name, sizeof(name), "p%lld", (long long)i);
        weft_module_add_parameter(m, name, tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32));
    }
    return m;
}

static const int counts[WORKERS] = {0, MANY, FEWER};

static weft_rref *make_on(weft_agent *agent, int rank)
{
    weft_rref *module;
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(rank), "adder", WEFT_VALUES(weft_of_i64(counts[rank])), NULL, &module));
    return module;
}

/* Handles to the parameters of both modules, taken in turns. */
static weft_status take_handles(weft_rref *modules[WORKERS], weft_values *lists[WORKERS], weft_value *all,
                                size_t *count)
{
    weft_status status = WEFT_OK;
    *count = 0;
    for (int rank = 1; rank < WORKERS && !status; rank++) {
        status = weft_remote_parameters(modules[rank], &lists[rank], NULL);
        MUST(status || weft_values_count(lists[rank]) == (size_t)counts[rank]);
    }
    for (size_t i = 0; i < MANY && !status; i++)
        for (int rank = 1; rank < WORKERS; rank++)
            if (i < (size_t)counts[rank])
                all[(*count)++] = weft_values_args(lists[rank]).items[i];
    return status;
}

static double forward_all(weft_tape *t, weft_rref *modules[WORKERS], weft_tensor *x, weft_tensor **y)
{
    *y = x;
    for (int rank = 1; rank < WORKERS; rank++)
        *y = weft_remote_forward(t, modules[rank], *y, NULL);
    MUST_OK(weft_tape_status(t));
    return weft_tensor_get_f64(*y, 0);
}

/* One step moves each parameter by -1. */
static void learn(weft_agent *agent, weft_rref *modules[WORKERS], weft_dist_optimizer *sgd)
{
    weft_context *c;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(1), WEFT_DTYPE_FLOAT32), *y;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    MUST(forward_all(t, modules, x, &y) == 0);
    weft_dist_backward(t, weft_sum(t, y), &(weft_pass_options){.step = sgd});
    MUST_OK(weft_tape_status(t));
    MUST(forward_all(t, modules, x, &y) == -(MANY + FEWER));
    weft_tape_close(t);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
}

static weft_status use_many(weft_agent *agent, weft_rref *modules[WORKERS], bool learns)
{
    weft_values *lists[WORKERS] = {NULL};
    weft_value *all = calloc(MANY + FEWER, sizeof(*all));
    weft_dist_optimizer *sgd = NULL;
    weft_error *error = NULL;
    size_t count;
    weft_status status = take_handles(modules, lists, all, &count);
    if (!status)
        status = weft_dist_optimizer_create(agent, (weft_args){all, count},
                                            &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 1}, &sgd, &error);
    if (!status && learns)
        learn(agent, modules, sgd);
    weft_error_unref(error);
    weft_dist_optimizer_unref(sgd);
    for (int rank = 1; rank < WORKERS; rank++)
        weft_values_unref(lists[rank]);
    free(all);
    return status;
}

static bool is_over;

static void break_links(weft_sim *sim, int rank, void *arg)
{
    (void)arg;
    for (int i = 0; !is_over; i++) {
        weft_sim_sleep(sim, 200000 + (uint64_t)(i % 7) * 1000); /* uneven: else each attempt to connect may meet one */
        weft_sim_reset_link(sim, rank, 1 + i % (WORKERS - 1));
    }
}

static void kill_soon(weft_sim *sim, int rank, void *arg)
{
    const world *w = arg;
    (void)rank;
    weft_sim_sleep(sim, w->seed * 100000);
    weft_sim_kill(sim, 1 + (int)(w->seed % 2));
}

static weft_status play(weft_agent *agent, world *w, weft_sim_program trouble)
{
    weft_rref *modules[WORKERS] = {NULL};
    weft_group *all;
    world_serve_module(agent, "adder", make_adder);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER)); /* all have registered it */
    weft_group_close(all);
    if (weft_agent_rank(agent) != 0)
        return WEFT_OK;
    for (int rank = 1; rank < WORKERS; rank++)
        modules[rank] = make_on(agent, rank);
    is_over = false;
    if (trouble)
        MUST_OK(weft_sim_spawn(w->sim, 0, trouble, w));
    weft_status status = use_many(agent, modules, trouble != kill_soon);
    is_over = true;
    for (int rank = 1; rank < WORKERS; rank++)
        weft_rref_unref(modules[rank]);
    return status;
}

static void many_parameters(weft_agent *agent, void *arg)
{
    MUST_OK(play(agent, arg, NULL));
}

static void many_parameters_over_links_that_break(weft_agent *agent, void *arg)
{
    MUST_OK(play(agent, arg, break_links));
}

static void many_parameters_and_a_death(weft_agent *agent, void *arg)
{
    weft_status status = play(agent, arg, kill_soon);
    MUST(!status || status == WEFT_ERR_PEER_DEAD || status == WEFT_ERR_REMOTE);
}

/* ---- An owner that lies ------------------------------------------------------------------------------------------ */

enum { FULL, SHRINKS, ENDLESS, NEGATIVE, LIES };

static int lie;

/* The first page is an honest one of two handles. */
static weft_status lie_about_parameters(weft_call *call, void *user)
{
    (void)user;
    const int64_t totals[LIES] = {INT64_MAX, INT64_MAX, INT64_MAX / 2, -1};
    int64_t from = weft_call_i64(call, 1), total = totals[lie] - (lie == SHRINKS && from > 0);
    weft_value handle = weft_of_rref(weft_call_rref(call, 0));
    if (lie == FULL && from > 0)
        weft_call_give(call, WEFT_VALUES(weft_of_i64(total)));
    else if (lie == ENDLESS && from >= 4)
        return WEFT_ERR_SYSTEM;
    else
        weft_call_give(call, WEFT_VALUES(weft_of_i64(total), handle, handle));
    return WEFT_OK;
}

/* The caller takes no memory for what the owner only speaks of, and hears that the owner lies. */
static void an_owner_that_lies(weft_agent *agent, void *arg)
{
    (void)arg;
    const weft_status expected[LIES] = {WEFT_ERR_PROTOCOL, WEFT_ERR_PROTOCOL, WEFT_ERR_REMOTE, WEFT_ERR_PROTOCOL};
    weft_group *all;
    world_serve_module(agent, "adder", make_adder);
    if (weft_agent_rank(agent) == 1)
        inside_replace(agent, "weft:parameters", lie_about_parameters);
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &all, NULL));
    MUST_OK(weft_group_barrier(all, WEFT_FOREVER));
    weft_group_close(all);
    if (weft_agent_rank(agent) != 0)
        return;
    weft_rref *module = make_on(agent, 1);
    for (lie = 0; lie < LIES; lie++) {
        weft_values *list = NULL;
        weft_error *error = NULL;
        MUST_BE(weft_remote_parameters(module, &list, &error), expected[lie]);
        MUST(!list && weft_error_code(error) == expected[lie]);
        weft_error_unref(error);
    }
    weft_rref_unref(module);
}
WORLD_TEST(an_owner_that_lies, 1, 0, .size = WORKERS)

WORLD_TEST(many_parameters, 1, 1, .size = WORKERS)
WORLD_TEST(many_parameters_over_links_that_break, 1, 0, .size = WORKERS)
WORLD_TEST(many_parameters_and_a_death, 4, 0, .size = WORKERS, .close_may_fail = true)

static weft_status make_cold(weft_call *call, void *user)
{
    (void)user;
    weft_call_fail(call, WEFT_ERR_INVALID, "the soup is too cold");
    return WEFT_ERR_INVALID;
}

static weft_status make_text(weft_call *call, void *user)
{
    (void)user;
    weft_call_give(call, WEFT_VALUES(weft_of_string("no module")));
    return WEFT_OK;
}

static const weft_function makers[] = {
    {.name = "cold", .run = make_cold},
    {.name = "text", .gives = {WEFT_TYPE_STRING}, .run = make_text},
};

/* The optimizer is often the first to use a handle: its error has the reason. */
static void an_optimizer_over_no_module(weft_agent *agent, void *arg)
{
    (void)arg;
    if (weft_agent_rank(agent) != 0)
        return;
    static const char *const names[] = {"cold", "text", "no such function"}, *const reasons[] = {
                                                                                 "the soup is too cold",
                                                                                 "parameter 0 is neither a tensor",
                                                                                 "\"no such function\""};
    for (int i = 0; i < 3; i++) {
        weft_rref *module;
        weft_error *error = NULL;
        weft_dist_optimizer *sgd = NULL;
        MUST_OK(weft_rpc_remote(agent, weft_to_rank(1), names[i], WEFT_NO_VALUES, NULL, &module));
        MUST(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(module)),
                                        &(weft_optimizer_spec){.type = &weft_sgd_type}, &sgd, &error));
        if (!strstr(weft_error_message(error), reasons[i]))
            fprintf(stderr, "\"%s\" lacks \"%s\"\n", weft_error_message(error), reasons[i]);
        MUST(strstr(weft_error_message(error), reasons[i]));
        weft_error_unref(error);
        weft_rref_unref(module);
    }
}
WORLD_TEST(an_optimizer_over_no_module, 1, 0, .size = WORKERS, WORLD_FUNCTIONS(makers))

UNIT_MAIN(test_many_parameters, test_many_parameters_over_links_that_break, test_many_parameters_and_a_death,
          test_an_owner_that_lies, test_an_optimizer_over_no_module)
