/* SPDX-License-Identifier: Apache-2.0 */
/* test_dist_observe.c - what contexts and passes leave in the metrics and the trace of each worker. */
#include "dist/parameters.h"
#include "rpc/script.h"
#include "tensors.h"

#include <weft/dist_optim.h>

#include <unistd.h>

/* ---- What every worker serves ------------------------------------------------------------------------------------ */

/* () -> a handle to this worker's parameter */
static weft_status serve_parameter(weft_call *call, void *user)
{
    (void)user;
    weft_agent *agent = weft_call_agent(call);
    weft_rref *handle = NULL;
    weft_status status = weft_rref_create(agent, weft_of_tensor(parameters[weft_agent_rank(agent)]), &handle, NULL);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_rref(handle)));
    weft_rref_unref(handle);
    return status;
}

static char *page_of(const weft_agent *agent)
{
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    MUST_OK(weft_metrics_write(agent, to));
    fclose(to);
    return text;
}

/* () -> this worker's metrics */
static weft_status serve_page(weft_call *call, void *user)
{
    (void)user;
    char *text = page_of(weft_call_agent(call));
    weft_call_give(call, WEFT_VALUES(weft_of_string(text)));
    free(text);
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "pass_on", .takes = {WEFT_TYPE_TENSOR, WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_pass_on},
    {.name = "broken", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = serve_broken},
    {.name = "parameter", .gives = {WEFT_TYPE_RREF}, .run = serve_parameter},
    {.name = "page", .gives = {WEFT_TYPE_STRING}, .run = serve_page},
};

/* ---- Passes ------------------------------------------------------------------------------------------------------ */

/* Over the parameters of ranks 1 and 2. */
static weft_dist_optimizer *make_optimizer(weft_agent *agent)
{
    weft_values *answers[2];
    weft_dist_optimizer *sgd = NULL;
    for (int i = 0; i < 2; i++)
        answers[i] = call_on(NULL, agent, i + 1, "parameter", WEFT_NO_VALUES);
    const weft_args all =
        WEFT_VALUES(weft_of_list(weft_values_args(answers[0])), weft_of_list(weft_values_args(answers[1])));
    const weft_optimizer_spec spec = {.type = &weft_sgd_type, .lr = 0.5};
    MUST_OK(weft_dist_optimizer_create(agent, all, &spec, &sgd, NULL));
    weft_values_unref(answers[0]);
    weft_values_unref(answers[1]);
    return sgd;
}

/* Each of these in a context of its own, which is returned: from here over 1 to 2; its parameters step with it. */
static weft_context *chain(weft_agent *agent, weft_tensor *x)
{
    weft_context *c;
    weft_dist_optimizer *sgd = make_optimizer(agent);
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *y = call_on(t, agent, 1, "pass_on", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(1)));
    weft_dist_backward(t, weft_sum(t, result(y, 0)), &(weft_pass_options){.step = sgd});
    MUST_OK(weft_tape_status(t));
    weft_values_unref(y);
    weft_tape_close(t);
    weft_dist_optimizer_unref(sgd);
    return c;
}

static weft_context *failure(weft_agent *agent, weft_tensor *x)
{
    weft_context *c;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_values *y = call_on(t, agent, 1, "broken", WEFT_VALUES(weft_of_tensor(x)));
    weft_dist_backward(t, weft_sum(t, result(y, 0)), NULL);
    MUST_BE(weft_tape_status(t), WEFT_ERR_SYSTEM);
    weft_values_unref(y);
    weft_tape_close(t);
    return c;
}

/* Its root is a value of rank 2. */
static weft_context *root_elsewhere(weft_agent *agent, weft_tensor *x)
{
    weft_context *c;
    weft_future *pass;
    weft_rref *y;
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tensor *ones = tensor_full(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32, 1);
    MUST_OK(weft_rpc_remote(agent, weft_to_rank(2), "pass_on", WEFT_VALUES(weft_of_tensor(x), weft_of_i64(0)),
                            &(weft_rpc_options){.tape = t}, &y));
    MUST_OK(weft_rref_backward(y, c, &(weft_pass_options){.gradients = {&ones, 1}}, &pass));
    MUST_OK(weft_future_wait(pass, WEFT_FOREVER));
    weft_future_unref(pass);
    weft_tensor_unref(ones);
    weft_rref_unref(y);
    weft_tape_close(t);
    return c;
}

