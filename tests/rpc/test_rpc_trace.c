/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_trace.c - trace files: whole, of the right form, and telling who called whom. */
#include "children.h"
#include "rpc/script.h"
#include "rpc/world.h"
#include "tensors.h"

#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char folder[] = "/tmp/weft-trace-XXXXXX";
static bool rank_1_is_silent; /* it writes no trace */

/* Passes its tensor on to "inner" of that rank, and the answer back. */
static weft_status call_inner(weft_call *call, int rank)
{
    weft_values *values = NULL;
    weft_rpc_options options = {.parent = call};
    weft_args arguments = WEFT_VALUES(weft_of_tensor(weft_call_tensor(call, 0)));
    weft_status status =
        weft_rpc_sync(weft_call_agent(call), weft_to_rank(rank), "inner", arguments, &options, &values);
    weft_tensor *tensor = NULL;
    if (!status)
        status = weft_values_get_tensor(values, 0, &tensor);
    if (!status)
        weft_call_give(call, WEFT_VALUES(weft_of_tensor(tensor)));
    weft_values_unref(values);
    return status;
}

static weft_status run_outer(weft_call *call, void *user)
{
    return call_inner(call, 2);
}

static weft_status run_nest(weft_call *call, void *user)
{
    return call_inner(call, weft_agent_rank(weft_call_agent(call)));
}

/* Returns when the time limit has ended the call. */
static weft_status run_late(weft_call *call, void *user)
{
    weft_future *ended = weft_call_cancellation(call);
    MUST_BE(weft_future_wait(ended, 20000), WEFT_ERR_TIMEOUT);
    weft_future_unref(ended);
    return WEFT_OK;
}

static weft_status run_fail(weft_call *call, void *user)
{
    return WEFT_ERR_SHAPE;
}

static const weft_function functions[] = {
    {.name = "outer", .run = run_outer, .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}},
    {.name = "inner", .run = world_run_echo, .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}},
    {.name = "fail \"\\\n\xff", .run = run_fail, .flags = WEFT_FUNCTION_INLINE},
    {.name = "nest", .run = run_nest, .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}},
    {.name = "late", .run = run_late},
};

static void trace_to(weft_agent_options *options, void *arg)
{
    static _Thread_local char path[128];
    snprintf(path, sizeof(path), "%s/%s-%%r.json", folder, (const char *)arg);
    options->trace_file = rank_1_is_silent && options->rank == 1 ? NULL : path;
}

static char *read_file(const char *name, int rank, size_t *size)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/%s-%d.json", folder, name, rank);
    FILE *from = fopen(path, "r");
    char *text = calloc(1, 16 << 20);
    MUST(text);
    *size = from ? fread(text, 1, (16 << 20) - 1, from) : 0;
    if (from)
        fclose(from);
    return text;
}

static int check(const char *arguments)
{
    char *output = script_run("trace_check.py", arguments, "", 0);
    int spans = output ? atoi(output) : -1;
    free(output);
    return spans;
}

static char *files_of(const char *how, const char *name)
{
    static char text[512];
    snprintf(text, sizeof(text), "%s %s/%s-*.json", how, folder, name);
    return text;
}

/* 1 MiB: both ways it is pulled, so every stage takes place. */
static void call_through(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(1 << 18), WEFT_DTYPE_FLOAT32);
    MUST(tensor);
    weft_args arguments = WEFT_VALUES(weft_of_tensor(tensor));
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "outer", arguments, NULL, NULL));
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), functions[2].name, WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_REMOTE);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(2), "nobody has it", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_NOT_FOUND);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "inner", arguments, NULL, NULL));
    weft_tensor_unref(tensor);
}

static void run_chain(world_fabric fabric, const char *name)
{
    world w = {.fabric = fabric,
               .size = 3,
               .seed = 3,
               WORLD_FUNCTIONS(functions),
               .program = call_through,
               .adjust = trace_to,
               .arg = (void *)name};
    world_run(&w);
}

static void spans_nest_over_three_workers(void **state)
{
    bool sim = *(world_fabric *)*state == WORLD_SIM;
    const char *name = sim ? "sim" : "tcp";
    size_t size;
    run_chain(*(world_fabric *)*state, name);
    assert_int_equal(check(files_of("--chain", name)), 10);
    char *text = read_file(name, 0, &size);
    assert_non_null(strstr(text, "\"name\":\"fail \\\"\\\\\\u000a\\u00ff\""));
    assert_non_null(strstr(text, "\"status\":\"NOT_FOUND\""));
    assert_non_null(strstr(text, "\"process_name\""));
    free(text);
    text = read_file(name, 1, &size);
    assert_non_null(strstr(text, "\"remote_status\":\"SHAPE\""));
    free(text);
}

