/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_base_handle.c - a use of an ended object and a second release end the process with one sentence on stderr and
 * abort(), for each kind of object. Each misuse runs in a child process.
 */
#include "children.h"
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

typedef struct misuse {
    const char *name;
    void (*run)(void);
    const char *function; /* that the sentence begins with */
    const char *says;     /* a part of it */
} misuse;

/* ---- Running one ------------------------------------------------------------------------------------------------- */

/* What `run` writes to stderr, without lines of the log. Returns how the child ended. */
static int in_child(void (*run)(void), char *text, size_t room)
{
    size_t size = 0;
    child one = child_fork("misuse");
    if (!one.pid) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        signal(SIGABRT, SIG_DFL);
        dup2(one.line, STDERR_FILENO);
        weft_logging_set_level(WEFT_LOG_ERROR);
        run();
        _exit(0);
    }
    for (ssize_t got; (got = read(one.line, text + size, room - 1 - size)) > 0;)
        size += (size_t)got;
    text[size] = '\0';
    return child_end(&one);
}

static void must_abort(const misuse *m)
{
    char text[4096];
    int status = in_child(m->run, text, sizeof(text));
    if (SANITIZED) { /* the tool may see it first */
        assert_int_not_equal(status, 0);
        return;
    }
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGABRT)
        fprintf(stderr, "%s: status %x, \"%s\"\n", m->name, (unsigned)status, text);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    bool begins = strncmp(text, m->function, strlen(m->function)) == 0 && text[strlen(m->function)] == ':';
    bool says = strstr(text, m->says) != NULL;
    bool one_line = strchr(text, '\n') && strchr(text, '\n')[1] == '\0';
    if (!begins || !says || !one_line)
        fprintf(stderr, "%s: \"%s\"\n", m->name, text);
    assert_true(begins && says && one_line);
}

/* ---- Objects without an agent ------------------------------------------------------------------------------------ */

static weft_tensor *make_tensor(void)
{
    return tensor_empty(WEFT_SHAPE(2, 3), WEFT_DTYPE_FLOAT32);
}

static void tensor_use(void)
{
    weft_tensor *x = make_tensor();
    weft_tensor_unref(x);
    (void)weft_tensor_numel(x);
}

static void tensor_twice(void)
{
    weft_tensor *x = make_tensor();
    weft_tensor_unref(x);
    weft_tensor_unref(x);
}

static void tensor_ref(void)
{
    weft_tensor *x = make_tensor();
    weft_tensor_unref(x);
    (void)weft_tensor_ref(x);
}

static void tensor_in_operator(void)
{
    weft_tape *tape = weft_tape_open(NULL);
    weft_tensor *x = make_tensor();
    weft_tensor_unref(x);
    (void)weft_relu(tape, x);
}

static void tensor_in_value(void)
{
    weft_values *values;
    weft_tensor *x = make_tensor();
    weft_tensor_unref(x);
    (void)!weft_values_create(WEFT_VALUES(weft_of_tensor(x)), &values, NULL);
}

static void view_after_base(void) /* the view is its own object: this is no misuse */
{
    weft_tensor *x = make_tensor(), *flat = tensor_reshape(x, WEFT_SHAPE(6));
    weft_tensor_unref(x);
    MUST(weft_tensor_numel(flat) == 6);
    weft_tensor_unref(flat);
}

static void future_use(void)
{
    weft_future *future = weft_future_create(NULL);
    weft_future_unref(future);
    (void)weft_future_done(future);
}

static void future_twice(void)
{
    weft_future *future = weft_future_create(NULL);
    weft_future_unref(future);
    weft_future_unref(future);
}

static void future_wait(void)
{
    weft_future *future = weft_future_create(NULL);
    weft_future_unref(future);
    (void)!weft_future_wait(future, 0);
}

static weft_status pass_on(weft_future *parent, weft_future *next, void *arg)
{
    (void)arg;
    (void)parent;
    return weft_future_complete(next, NULL, NULL);
}

static void future_of_then(void) /* embedded in a larger block */
{
    weft_future *parent = weft_future_create(NULL), *next = weft_future_then(parent, pass_on, NULL, NULL);
    weft_future_unref(parent);
    weft_future_unref(next);
    (void)weft_future_payload(next);
}

static void future_of_all(void)
{
    weft_future *all = weft_future_when_all(NULL, 0);
    weft_future_unref(all);
    weft_future_unref(all);
}

