/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_file_signals.c - writes to pipes and sockets whose reader has gone, and of a file over the process's limit,
 * fail. No signal ends the process. Masks, handlers and pending signals stay as they are.
 */
#include "children.h"
#include "base/text/log.h"
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { IN = 300, OUT = 200 /* floats: more than a pipe or a socket holds */, KIND_PIPE = 0, KIND_SOCKET, KINDS };

/* A stream without a buffer, whose reader has gone. */
static FILE *open_broken(int kind)
{
    int ends[2];
    assert_int_equal(kind == KIND_PIPE ? pipe(ends) : socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    close(ends[0]);
    FILE *to = fdopen(ends[1], "w");
    assert_non_null(to);
    setvbuf(to, NULL, _IONBF, 0);
    return to;
}

/* As the program had it: nothing is blocked, nothing pending, no handler was set. */
static void must_be_untouched(void)
{
    sigset_t set;
    struct sigaction action;
    assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &set), 0);
    assert_false(sigismember(&set, SIGPIPE) || sigismember(&set, SIGXFSZ));
    assert_int_equal(sigpending(&set), 0);
    assert_false(sigismember(&set, SIGPIPE) || sigismember(&set, SIGXFSZ));
    assert_int_equal(sigaction(SIGPIPE, NULL, &action), 0);
    assert_true(action.sa_handler == SIG_DFL);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

static weft_status save(const char *path, bool optimizer)
{
    weft_module *module = linear_create(IN, OUT, false, 1, NULL);
    weft_tensors p = weft_module_parameters(module);
    weft_optimizer *adam = optimizer_create(p, &(weft_optimizer_spec){.type = &weft_adam_type}, NULL);
    weft_gradient g[] = {{p.items[0], NULL}, {p.items[1], NULL}};
    weft_error *error = NULL;
    assert_int_equal(weft_optimizer_apply(adam, (weft_gradients){g, 2}), WEFT_OK);
    weft_status status = optimizer ? weft_optimizer_save(adam, path, &error) : weft_module_save(module, path, &error);
    assert_true(status == WEFT_OK || strstr(weft_error_message(error), path));
    weft_error_unref(error);
    weft_optimizer_unref(adam);
    weft_module_unref(module);
    return status;
}

/* Another process opens the pipe, reads a little, and goes. */
static child start_reader(const char *path)
{
    char some[10];
    child reader = child_fork("reader");
    if (reader.pid)
        return reader;
    int fd = open(path, O_RDONLY);
    _exit(fd >= 0 && read(fd, some, sizeof(some)) > 0 ? 0 : 1);
}

static void a_module_and_an_optimizer_to_a_pipe_without_reader(void **state)
{
    static const char path[] = "pipe";
    for (int optimizer = 0; optimizer < 2; optimizer++) {
        assert_int_equal(mkfifo(path, 0600), 0);
        child reader = start_reader(path);
        assert_int_equal(save(path, optimizer), WEFT_ERR_IO);
        child_must_end_well(&reader, 1);
        assert_int_equal(unlink(path), 0);
        must_be_untouched();
    }
}

/* To standard output, which is a pipe or a socket then. */
static void a_module_to_standard_output_without_reader(void **state)
{
    for (int kind = 0; kind < KINDS; kind++) {
        FILE *to = open_broken(kind);
        fflush(stdout);
        int before = dup(STDOUT_FILENO);
        assert_true(dup2(fileno(to), STDOUT_FILENO) == STDOUT_FILENO);
        weft_status status = save("/dev/stdout", false);
        assert_true(dup2(before, STDOUT_FILENO) == STDOUT_FILENO);
        assert_int_equal(status, WEFT_ERR_IO);
        close(before);
        fclose(to);
        must_be_untouched();
    }
}

/* In a child, because the limit is the process's. No part of the file stays. */
static void a_file_over_the_limit_of_the_process(void **state)
{
    static const char path[] = "file";
    child saver = child_fork("saver");
    if (!saver.pid) {
        struct rlimit limit = {.rlim_cur = 10000, .rlim_max = 10000};
        _exit(setrlimit(RLIMIT_FSIZE, &limit) || save(path, false) != WEFT_ERR_IO);
    }
    child_must_end_well(&saver, 1);
    assert_int_equal(access(path, F_OK), -1);
}

/* ---- Streams of the program's ------------------------------------------------------------------------------------ */

static void print_an_error(FILE *to, weft_agent *agent)
{
    weft_error *error = weft_error_create(WEFT_ERR_IO, "some text");
    weft_error_print(error, to);
    weft_error_unref(error);
}

static void print_tensor(FILE *to, weft_agent *agent)
{
    weft_tensor *x = tensor_arange(20, WEFT_DTYPE_FLOAT32);
    weft_tensor_print(x, to);
    weft_tensor_print(NULL, to);
    weft_tensor_unref(x);
}