static void a_seed_gives_the_same_file(void **state)
{
    run_chain(WORLD_SIM, "again");
    for (int rank = 0; rank < 3; rank++) {
        size_t size, size_again;
        char *text = read_file("sim", rank, &size), *again = read_file("again", rank, &size_again);
        assert_int_equal(size, size_again);
        assert_memory_equal(text, again, size);
        free(text);
        free(again);
    }
}

/* ---- Calls to oneself ----------------------------------------------------------------------------------------- */

enum { SELF_AT_ONCE = 8, SELF_SPANS = 2 * (2 + 1 + 1 + 1 + 1 + SELF_AT_ONCE) };

/* Well, within one another, failing, to nobody, out of time before the handler ends, many at once; and one to
 * another. */
static void call_oneself(weft_agent *agent, void *arg)
{
    weft_rpc_options soon = {.timeout_ms = 1};
    weft_future *futures[SELF_AT_ONCE];
    if (weft_agent_rank(agent) != 0)
        return;
    weft_tensor *tensor = tensor_zeros(WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32);
    MUST(tensor);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "nest", WEFT_VALUES(weft_of_tensor(tensor)), NULL, NULL));
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), functions[2].name, WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_REMOTE);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), functions[2].name, WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_REMOTE);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "nobody has it", WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_NOT_FOUND);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "late", WEFT_NO_VALUES, &soon, NULL), WEFT_ERR_TIMEOUT);
    for (int i = 0; i < SELF_AT_ONCE; i++)
        MUST_OK(weft_rpc_async(agent, weft_to_rank(0), functions[2].name, WEFT_NO_VALUES, NULL, &futures[i]));
    for (int i = 0; i < SELF_AT_ONCE; i++) {
        MUST_BE(weft_future_wait(futures[i], WEFT_FOREVER), WEFT_ERR_REMOTE);
        weft_future_unref(futures[i]);
    }
    weft_tensor_unref(tensor);
}

static void a_call_to_oneself_has_both_spans(void **state)
{
    const char *name = *(world_fabric *)*state == WORLD_SIM ? "self-sim" : "self-tcp";
    size_t size;
    world w = {.fabric = *(world_fabric *)*state,
               .size = 2,
               .seed = 9,
               WORLD_FUNCTIONS(functions),
               .program = call_oneself,
               .adjust = trace_to,
               .arg = (void *)name};
    world_run(&w);
    assert_int_equal(check(files_of("--self", name)), SELF_SPANS);
    char *text = read_file(name, 0, &size), *late = strstr(text, "\"cat\":\"call\",\"name\":\"late\"");
    assert_non_null(late);
    late[strcspn(late, "\n")] = '\0';
    assert_non_null(strstr(late, "\"peer\":0,\"status\":\"TIMEOUT\""));
    free(text);
}

/* ---- weft-trace ----------------------------------------------------------------------------------------------- */

static void merge(const char *arguments)
{
    char *output = script_run("../../programs/weft_trace.py", arguments, "", 0);
    assert_non_null(output);
    free(output);
}

static void files_are_joined(void **state)
{
    char arguments[256];
    snprintf(arguments, sizeof(arguments), "-o %s/all.json %s/tcp-0.json %s/tcp-1.json %s/tcp-2.json", folder, folder,
             folder, folder);
    merge(arguments);
    snprintf(arguments, sizeof(arguments), "--chain %s/all.json", folder);
    assert_int_equal(check(arguments), 10);
}

/* A file of a host whose clock began `later_s` seconds after the epoch; its only event is 5 us after that. */
static void write_host(const char *host, int rank, unsigned later_s, bool whole)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/host-%d.json", folder, rank);
    FILE *to = fopen(path, "w");
    assert_non_null(to);
    fprintf(to,
            "[\n{\"ph\":\"M\",\"cat\":\"\",\"name\":\"weft_anchor\",\"pid\":%d,\"tid\":1,\"args\":{\"host\":\"%s\","
            "\"clock_ns\":\"1000\",\"realtime_ns\":\"%u000001000\"}},\n",
            rank + 1, host, later_s);
    fprintf(to, "{\"ph\":\"X\",\"cat\":\"stage\",\"name\":\"x\",\"pid\":%d,\"tid\":1,\"ts\":5.000,\"dur\":1}%s",
            rank + 1, whole ? "\n]\n" : ",\n{\"ph\":\"X\",\"na");
    fclose(to);
}