static void error_use(void)
{
    weft_error *error = weft_error_create(WEFT_ERR_IO, "some text");
    weft_error_unref(error);
    (void)weft_error_message(error);
}

static void error_twice(void)
{
    weft_error *error = weft_error_create(WEFT_ERR_IO, "some text");
    weft_error_unref(error);
    weft_error_unref(error);
}

static void values_twice(void)
{
    weft_values *values;
    MUST_OK(weft_values_create(WEFT_VALUES(weft_of_i64(1)), &values, NULL));
    weft_values_unref(values);
    weft_values_unref(values);
}

static void tape_use(void)
{
    weft_tape *tape = weft_tape_open(NULL);
    weft_tape_close(tape);
    (void)weft_tape_status(tape);
}

static void tape_twice(void)
{
    weft_tape *tape = weft_tape_open(NULL);
    weft_tape_close(tape);
    weft_tape_close(tape);
}

static void *close_tape(void *tape)
{
    weft_tape_close(tape);
    return NULL;
}

static void tape_by_two_threads(void)
{
    pthread_t other;
    weft_tape *tape = weft_tape_open(NULL);
    MUST(!pthread_create(&other, NULL, close_tape, tape));
    weft_tape_close(tape);
    MUST(!pthread_join(other, NULL));
}

static void tape_in_operator(void)
{
    weft_tape *tape = weft_tape_open(NULL);
    weft_tensor *x = make_tensor();
    weft_tape_close(tape);
    (void)weft_relu(tape, x);
}

static void temporary_after_tape(void)
{
    weft_tape *tape = weft_tape_open(NULL);
    weft_tensor *x = make_tensor(), *y = weft_relu(tape, x);
    weft_tape_close(tape);
    (void)weft_tensor_data(y);
}

static void module_use(void)
{
    weft_module *module = linear_create(2, 3, false, 1, NULL);
    weft_module_unref(module);
    (void)weft_module_numel(module);
}

static void module_twice(void)
{
    weft_module *module = linear_create(2, 3, false, 1, NULL);
    weft_module_unref(module);
    weft_module_unref(module);
}

static weft_optimizer *make_optimizer(void)
{
    weft_tensor *x = make_tensor();
    weft_optimizer *optimizer =
        optimizer_create((weft_tensors){&x, 1}, &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1}, NULL);
    weft_tensor_unref(x);
    MUST(optimizer);
    return optimizer;
}

static void optimizer_use(void)
{
    weft_optimizer *optimizer = make_optimizer();
    weft_optimizer_unref(optimizer);
    (void)!weft_optimizer_step(optimizer);
}

static void optimizer_twice(void)
{
    weft_optimizer *optimizer = make_optimizer();
    weft_optimizer_unref(optimizer);
    weft_optimizer_unref(optimizer);
}

static void hooks_twice(void)
{
    weft_hooks *hooks = hooks_create();
    weft_hooks_unref(hooks);
    weft_hooks_unref(hooks);
}

static void sim_twice(void)
{
    weft_sim *sim = sim_open(NULL);
    weft_sim_close(sim);
    weft_sim_close(sim);
}

static void job_twice(void)
{
    weft_job *job = NULL;
    MUST_OK(weft_job_open(&(weft_job_options){.count = 0}, &job, NULL));
    MUST_OK(weft_job_close(job, 1000, NULL));
    (void)!weft_job_close(job, 1000, NULL);
}

static void zeros_as_tensor(void)
{
    static uint64_t zeros[64];
    (void)weft_tensor_numel((weft_tensor *)(void *)zeros);
}

/* ---- Objects of an agent ----------------------------------------------------------------------------------------- */

/* Runs a program on one worker of the simulation. */
static void play(void (*program)(weft_agent *agent, void *arg), const weft_function *functions, size_t count)
{
    world_run(&(world){.fabric = WORLD_SIM,
                       .size = 1,
                       .seed = 1,
                       .functions = functions,
                       .function_count = count,
                       .program = program,
                       .close_may_fail = true});
}

static weft_agent *closed_agent(void)
{
    weft_agent *agent;
    MUST_OK(weft_agent_open(
        &(weft_agent_options){
            .has_rank = true, .rank = 0, .world_size = 1, .master_port = world_free_port(), .threads = 1},
        &agent, NULL));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    return agent;
}

static void agent_use(void)
{
    (void)weft_agent_rank(closed_agent());
}

static void agent_twice(void)
{
    (void)!weft_agent_close(closed_agent(), WEFT_FOREVER);
}

static void agent_stop_after_close(void)
{
    weft_agent_stop(closed_agent());
}