typedef struct scene {
    char folder[40];      /* of traces; "": none */
    char *pages[WORKERS]; /* of metrics, when one of the contexts is still open */
} scene;

static char *page_there(weft_agent *agent, int rank)
{
    const char *text;
    weft_values *page = call_on(NULL, agent, rank, "page", WEFT_NO_VALUES);
    MUST_OK(weft_values_get_string(page, 0, &text));
    char *copy = strdup(text);
    weft_values_unref(page);
    return copy;
}

static void close_everywhere(weft_context *c)
{
    weft_future *gone;
    weft_context_close(c, &gone);
    MUST_OK(weft_future_wait(gone, WEFT_FOREVER));
    weft_future_unref(gone);
}

static void three_passes(weft_agent *agent, void *arg)
{
    scene *s = arg;
    weft_tensor *x = leaf_of(5, 7);
    if (weft_agent_rank(agent) == 0) {
        close_everywhere(chain(agent, x));
        close_everywhere(failure(agent, x));
        weft_context *open = root_elsewhere(agent, x);
        for (int rank = 0; rank < WORKERS; rank++)
            s->pages[rank] = page_there(agent, rank);
        weft_context_close(open, NULL);
    }
    weft_tensor_unref(x);
}

static void trace_to(weft_agent_options *options, void *arg)
{
    static _Thread_local char path[128];
    const scene *s = arg;
    if (!*s->folder)
        return;
    snprintf(path, sizeof(path), "%s/%%r.json", s->folder);
    options->trace_file = path;
}

static void play(world_fabric fabric, scene *s)
{
    world w = {.fabric = fabric,
               .size = WORKERS,
               .seed = 5,
               WORLD_FUNCTIONS(functions),
               .program = three_passes,
               .adjust = trace_to,
               .arg = s};
    make_parameters(&w);
    world_run(&w);
    drop_parameters(&w);
}

static void drop_pages(scene *s)
{
    for (int rank = 0; rank < WORKERS; rank++)
        free(s->pages[rank]);
}

/* ---- Metrics ----------------------------------------------------------------------------------------------------- */

/* The page's line of that name and those labels behind rank and worker. */
static void must_count(const scene *s, int rank, const char *name, const char *labels, int value)
{
    char line[256];
    int length = snprintf(line, sizeof(line), "\n%s{rank=\"%d\",worker=\"worker%d\"%s} ", name, rank, rank, labels);
    const char *found = strstr(s->pages[rank], line);
    if (!found || atoi(found + length) != value)
        fail_msg("expected %d:%s", value, found ? found : line);
}

static void passes_are_counted(void **state)
{
    static const struct {
        const char *name, *labels;
        int values[WORKERS];
    } wanted[] = {
        {"weft_contexts", "", {1, 0, 1}},
        {"weft_contexts_opened_total", "", {3, 0, 0}},
        {"weft_passes_running", "", {0, 0, 0}},
        {"weft_passes_started_total", ",at=\"root\"", {2, 0, 1}},
        {"weft_passes_started_total", ",at=\"other\"", {1, 2, 1}},
        {"weft_passes_finished_total", ",at=\"root\",outcome=\"ok\"", {1, 0, 1}},
        {"weft_passes_finished_total", ",at=\"root\",outcome=\"failed\"", {1, 0, 0}},
        {"weft_passes_finished_total", ",at=\"other\",outcome=\"ok\"", {1, 1, 1}},
        {"weft_passes_finished_total", ",at=\"other\",outcome=\"failed\"", {0, 1, 0}},
        {"weft_passes_undone_total", "", {0, 0, 0}},
        {"weft_pass_seconds_count", ",at=\"root\"", {2, 0, 1}},
        {"weft_pass_seconds_count", ",at=\"other\"", {1, 2, 1}},
        {"weft_pass_steps_total", "", {0, 1, 1}},
        {"weft_pass_messages_sent_total", "", {2, 3, 2}}, /* rank 1 states what is pending, as it has no gradient yet */
        {"weft_pass_messages_received_total", "", {3, 3, 1}},
        {"weft_gradients_sent_total", "", {2, 2, 2}},
        {"weft_gradients_received_total", "", {2, 3, 1}},
        {"weft_gradient_sent_bytes_total", "", {16, 16, 16}}, /* of two float32 each */
        {"weft_gradient_received_bytes_total", "", {16, 24, 8}},
    };
    scene s = {.folder = ""};
    play(*(world_fabric *)*state, &s);
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++)
        for (int rank = 0; rank < WORKERS; rank++)
            must_count(&s, rank, wanted[i].name, wanted[i].labels, wanted[i].values[rank]);
    char *samples = script_run("prometheus_check.py", "", s.pages[1], strlen(s.pages[1]));
    assert_non_null(samples);
    free(samples);
    drop_pages(&s);
}