static void hosts_are_put_in_line(void **state)
{
    char arguments[256];
    size_t size;
    write_host("a", 1, 100, true);
    write_host("a", 2, 107, true); /* the same host: one clock, whatever the time of day did */
    write_host("b", 3, 103, false);
    snprintf(arguments, sizeof(arguments), "-o %s/hosts-0.json %s/host-1.json %s/host-2.json %s/host-3.json", folder,
             folder, folder, folder);
    merge(arguments);
    char *text = read_file("hosts", 0, &size);
    assert_non_null(strstr(text, "\"pid\":2,\"tid\":1,\"ts\":5.0,"));
    assert_non_null(strstr(text, "\"pid\":3,\"tid\":1,\"ts\":5.0,"));
    assert_non_null(strstr(text, "\"pid\":4,\"tid\":1,\"ts\":3000005.0,"));
    free(text);
    snprintf(arguments, sizeof(arguments), "%s/none.json 2> /dev/null", folder);
    assert_null(script_run("../../programs/weft_trace.py", arguments, "", 0));
}

/* ---- Gaps ----------------------------------------------------------------------------------------------------- */

/* The trace goes on below a worker that writes none. */
static void a_silent_worker_passes_the_trace_on(void **state)
{
    const char *name = *(world_fabric *)*state == WORLD_SIM ? "gap-sim" : "gap-tcp";
    size_t size;
    rank_1_is_silent = true;
    run_chain(*(world_fabric *)*state, name);
    rank_1_is_silent = false;
    char *text = read_file(name, 0, &size), *below = read_file(name, 2, &size);
    char *call = strstr(text, "\"name\":\"outer\""), *served = strstr(below, "\"name\":\"inner\"");
    assert_non_null(call);
    assert_non_null(served);
    char *trace = strstr(call, "\"trace\""), *span = strstr(call, "\"span\":") + strlen("\"span\":");
    char *parent = strstr(served, "\"parent\":") + strlen("\"parent\":");
    assert_memory_equal(trace, strstr(served, "\"trace\""), strcspn(trace, ","));
    assert_memory_equal(parent, span, strcspn(span, ",}"));
    free(text);
    free(below);
}

/* ---- More than a buffer holds --------------------------------------------------------------------------------- */

enum { MANY = 5000, AT_ONCE = 2500 };

static void call_often(weft_agent *agent, void *arg)
{
    weft_future *futures[AT_ONCE];
    if (weft_agent_rank(agent) != 0)
        return;
    for (int done = 0; done < MANY; done += AT_ONCE) {
        for (int i = 0; i < AT_ONCE; i++)
            MUST_OK(weft_rpc_async(agent, weft_to_rank(1), functions[2].name, WEFT_NO_VALUES, NULL, &futures[i]));
        for (int i = 0; i < AT_ONCE; i++) {
            MUST_BE(weft_future_wait(futures[i], WEFT_FOREVER), WEFT_ERR_REMOTE);
            weft_future_unref(futures[i]);
        }
    }
}

/* Spans of a file, by its own word on those it lost. */
static int count_with_dropped(const char *name, int rank)
{
    char path[128];
    size_t size;
    snprintf(path, sizeof(path), "--cut %s/%s-%d.json", folder, name, rank);
    int spans = check(path);
    char *text = read_file(name, rank, &size), *dropped = strstr(text, "\"dropped\":");
    assert_non_null(dropped);
    spans += atoi(dropped + strlen("\"dropped\":"));
    free(text);
    return spans;
}

static void every_span_is_written_or_counted(void **state)
{
    const char *name = *(world_fabric *)*state == WORLD_SIM ? "many-sim" : "many-tcp";
    world w = {.fabric = *(world_fabric *)*state,
               .size = 2,
               .seed = 4,
               WORLD_FUNCTIONS(functions),
               .program = call_often,
               .adjust = trace_to,
               .arg = (void *)name};
    world_run(&w);
    assert_int_equal(count_with_dropped(name, 0), MANY);
    assert_int_equal(count_with_dropped(name, 1), MANY);
    assert_int_equal(check(files_of("", name)), 2 * MANY); /* they are below the bound: none is lost */
}