static void agent_call(void)
{
    (void)!weft_rpc_sync(closed_agent(), weft_to_rank(0), "none", WEFT_NO_VALUES, NULL, NULL);
}

static weft_agent *held_agent; /* kept alive by a reference, and closed */

static void agent_held(void)
{
    weft_rref *rref;
    MUST_OK(weft_agent_open(
        &(weft_agent_options){
            .has_rank = true, .rank = 0, .world_size = 1, .master_port = world_free_port(), .threads = 1},
        &held_agent, NULL));
    MUST_OK(weft_rref_create(held_agent, weft_of_i64(7), &rref, NULL));
    MUST_OK(weft_agent_close(held_agent, WEFT_FOREVER));
    (void)weft_agent_world_size(held_agent);
}

static weft_call *stored;

static weft_status store(weft_call *call, void *user)
{
    (void)user;
    stored = call;
    return WEFT_OK;
}

static weft_status store_deferred(weft_call *call, void *user)
{
    (void)user;
    stored = weft_call_defer(call);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {{.name = "store", .run = store},
                                          {.name = "store_deferred", .run = store_deferred}};

static void use_ended_call(weft_agent *agent, void *arg)
{
    (void)arg;
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "store", WEFT_NO_VALUES, NULL, NULL));
    (void)weft_call_count(stored);
}

static void call_after_handler(void)
{
    play(use_ended_call, functions, 2);
}

static void finish_twice(weft_agent *agent, void *arg)
{
    weft_future *future;
    (void)arg;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "store_deferred", WEFT_NO_VALUES, NULL, &future));
    while (!stored)
        (void)!weft_future_wait(future, 1);
    weft_call_finish(stored, WEFT_OK);
    MUST_OK(weft_future_wait(future, 1000));
    weft_call_finish(stored, WEFT_OK);
}

static void call_finished_twice(void)
{
    play(finish_twice, functions, 2);
}

static void give_after_finish(weft_agent *agent, void *arg)
{
    weft_future *future;
    (void)arg;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "store_deferred", WEFT_NO_VALUES, NULL, &future));
    while (!stored)
        (void)!weft_future_wait(future, 1);
    weft_call_finish(stored, WEFT_OK);
    weft_call_give(stored, WEFT_NO_VALUES);
}

static void call_given_after_finish(void)
{
    play(give_after_finish, functions, 2);
}

static weft_status finish_now(weft_call *call, void *user)
{
    (void)user;
    weft_call_finish(call, WEFT_OK); /* not deferred: the return of the handler finishes it again */
    return WEFT_OK;
}

static void call_finish_now(weft_agent *agent, void *arg)
{
    (void)arg;
    (void)!weft_rpc_sync(agent, weft_to_rank(0), "finish_now", WEFT_NO_VALUES, NULL, NULL);
}

static void call_finished_in_handler(void)
{
    play(call_finish_now, &(weft_function){.name = "finish_now", .run = finish_now}, 1);
}

static weft_batch *stored_batch;

static weft_status store_batch(weft_batch *batch, void *user)
{
    (void)user;
    stored_batch = weft_batch_defer(batch);
    return WEFT_DEFERRED;
}

static void finish_batch_twice(weft_agent *agent, void *arg)
{
    weft_future *future;
    (void)arg;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "batched", WEFT_VALUES(weft_of_i64(1)), NULL, &future));
    while (!stored_batch)
        (void)!weft_future_wait(future, 1);
    weft_batch_finish(stored_batch, WEFT_ERR_IO);
    (void)!weft_future_wait(future, 1000);
    weft_batch_finish(stored_batch, WEFT_ERR_IO);
}

static void batch_finished_twice(void)
{
    play(finish_batch_twice,
         &(weft_function){.name = "batched", .takes = {WEFT_TYPE_I64}, .run_batch = store_batch, .batch = {.size = 1}},
         1);
}

static weft_status finish_batch_now(weft_batch *batch, void *user)
{
    (void)user;
    weft_batch_finish(batch, WEFT_OK); /* not deferred */
    return WEFT_OK;
}

static void call_batched(weft_agent *agent, void *arg)
{
    (void)arg;
    (void)!weft_rpc_sync(agent, weft_to_rank(0), "batched", WEFT_VALUES(weft_of_i64(1)), NULL, NULL);
}

static void batch_finished_in_handler(void)
{
    play(call_batched,
         &(weft_function){
             .name = "batched", .takes = {WEFT_TYPE_I64}, .run_batch = finish_batch_now, .batch = {.size = 1}},
         1);
}

