/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_metrics_file.c - metrics and the dump in files: names, contents, new contents, the end, files that fail. */
#include "rpc/script.h"
#include "rpc/world.h"

#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>

static const weft_function functions[] = {{.name = "nothing", .run = world_run_nothing}};

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/weft-metrics-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

/* Fails if a file is left. */
static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static const char *in_folder(const char *name)
{
    static char path[4][256];
    static int next;
    char *out = path[next++ % 4];
    snprintf(out, sizeof(path[0]), "%s/%s", folder, name);
    return out;
}

static weft_status open_with(const char *file, weft_agent **out, weft_error **error)
{
    weft_agent_options options = {.functions = functions,
                                  .function_count = 1,
                                  .has_rank = true,
                                  .world_size = 1,
                                  .master_port = world_free_port(),
                                  .metrics_file = file};
    return weft_agent_open(&options, out, error);
}

/* NULL: there is no such file. */
static char *read_file(const char *path)
{
    FILE *from = fopen(path, "re");
    if (!from)
        return NULL;
    char *text = calloc(1, 1 << 20);
    MUST(text);
    MUST(fread(text, 1, (1 << 20) - 1, from) > 0);
    fclose(from);
    return text;
}

static void test_files(void **state)
{
    weft_agent *agent = NULL;
    (void)state;
    MUST_OK(open_with(in_folder("weft.%r.prom"), &agent, NULL));
    char *dump = read_file(in_folder("weft.0.prom.json"));
    MUST(dump && dump[0] == '{' && strstr(dump, "worker0") && strrchr(dump, '}'));
    free(dump);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL));
    static const char call[] = "weft_calls_total{function=\"nothing\",outcome=\"ok\",peer=\"0\",rank=\"0\","
                               "side=\"caller\",worker=\"worker0\"} 1\n";
    char *text = read_file(in_folder("weft.0.prom"));
    for (int tries = 0; tries < 6000 && !strstr(text, "\"nothing\""); tries++) { /* it is written again after 5 s */
        free(text);
        usleep(10000);
        text = read_file(in_folder("weft.0.prom"));
        MUST(text); /* always whole: it is renamed */
    }
    char *samples = script_run("prometheus_check.py", "", text, strlen(text));
    MUST(samples && strstr(samples, call));
    free(samples);
    free(text);
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    assert_int_equal(access(in_folder("weft.0.prom"), F_OK), -1);
    assert_int_equal(access(in_folder("weft.0.prom.json"), F_OK), -1);
}

static char said[512]; /* the last warning */
static atomic_int warnings;

static void keep_warning(weft_log_level level, const char *line, void *arg)
{
    (void)arg;
    if (level != WEFT_LOG_WARN || !strstr(line, "metrics"))
        return;
    snprintf(said, sizeof(said), "%s", line);
    atomic_fetch_add(&warnings, 1);
}

/* The job goes on without its metrics. */
static void test_folder_that_goes(void **state)
{
    weft_agent *agent = NULL;
    (void)state;
    MUST(mkdir(in_folder("gone"), 0700) == 0);
    weft_logging_set_sink(keep_warning, NULL);
    MUST_OK(open_with(in_folder("gone/m"), &agent, NULL));
    MUST(rename(in_folder("gone"), in_folder("moved")) == 0);
    for (int tries = 0; !atomic_load(&warnings) && tries < 6000; tries++)
        usleep(10000);
    assert_int_equal(atomic_load(&warnings), 1);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, NULL, NULL));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    weft_logging_set_sink(NULL, NULL);
    MUST(strstr(said, "gone/m") && strstr(said, "No such file or directory"));
    char command[300];
    snprintf(command, sizeof(command), "rm -r '%s'", in_folder("moved"));
    MUST(system(command) == 0);
}

static void test_refused(void **state)
{
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    (void)state;
    MUST_BE(open_with(in_folder("no/folder"), &agent, &error), WEFT_ERR_IO);
    MUST(strstr(weft_error_message(error), "no/folder") && strstr(weft_error_message(error), "No such file"));
    weft_error_unref(error);
    MUST_BE(open_with("/dev/full/x", &agent, NULL), WEFT_ERR_IO);
    MUST_BE(open_with("/dev/null", &agent, NULL), WEFT_ERR_INVALID);
    MUST(access("/dev/null", F_OK) == 0);
    weft_agent_options threadless = {
        .has_rank = true, .world_size = 1, .master_port = world_free_port(), .no_threads = true};
    threadless.metrics_file = in_folder("m");
    MUST_BE(weft_agent_open(&threadless, &agent, NULL), WEFT_ERR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_files, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_folder_that_goes, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