/* ---- Names ---------------------------------------------------------------------------------------------------- */

#define WIDE_NAME                                                                                                      \
    "gr\xc3\xb6\xc3\x9f"                                                                                               \
    "e-\xe2\x82\xac"

static void plain_path(weft_agent_options *options, void *arg)
{
    static _Thread_local char path[128];
    snprintf(path, sizeof(path), "%s/%s.json", folder, (const char *)arg);
    options->trace_file = path;
}

static void call_wide(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), WIDE_NAME, WEFT_NO_VALUES, NULL, NULL));
}

/* A path without %r is not one file for all: the rank goes before its ending. And a name in UTF-8 stays one. */
static void each_rank_has_a_file(void **state)
{
    static const weft_function wide[] = {{.name = WIDE_NAME, .run = world_run_nothing}};
    world w = {.fabric = WORLD_TCP,
               .size = 2,
               WORLD_FUNCTIONS(wide),
               .program = call_wide,
               .adjust = plain_path,
               .arg = (void *)"plain"};
    world_run(&w);
    for (int rank = 0; rank < 2; rank++) {
        char path[160], text[8192];
        snprintf(path, sizeof(path), "%s/plain.%d.json", folder, rank);
        FILE *from = fopen(path, "r");
        assert_non_null(from);
        text[fread(text, 1, sizeof(text) - 1, from)] = '\0';
        fclose(from);
        assert_non_null(strstr(text, "\"name\":\"" WIDE_NAME "\""));
    }
    char both[300];
    snprintf(both, sizeof(both), "%s/plain.0.json %s/plain.1.json", folder, folder);
    assert_int_equal(check(both), 2);
}

/* ---- Death and errors ----------------------------------------------------------------------------------------- */

static weft_status open_alone(const char *path, weft_agent **out, weft_error **error)
{
    weft_agent_options options = {.functions = functions,
                                  .function_count = sizeof(functions) / sizeof(*functions),
                                  .has_rank = true,
                                  .world_size = 1,
                                  .master_port = world_free_port(),
                                  .trace_file = path};
    return weft_agent_open(&options, out, error);
}

/* Calls itself, waits until a span is in the file, and is gone. */
static void die_in_the_middle(void)
{
    char path[128];
    weft_agent *agent = NULL;
    snprintf(path, sizeof(path), "%s/dead-%%r.json", folder);
    MUST_OK(open_alone(path, &agent, NULL));
    for (bool seen = false; !seen;) {
        size_t size;
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), functions[2].name, WEFT_NO_VALUES, NULL, NULL), WEFT_ERR_REMOTE);
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
        char *text = read_file("dead", 0, &size);
        seen = strstr(text, "\"cat\":\"serve\"") != NULL;
        free(text);
    }
    _exit(0);
}

static void a_file_is_valid_when_its_writer_died(void **state)
{
    child writer = child_fork("writer");
    if (!writer.pid)
        die_in_the_middle();
    child_must_end_well(&writer, 1);
    assert_true(check(files_of("--cut", "dead")) > 0);
}

static void a_file_that_cannot_be_written_is_said_at_once(void **state)
{
    char path[128];
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    snprintf(path, sizeof(path), "%s/no/such/folder-%%r.json", folder);
    assert_int_equal(open_alone(path, &agent, &error), WEFT_ERR_IO);
    assert_non_null(strstr(weft_error_message(error), "no/such/folder-0.json"));
    weft_error_unref(error);
}

/* ---- Spans of the program ---- */

static size_t count_of(const char *text, const char *what)
{
    size_t count = 0;
    for (; (text = strstr(text, what)); text++)
        count++;
    return count;
}

static void *mark_often(void *arg)
{
    weft_trace_span outer, inner;
    for (int i = 0; i < 100; i++) {
        char name[] = "inner";
        MUST_OK(weft_trace_begin(arg, "outer", &outer));
        MUST_OK(weft_trace_begin(arg, name, &inner));
        name[0] = 'X'; /* the name was copied */
        MUST_OK(weft_trace_end(&inner));
        MUST_OK(weft_trace_end(&outer));
    }
    return NULL;
}