static void use_finished_parent(weft_agent *agent, void *arg)
{
    weft_future *future;
    (void)arg;
    MUST_OK(weft_rpc_async(agent, weft_to_rank(0), "store_deferred", WEFT_NO_VALUES, NULL, &future));
    while (!stored)
        (void)!weft_future_wait(future, 1);
    weft_call_finish(stored, WEFT_OK);
    (void)!weft_rpc_sync(agent, weft_to_rank(0), "store_deferred", WEFT_NO_VALUES,
                         &(weft_rpc_options){.parent = stored}, NULL);
}

static void call_parent_finished(void)
{
    play(use_finished_parent, functions, 2);
}

static void tape_parent_closed(void)
{
    weft_tape *parent = weft_tape_open(NULL);
    weft_tape *inner = weft_tape_open(&(weft_tape_options){.parent = parent});
    weft_tape_close(parent);
    weft_tape_close(inner);
}

static void close_group_twice(weft_agent *agent, void *arg)
{
    weft_group *group;
    (void)arg;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    weft_group_close(group);
    weft_group_close(group);
}

static void group_twice(void)
{
    play(close_group_twice, NULL, 0);
}

static void use_closed_group(weft_agent *agent, void *arg)
{
    weft_group *group;
    (void)arg;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    weft_group_close(group);
    (void)!weft_group_barrier(group, 1000);
}

static void group_use(void)
{
    play(use_closed_group, NULL, 0);
}

static void close_group_of_parallel(weft_agent *agent, void *arg)
{
    weft_group *group;
    weft_data_parallel *parallel;
    weft_module *module = linear_create(2, 3, false, 1, NULL);
    (void)arg;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    MUST_OK(weft_data_parallel_create(group, module, NULL, &parallel, NULL));
    weft_group_close(group); /* the module still has it */
    weft_group_close(group);
}

static void group_twice_beside_parallel(void)
{
    play(close_group_of_parallel, NULL, 0);
}

static void unref_parallel_twice(weft_agent *agent, void *arg)
{
    weft_group *group;
    weft_data_parallel *parallel;
    weft_module *module = linear_create(2, 3, false, 1, NULL);
    (void)arg;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    MUST_OK(weft_data_parallel_create(group, module, NULL, &parallel, NULL));
    weft_data_parallel_unref(parallel);
    weft_data_parallel_unref(parallel);
}

static void parallel_twice(void)
{
    play(unref_parallel_twice, NULL, 0);
}

static void unref_rref_twice(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    (void)arg;
    MUST_OK(weft_rref_create(agent, weft_of_i64(7), &rref, NULL));
    weft_rref_unref(rref);
    weft_rref_unref(rref);
}

static void rref_twice(void)
{
    play(unref_rref_twice, NULL, 0);
}

static void use_rref(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    weft_value value;
    (void)arg;
    MUST_OK(weft_rref_create(agent, weft_of_i64(7), &rref, NULL));
    weft_rref_unref(rref);
    (void)!weft_rref_local_value(rref, 0, &value);
}

static void rref_use(void)
{
    play(use_rref, NULL, 0);
}

static void unref_dist_optimizer_twice(weft_agent *agent, void *arg)
{
    weft_rref *rref;
    weft_dist_optimizer *optimizer;
    weft_tensor *x = make_tensor();
    (void)arg;
    weft_tensor_set_requires_grad(x, true);
    MUST_OK(weft_rref_create(agent, weft_of_tensor(x), &rref, NULL));
    MUST_OK(weft_dist_optimizer_create(agent, WEFT_VALUES(weft_of_rref(rref)),
                                       &(weft_optimizer_spec){.type = &weft_sgd_type, .lr = 0.1}, &optimizer, NULL));
    weft_dist_optimizer_unref(optimizer);
    weft_dist_optimizer_unref(optimizer);
}

static void dist_optimizer_twice(void)
{
    play(unref_dist_optimizer_twice, NULL, 0);
}

static void use_context(weft_agent *agent, void *arg)
{
    weft_context *context;
    (void)arg;
    MUST_OK(weft_context_open(agent, &context, NULL));
    weft_context_close(context, NULL);
    (void)weft_context_get_id(context);
}