static void write_metrics(FILE *to, weft_agent *agent)
{
    MUST_BE(weft_metrics_write(agent, to), WEFT_ERR_IO);
}

static void dump(FILE *to, weft_agent *agent)
{
    MUST_BE(weft_debug_dump(agent, to), WEFT_ERR_IO);
}

static void print_algorithms(FILE *to, weft_agent *agent)
{
    weft_group *group;
    MUST_OK(weft_group_open(agent, "all", NULL, 0, 0, &group, NULL));
    weft_group_print_algorithms(group, to);
    weft_group_close(group);
}

/* While standard error is that stream: the log, and the end of a program. */
static void log_and_report(FILE *to, weft_agent *agent)
{
    fflush(stderr);
    int before = dup(STDERR_FILENO);
    MUST(dup2(fileno(to), STDERR_FILENO) == STDERR_FILENO);
    wfi_log(WEFT_LOG_ERROR, "some text");
    int code = weft_report(WEFT_ERR_IO);
    MUST(dup2(before, STDERR_FILENO) == STDERR_FILENO);
    clearerr(stderr);
    close(before);
    MUST(code == 1);
}

static void (*const writers[])(FILE *to, weft_agent *agent) = {print_an_error, print_tensor,     write_metrics,
                                                               dump,           print_algorithms, log_and_report};

static void streams(weft_agent *agent, void *arg)
{
    for (size_t i = 0; i < sizeof(writers) / sizeof(*writers); i++)
        for (int kind = 0; kind < KINDS; kind++) {
            FILE *to = open_broken(kind);
            writers[i](to, agent);
            fclose(to);
            must_be_untouched();
        }
}
WORLD_TEST(streams, 1, 1, .size = 1)

/* The trace goes to a pipe whose reader goes; calls go on, and the agent closes. */
static void a_trace_to_a_pipe_without_reader(void **state)
{
    static const char path[] = "pipe";
    weft_agent *agent = NULL;
    weft_values *results;
    static const weft_function echo = {
        .name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo};
    assert_int_equal(mkfifo(path, 0600), 0);
    child reader = start_reader(path);
    weft_agent_options options = {
        .has_rank = true, .world_size = 1, .master_port = world_free_port(), .trace_file = path};
    world_no_threads(&options, NULL); /* this thread writes */
    assert_int_equal(weft_agent_open(&options, &agent, NULL), WEFT_OK);
    child_must_end_well(&reader, 1);
    assert_int_equal(weft_agent_register(agent, &echo), WEFT_OK);
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    for (int i = 0; i < 100; i++) {
        assert_int_equal(weft_rpc_sync(agent, weft_to_rank(0), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &results),
                         WEFT_OK);
        weft_values_unref(results);
    }
    assert_int_equal(weft_agent_close(agent, WEFT_FOREVER), WEFT_OK);
    weft_tensor_unref(x);
    assert_int_equal(unlink(path), 0);
    must_be_untouched();
}

/* ---- The program's own signals ----------------------------------------------------------------------------------- */

/* It blocks SIGPIPE and has one pending: that one stays. */
static void a_signal_that_was_pending_before_stays(void **state)
{
    static const struct timespec none;
    sigset_t set;
    FILE *to = open_broken(KIND_PIPE);
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    assert_int_equal(pthread_sigmask(SIG_BLOCK, &set, NULL), 0);
    print_an_error(to, NULL);
    assert_int_equal(sigtimedwait(&set, NULL, &none), -1); /* ours is gone */
    assert_int_equal(pthread_kill(pthread_self(), SIGPIPE), 0);
    print_an_error(to, NULL);
    assert_int_equal(sigtimedwait(&set, NULL, &none), SIGPIPE);
    assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &set, NULL), 0);
    fclose(to);
    must_be_untouched();
}

static volatile sig_atomic_t handled;

static void count_signal(int number)
{
    handled++;
}

/* Its handler hears of its own writes alone. */
static void a_handler_is_not_called(void **state)
{
    FILE *to = open_broken(KIND_PIPE);
    assert_true(signal(SIGPIPE, count_signal) == SIG_DFL);
    print_an_error(to, NULL);
    assert_int_equal(handled, 0);
    assert_int_equal(fputc('x', to), EOF);
    assert_int_equal(handled, 1);
    assert_true(signal(SIGPIPE, SIG_DFL) == count_signal);
    fclose(to);
}

static char folder[] = "weft-test-file-signals-XXXXXX";

static int enter_folder(void **state)
{
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int remove_folder(void **state)
{
    return chdir("..") == 0 ? rmdir(folder) : -1;
}

UNIT_MAIN_WITH(enter_folder, remove_folder, a_module_and_an_optimizer_to_a_pipe_without_reader,
               a_module_to_standard_output_without_reader, a_file_over_the_limit_of_the_process,
               a_signal_that_was_pending_before_stays, a_handler_is_not_called, a_trace_to_a_pipe_without_reader,
               test_streams)