static void spans_of_the_program_are_written(void **state)
{
    char path[128], merged[256], longest[WEFT_TRACE_NAME_MAX + 1] = "";
    size_t size;
    weft_agent *agent = NULL;
    weft_trace_span over, lost, *spans[2] = {&over, &lost};
    pthread_t threads[4];
    memset(longest, '"', WEFT_TRACE_NAME_MAX);
    snprintf(path, sizeof(path), "%s/own-%%r.json", folder);
    assert_int_equal(open_alone(path, &agent, NULL), WEFT_OK);
    assert_int_equal(weft_trace_begin(agent, longest, spans[0]), WEFT_OK);
    assert_int_equal(weft_trace_begin(agent, "never ended", spans[1]), WEFT_OK);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, mark_often, agent), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(weft_trace_end(&over), WEFT_OK);
    assert_int_equal(weft_trace_end(&over), WEFT_ERR_INVALID);
    assert_int_equal(weft_agent_close(agent, WEFT_FOREVER), WEFT_OK);
    assert_int_equal(check(files_of("", "own")), 0); /* tracks are named, and no slice crosses another */
    char *text = read_file("own", 0, &size);
    assert_int_equal(count_of(text, "\"cat\":\"program\",\"name\":\"outer\""), 400);
    assert_int_equal(count_of(text, "\"cat\":\"program\",\"name\":\"inner\""), 400);
    assert_int_equal(count_of(text, "\\\""), WEFT_TRACE_NAME_MAX);
    assert_int_equal(count_of(text, "never ended"), 0);
    free(text);
    snprintf(merged, sizeof(merged), "-o %s/merged-0.json %s/own-0.json", folder, folder);
    merge(merged);
    text = read_file("merged", 0, &size);
    assert_int_equal(count_of(text, "inner"), 400);
    free(text);
}

static void spans_of_the_program_without_a_trace(void **state)
{
    char too_long[WEFT_TRACE_NAME_MAX + 2] = "";
    weft_agent *agent = NULL;
    weft_trace_span span;
    memset(too_long, 'x', WEFT_TRACE_NAME_MAX + 1);
    assert_int_equal(open_alone(NULL, &agent, NULL), WEFT_OK);
    assert_int_equal(weft_trace_begin(agent, "span", &span), WEFT_OK);
    assert_int_equal(weft_trace_end(&span), WEFT_OK);
    assert_int_equal(weft_trace_end(&span), WEFT_ERR_INVALID);
    assert_int_equal(weft_trace_end(NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_trace_begin(agent, "span", NULL), WEFT_ERR_INVALID);
    const char *const wrong[] = {NULL, "", too_long};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(weft_trace_begin(agent, wrong[i], &span), WEFT_ERR_INVALID);
        assert_int_equal(weft_trace_end(&span), WEFT_ERR_INVALID);
    }
    assert_int_equal(weft_trace_begin(NULL, "span", &span), WEFT_ERR_INVALID);
    assert_int_equal(weft_trace_end(&span), WEFT_ERR_INVALID);
    assert_int_equal(weft_agent_close(agent, WEFT_FOREVER), WEFT_OK);
}

static int make_folder(void **state)
{
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    return system(command);
}

int main(void)
{
    static world_fabric sim = WORLD_SIM, tcp = WORLD_TCP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_valid_when_its_writer_died), /* it forks: before any thread is there */
        cmocka_unit_test_prestate(spans_nest_over_three_workers, &sim),
        cmocka_unit_test_prestate(spans_nest_over_three_workers, &tcp),
        cmocka_unit_test_prestate(a_call_to_oneself_has_both_spans, &sim),
        cmocka_unit_test_prestate(a_call_to_oneself_has_both_spans, &tcp),
        cmocka_unit_test(a_seed_gives_the_same_file),
        cmocka_unit_test(files_are_joined),
        cmocka_unit_test(hosts_are_put_in_line),
        cmocka_unit_test_prestate(a_silent_worker_passes_the_trace_on, &sim),
        cmocka_unit_test_prestate(a_silent_worker_passes_the_trace_on, &tcp),
        cmocka_unit_test_prestate(every_span_is_written_or_counted, &sim),
        cmocka_unit_test_prestate(every_span_is_written_or_counted, &tcp),
        cmocka_unit_test(each_rank_has_a_file),
        cmocka_unit_test(a_file_that_cannot_be_written_is_said_at_once),
        cmocka_unit_test(spans_of_the_program_are_written),
        cmocka_unit_test(spans_of_the_program_without_a_trace),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