/* A pass that others had done their part of, and that then fails at its root. */
static void undo(weft_agent *agent, void *arg)
{
    scene *s = arg;
    weft_context *c;
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *x = leaf_of(5, 7), *one = leaf_of(1, 1), *y = tensor_clone(x), *out = NULL;
    static const weft_operator op = {.name = "broken_pipe", .backward = broken_backward};
    MUST_OK(weft_context_open(agent, &c, NULL));
    weft_tape *t = weft_context_tape(c, NULL);
    weft_tape_record(t, &op, (weft_tensors){&x, 1}, (weft_tensors){0}, NULL, (weft_tensors){&y, 1}, &out);
    weft_values *there = call_on(t, agent, 1, "pass_on", WEFT_VALUES(weft_of_tensor(out), weft_of_i64(0)));
    weft_values *other = call_on(t, agent, 2, "pass_on", WEFT_VALUES(weft_of_tensor(one), weft_of_i64(0)));
    weft_dist_backward(t, weft_sum(t, weft_add(t, result(there, 0), result(other, 0))), NULL);
    MUST_BE(weft_tape_status(t), WEFT_ERR_SYSTEM);
    weft_values_unref(there);
    weft_values_unref(other);
    weft_tape_close(t);
    s->pages[2] = page_there(agent, 2);
    weft_context_close(c, NULL);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
    weft_tensor_unref(one);
}

/* In virtual time rank 2 is done before rank 1's gradient has come to the root, in some seed. */
static void what_is_undone_is_counted(void **state)
{
    bool seen = false;
    (void)state;
    for (uint64_t seed = 1; seed <= 40 && !seen; seed++) {
        scene s = {.folder = ""};
        world w = {.size = WORKERS, .seed = seed, WORLD_FUNCTIONS(functions), .program = undo, .arg = &s};
        make_parameters(&w);
        world_run(&w);
        drop_parameters(&w);
        seen = strstr(s.pages[2], "\nweft_passes_undone_total{rank=\"2\",worker=\"worker2\"} 1\n");
        drop_pages(&s);
    }
    assert_true(seen);
}

/* ---- Traces ------------------------------------------------------------------------------------------------------ */

static size_t count_in_traces(const scene *s, const char *part)
{
    size_t count = 0;
    for (int rank = 0; rank < WORKERS; rank++) {
        char path[128], line[4096];
        snprintf(path, sizeof(path), "%s/%d.json", s->folder, rank);
        FILE *from = fopen(path, "r");
        assert_non_null(from);
        while (fgets(line, sizeof(line), from))
            count += strstr(line, part) != NULL;
        fclose(from);
        unlink(path);
    }
    return count;
}

static void passes_are_in_the_trace(void **state)
{
    char command[160];
    scene s = {.folder = "/tmp/weft-passes-XXXXXX"};
    assert_non_null(mkdtemp(s.folder));
    play(*(world_fabric *)*state, &s);
    snprintf(command, sizeof(command), "--passes 7 %s/*.json", s.folder);
    char *failed = script_run("trace_check.py", command, "", 0);
    assert_string_equal(failed ? failed : "nothing", "2\n"); /* one at its root, and where its operator was */
    free(failed);
    assert_int_equal(count_in_traces(&s, "\"cat\":\"stage\",\"name\":\"step\""), 2);
    assert_int_equal(rmdir(s.folder), 0);
    drop_pages(&s);
}

int main(void)
{
    static world_fabric sim = WORLD_SIM, tcp = WORLD_TCP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(passes_are_counted, &sim),
        cmocka_unit_test_prestate(passes_are_counted, &tcp),
        cmocka_unit_test(what_is_undone_is_counted),
        cmocka_unit_test_prestate(passes_are_in_the_trace, &sim),
        cmocka_unit_test_prestate(passes_are_in_the_trace, &tcp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