static void context_use(void)
{
    play(use_context, NULL, 0);
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

#define ENDED "is no object of weft, or no longer one"

static const misuse misuses[] = {
    {"tensor_use", tensor_use, "weft_tensor_numel", ENDED},
    {"tensor_twice", tensor_twice, "weft_tensor_unref", ENDED},
    {"tensor_ref", tensor_ref, "weft_tensor_ref", ENDED},
    {"tensor_in_operator", tensor_in_operator, "weft_relu", ENDED},
    {"tensor_in_value", tensor_in_value, "weft_of_tensor", ENDED},
    {"future_use", future_use, "weft_future_done", ENDED},
    {"future_twice", future_twice, "weft_future_unref", ENDED},
    {"future_wait", future_wait, "weft_future_wait", ENDED},
    {"future_of_then", future_of_then, "weft_future_payload", ENDED},
    {"future_of_all", future_of_all, "weft_future_unref", ENDED},
    {"error_use", error_use, "weft_error_message", ENDED},
    {"error_twice", error_twice, "weft_error_unref", ENDED},
    {"values_twice", values_twice, "weft_values_unref", ENDED},
    {"tape_use", tape_use, "weft_tape_status", ENDED},
    {"tape_twice", tape_twice, "weft_tape_close", ENDED},
    {"tape_by_two_threads", tape_by_two_threads, "weft_tape_close", ENDED},
    {"tape_in_operator", tape_in_operator, "weft_relu", ENDED},
    {"temporary_after_tape", temporary_after_tape, "weft_tensor_data", ENDED},
    {"module_use", module_use, "weft_module_numel", ENDED},
    {"module_twice", module_twice, "weft_module_unref", ENDED},
    {"optimizer_use", optimizer_use, "weft_optimizer_step", ENDED},
    {"optimizer_twice", optimizer_twice, "weft_optimizer_unref", ENDED},
    {"hooks_twice", hooks_twice, "weft_hooks_unref", ENDED},
    {"sim_twice", sim_twice, "weft_sim_close", ENDED},
    {"job_twice", job_twice, "weft_job_close", ENDED},
    {"zeros_as_tensor", zeros_as_tensor, "weft_tensor_numel", ENDED},
    {"agent_use", agent_use, "weft_agent_rank", ENDED},
    {"agent_twice", agent_twice, "weft_agent_close", ENDED},
    {"agent_stop_after_close", agent_stop_after_close, "weft_agent_stop", ENDED},
    {"agent_call", agent_call, "weft_rpc_sync", ENDED},
    {"agent_held", agent_held, "weft_agent_world_size", ENDED},
    {"call_after_handler", call_after_handler, "weft_call_count", ENDED},
    {"call_finished_twice", call_finished_twice, "weft_call_finish", ENDED},
    {"call_given_after_finish", call_given_after_finish, "weft_call_give", ENDED},
    {"batch_finished_twice", batch_finished_twice, "weft_batch_finish", ENDED},
    {"group_twice", group_twice, "weft_group_close", ENDED},
    {"group_use", group_use, "weft_group_barrier", ENDED},
    {"group_twice_beside_parallel", group_twice_beside_parallel, "weft_group_close", ENDED},
    {"parallel_twice", parallel_twice, "weft_data_parallel_unref", ENDED},
    {"context_use", context_use, "weft_context_get_id", ENDED},
    {"call_finished_in_handler", call_finished_in_handler, "weft_call_finish", "that was not deferred"},
    {"batch_finished_in_handler", batch_finished_in_handler, "weft_batch_finish", "that was not deferred"},
    {"call_parent_finished", call_parent_finished, "weft_rpc_options.parent", ENDED},
    {"tape_parent_closed", tape_parent_closed, "the parent of a tape", ENDED},
    {"rref_twice", rref_twice, "weft_rref_unref", ENDED},
    {"rref_use", rref_use, "weft_rref_local_value", ENDED},
    {"dist_optimizer_twice", dist_optimizer_twice, "weft_dist_optimizer_unref", ENDED},
};

static void test_every_misuse_ends_with_one_sentence(void **cmocka)
{
    (void)cmocka;
    for (size_t i = 0; i < sizeof(misuses) / sizeof(*misuses); i++)
        must_abort(&misuses[i]);
}

static void test_what_is_no_misuse_goes_on(void **cmocka)
{
    char text[1024];
    (void)cmocka;
    assert_int_equal(in_child(view_after_base, text, sizeof(text)), 0);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

enum { THREADS = 8, TURNS = 20000 };

static void *end_many(void *arg)
{
    weft_tensor *shared = arg;
    for (int i = 0; i < TURNS / (SANITIZED ? 10 : 1); i++) {
        weft_future *future = weft_future_create(NULL);
        weft_error *error = weft_error_create(WEFT_ERR_IO, "turn %d", i);
        weft_tensor *x = make_tensor();
        weft_tensor_unref(weft_tensor_ref(shared));
        MUST_OK(weft_future_fail(future, error));
        MUST(weft_error_code(weft_future_error(future)) == WEFT_ERR_IO);
        weft_error_unref(error);
        weft_future_unref(future);
        weft_tensor_unref(x);
    }
    return NULL;
}

static void test_many_threads_end_handles_at_once(void **cmocka)
{
    pthread_t threads[THREADS];
    weft_tensor *shared = make_tensor();
    (void)cmocka;
    for (int i = 0; i < THREADS; i++)
        MUST(pthread_create(&threads[i], NULL, end_many, shared) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(weft_tensor_numel(shared), 6);
    weft_tensor_unref(shared);
}

/* ---- NULL -------------------------------------------------------------------------------------------------------- */

static void test_reading_null_gives_nothing(void **cmocka)
{
    int64_t number;
    (void)cmocka;
    weft_values *values;
    MUST_OK(weft_values_create(WEFT_VALUES(weft_of_i64(7)), &values, NULL));
    assert_int_equal(weft_values_get_i64(values, 0, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_values_get_i64(NULL, 0, &number), WEFT_ERR_INVALID);
    assert_int_equal(weft_values_get_bytes(values, 0, NULL, NULL), WEFT_ERR_INVALID);
    weft_values_unref(values);
    assert_null(weft_future_values(NULL));
    assert_null(weft_future_tensor(NULL, 0));
    assert_true(weft_batch_count(NULL) == 0 && !weft_batch_tensor(NULL, 0) && !weft_batch_call(NULL, 0));
    assert_true(!weft_batch_agent(NULL) && !weft_batch_defer(NULL) && !weft_batch_tape(NULL));
    weft_batch_give(NULL, 0, NULL);
    weft_batch_fail(NULL, WEFT_ERR_IO, "nothing");
    assert_int_equal(weft_sim_run(NULL, 0), WEFT_ERR_INVALID);
    assert_int_equal(weft_sim_spawn(NULL, 0, NULL, NULL), WEFT_ERR_INVALID);
    assert_true(weft_sim_now(NULL) == 0 && weft_sim_trace_hash(NULL) == 0);
    weft_sim_kill(NULL, 0);
    weft_sim_pause(NULL, 0);
    weft_sim_resume(NULL, 0);
    weft_sim_cut(NULL, 0, 1);
    weft_sim_heal(NULL, 0, 1);
    weft_sim_reset_link(NULL, 0, 1);
    assert_int_equal(weft_sim_fabric_fail(NULL, 0, "sim"), WEFT_ERR_INVALID);
    assert_int_equal(weft_sim_fabric_repair(NULL, 0, "sim"), WEFT_ERR_INVALID);
    assert_int_equal(weft_sim_fabric_cut(NULL, 0, 1, "sim"), WEFT_ERR_INVALID);
    assert_int_equal(weft_sim_fabric_heal(NULL, 0, 1, "sim"), WEFT_ERR_INVALID);
    assert_int_equal(weft_sim_fabric_refuse_memory(NULL, 0, "sim", true), WEFT_ERR_INVALID);
}

static void test_releasing_null_does_nothing(void **cmocka)
{
    (void)cmocka;
    weft_tensor_unref(NULL);
    weft_future_unref(NULL);
    weft_error_unref(NULL);
    weft_values_unref(NULL);
    weft_rref_unref(NULL);
    weft_tape_close(NULL);
    weft_module_unref(NULL);
    weft_optimizer_unref(NULL);
    weft_hooks_unref(NULL);
    weft_data_parallel_unref(NULL);
    weft_rref_unref(NULL);
    weft_dist_optimizer_unref(NULL);
    weft_context_close(NULL, NULL);
    weft_group_close(NULL);
    weft_sim_close(NULL);
    weft_agent_stop(NULL);
    weft_call_finish(NULL, WEFT_OK);
    weft_batch_finish(NULL, WEFT_OK);
    MUST_OK(weft_agent_close(NULL, WEFT_FOREVER));
    MUST_OK(weft_job_close(NULL, 0, NULL));
}

UNIT_MAIN(test_every_misuse_ends_with_one_sentence, test_what_is_no_misuse_goes_on,
          test_many_threads_end_handles_at_once, test_releasing_null_does_nothing, test_reading_null_gives_nothing)
