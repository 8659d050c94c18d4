/* SPDX-License-Identifier: Apache-2.0 */
/* test_spawn_job.c - children of a job; this program is its own child, told by argv[1] what to do. */
#include "unit.h"

#include "job/launch/launch.h"
#include "job/store/server.h"

#include "base/clock.h"
#include "base/socket.h"

#include <weft/agent.h>
#include <weft/log.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- As a child ------------------------------------------------------------------------------------------------ */

static int env_number(const char *name)
{
    const char *text = getenv(name);
    return text ? atoi(text) : -1;
}

static int count_descriptors(void)
{
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count - 3; /* ".", "..", and the folder's own */
}

/* 0 if the environment is what the job says it is; argv[2]: the world size. */
static int check_environment(char **argv)
{
    const char *address = getenv("MASTER_ADDR");
    int fd, rank = env_number("RANK"), world_size = env_number("WORLD_SIZE"), port = env_number("MASTER_PORT");
    if (rank < 1 || rank >= world_size || world_size != atoi(argv[2]) || env_number("LOCAL_WORLD_SIZE") != world_size)
        return 2;
    if (!address || strcmp(address, "127.0.0.1") != 0)
        return 3;
    return wfi_connect_to(address, port, wfi_deadline(&wfi_clock_real, 5000), &fd) == 0 ? 0 : 4;
}

static int check_signals(void)
{
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    for (int number = 1; number < 32; number++)
        if (sigismember(&mask, number) == 1)
            return 5;
    return 0;
}

/* The secret is found once, is of 32 bytes, and leaves nothing behind: no descriptor, no variable; the next agent
 * has it. */
static int check_secret(void)
{
    wfi_secret first, second;
    int before = count_descriptors();
    const char *number = getenv("WEFT_SECRET_FD");
    if (!number || getenv("WEFT_SECRET") || getenv("WEFT_SECRET_FILE"))
        return 9;
    int fd = atoi(number);
    if (wfi_secret_find(NULL, 0, &first, NULL) || first.size != WFI_SECRET_RANDOM)
        return 10;
    if (getenv("WEFT_SECRET_FD") || fcntl(fd, F_GETFD) >= 0 || count_descriptors() != before - 1)
        return 11;
    if (wfi_secret_find(NULL, 0, &second, NULL) || second.size != first.size)
        return 12;
    return memcmp(first.bytes, second.bytes, first.size) == 0 ? 0 : 13;
}

/* A child that starts a job of its own before it opens an agent: its children see their own secret's descriptor
 * only. */
static int check_grandchild(char **argv)
{
    const char *arguments[] = {"child", "descriptors", argv[2], NULL};
    weft_job *job;
    weft_job_options options = {.count = 1, .argv = arguments};
    int worst = -1;
    unsetenv("WEFT_SPAWNED"); /* it means to */
    if (weft_job_open(&options, &job, NULL))
        return 14;
    return weft_job_close(job, 20000, &worst) == WEFT_OK ? 0 : worst;
}

/* A program that does not look at RANK. Without the refusal its child would be the next. */
static int check_generation(void)
{
    const char *arguments[] = {"child", "generation", NULL};
    weft_error *error = NULL;
    weft_job *job = NULL;
    weft_job_options options = {.count = 1, .argv = arguments};
    weft_status status = weft_job_open(&options, &job, &error);
    bool is_told = strstr(weft_error_message(error), "RANK=1") != NULL;
    weft_error_unref(error);
    if (job)
        return 15;
    return status == WEFT_ERR_STATE && is_told ? 0 : 16;
}

/* 0 if it was started by its path: the kernel calls a process after the file that it was told. */
static int check_path(void)
{
    char name[32] = "";
    if (prctl(PR_GET_NAME, name) != 0)
        return 17;
    return strcmp(name, "exe") != 0 ? 0 : 18;
}

/* A program whose file is gone starts itself all the same. */
static int spawn_without_file(const char *file)
{
    const char *argv[] = {"child", "signals", NULL};
    weft_job *job;
    if (unlink(file) != 0)
        return 19;
    unsetenv("WEFT_SPAWNED"); /* it means to */
    if (weft_job_open(&(weft_job_options){.count = 1, .argv = argv}, &job, NULL))
        return 20;
    return weft_job_close(job, 20000, NULL) == WEFT_OK ? 0 : 21;
}

static int spawn_and_hang(void); /* a parent of grandchildren */

/* A child (`options` NULL) that comes so late that rank 0 has ended its store is told that instead. */
static bool is_refused(const weft_agent_options *options, const char *says)
{
    weft_error *error = NULL;
    weft_agent *agent;
    weft_status status = weft_agent_open(options, &agent, &error);
    bool is_said = status == WEFT_ERR_RENDEZVOUS &&
                   (strstr(weft_error_message(error), says) ||
                    (!options && strstr(weft_error_message(error), "rank 0, which started this worker, has failed")));
    if (!is_said)
        fprintf(stderr, "%s, \"%s\" does not say \"%s\"\n", weft_status_name(status),
                status ? weft_error_message(error) : "", says);
    weft_error_unref(error);
    return is_said;
}

static void end_within(long us)
{
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value.tv_usec = us}, NULL);
}

/* Rank 1 ends, by itself or by a signal; the others join and are told how. */
static int join_without_the_first(const char *role)
{
    bool is_rank_1 = env_number("RANK") == 1;
    if (strcmp(role, "first-exits") == 0)
        return is_rank_1 ? 7 : is_refused(NULL, "rank 1 exited with 7 before the job began") ? 0 : 23;
    if (strcmp(role, "first-leaves") == 0 && !is_rank_1)
        usleep(150000); /* most likely the store has given up; if it has not, nothing fails */
    if (strcmp(role, "first-leaves") == 0)
        return is_rank_1 || is_refused(NULL, "rank 1 exited with 0 before the job began") ? 0 : 24;
    if (strcmp(role, "first-is-killed") == 0 && is_rank_1)
        return raise(SIGKILL);
    return is_refused(NULL, "rank 1 was killed by signal 9 (Killed) before the job began") ? 0 : 25;
}

/* Rank 1 joins and is killed while it waits for rank 2, which does not join. */
static void die_while_joining(void)
{
    end_within(env_number("RANK") == 1 ? 100000 : 400000);
    if (env_number("RANK") == 1)
        (void)is_refused(NULL, "killed before");
}

static int be_child(char **argv)
{
    const char *role = argv[1];
    if (strcmp(role, "environment") == 0)
        return check_environment(argv);
    if (strcmp(role, "signals") == 0)
        return check_signals();
    if (strcmp(role, "descriptors") == 0)
        return count_descriptors() == atoi(argv[2]) ? 0 : 6;
    if (strcmp(role, "secret") == 0)
        return check_secret();
    if (strcmp(role, "grandchild") == 0)
        return check_grandchild(argv);
    if (strcmp(role, "generation") == 0)
        return check_generation();
    if (strcmp(role, "path") == 0)
        return check_path();
    if (strcmp(role, "fileless") == 0)
        return spawn_without_file(argv[2]);
    if (strcmp(role, "rank") == 0)
        return env_number("RANK");
    if (strcmp(role, "abort") == 0)
        return raise(SIGKILL);
    if (strcmp(role, "parent") == 0)
        return spawn_and_hang();
    if (strncmp(role, "first-", 6) == 0)
        return join_without_the_first(role);
    if (strcmp(role, "joining") == 0)
        die_while_joining();
    if (strcmp(role, "lost") == 0 && env_number("RANK") == 1)
        (void)raise(SIGSTOP);
    if (strcmp(role, "lost") == 0)
        return execlp("sleep", "sleep", "60", NULL);
    if (strcmp(role, "deaf") == 0)
        signal(SIGTERM, SIG_IGN);
    signal(SIGUSR2, SIG_IGN); /* the parent waits for that */
    for (;;)
        pause();
}

/* ---- As rank 0 ------------------------------------------------------------------------------------------------- */

static weft_job *spawn(int count, const char *role, const char *argument)
{
    const char *argv[] = {"child", role, argument, NULL};
    weft_error *error = NULL;
    weft_job *job = NULL;
    weft_job_options options = {.count = count, .argv = argv};
    weft_status status = weft_job_open(&options, &job, &error);
    if (status)
        print_message("%s\n", weft_error_message(error));
    weft_error_unref(error);
    assert_int_equal(status, WEFT_OK);
    return job;
}

static void expect(weft_job *job, int64_t timeout_ms, weft_status status, int exit_code)
{
    int worst = -1;
    assert_int_equal(weft_job_close(job, timeout_ms, &worst), status);
    assert_int_equal(worst, exit_code);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD); /* neither children nor zombies */
}

static void children_get_the_environment(void **state)
{
    setenv("RANK", "77", 1); /* ours must not be seen */
    weft_job *job = spawn(3, "environment", "4");
    unsetenv("RANK");
    assert_int_equal(wfi_job_world_size(job), 4);
    expect(job, 20000, WEFT_OK, 0);
}

static void the_job_knows_its_pids(void **state)
{
    weft_job *job = spawn(2, "hang", NULL);
    assert_int_equal(weft_job_pid(job, 0), 0);
    assert_int_equal(weft_job_pid(job, 3), 0);
    assert_int_equal(kill(weft_job_pid(job, 1), 0), 0);
    assert_int_not_equal(weft_job_pid(job, 1), weft_job_pid(job, 2));
    kill(weft_job_pid(job, 1), SIGKILL);
    kill(weft_job_pid(job, 2), SIGKILL);
    expect(job, 20000, WEFT_ERR_REMOTE, 128 + SIGKILL);
}

static void the_worst_exit_code_is_told(void **state)
{
    expect(spawn(3, "rank", NULL), 20000, WEFT_ERR_REMOTE, 3);
}

static char said[512];

static void keep_line(weft_log_level level, const char *line, void *arg)
{
    if (level == WEFT_LOG_ERROR)
        snprintf(said, sizeof(said), "%s", line);
}

static void a_killed_child_counts_as_128_and_the_signal(void **state)
{
    weft_logging_set_sink(keep_line, NULL);
    expect(spawn(1, "abort", NULL), 20000, WEFT_ERR_REMOTE, 128 + SIGKILL);
    weft_logging_set_sink(NULL, NULL);
    assert_string_equal(said, "weft_job_close: children failed: rank 1 was killed by signal 9 (Killed)");
}

/* A job whose agent did not open, and whose children have ended: otherwise they would get 3 s, and the machine may be
 * busy. */
static weft_job *spawn_in_vain(int count, const char *role)
{
    siginfo_t about;
    weft_job *job = spawn(count, role, NULL);
    for (int rank = 1; rank <= count; rank++)
        assert_int_equal(waitid(P_PID, (id_t)weft_job_pid(job, rank), &about, WEXITED | WNOWAIT), 0);
    wfi_job_opened(job, true);
    return job;
}

/* If rank 0's agent did not open, exit codes of children say nothing new. A signal does. */
static void what_follows_from_rank_0_is_no_error(void **state)
{
    said[0] = 0;
    weft_logging_set_sink(keep_line, NULL);
    expect(spawn_in_vain(3, "rank"), 20000, WEFT_ERR_REMOTE, 3);
    assert_string_equal(said, "");
    expect(spawn_in_vain(1, "abort"), 20000, WEFT_ERR_REMOTE, 128 + SIGKILL);
    weft_logging_set_sink(NULL, NULL);
    assert_non_null(strstr(said, "killed by signal 9"));
}

/* The kernel says which signals a process ignores, one bit each. */
static bool ignores(pid_t pid, int number)
{
    char path[64], line[256];
    unsigned long long ignored = 0;
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    FILE *status = fopen(path, "re");
    while (status && fgets(line, sizeof(line), status))
        if (strncmp(line, "SigIgn:", 7) == 0)
            ignored = strtoull(line + 7, NULL, 16);
    if (status)
        fclose(status);
    return ignored >> (number - 1) & 1;
}

/* While it starts, a library may still have a handler of SIGTERM that exits with 1 (docs/libfabric.md). */
static weft_job *spawn_started(int count, const char *role)
{
    weft_job *job = spawn(count, role, NULL);
    for (int rank = 1; rank <= count; rank++)
        while (!ignores(weft_job_pid(job, rank), SIGUSR2))
            usleep(1000);
    return job;
}

/* Rank 0 may lack what it needs to tell them, such as descriptors; no child can join without it. */
static void nobody_waits_for_rank_0_that_failed(void **state)
{
    weft_job *job = spawn_started(2, "hang");
    wfi_job_opened(job, true);
    expect(job, WEFT_FOREVER, WEFT_ERR_TIMEOUT, 128 + SIGTERM);
}

static void a_straggler_is_ended(void **state)
{
    expect(spawn_started(2, "hang"), 200, WEFT_ERR_TIMEOUT, 128 + SIGTERM);
}

static void a_deaf_straggler_is_killed(void **state)
{
    weft_job *job = spawn_started(1, "deaf");
    expect(job, 50, WEFT_ERR_TIMEOUT, 128 + SIGKILL);
}

static void a_stopped_straggler_is_killed(void **state)
{
    weft_job *job = spawn(1, "hang", NULL);
    kill(weft_job_pid(job, 1), SIGSTOP);
    expect(job, 50, WEFT_ERR_TIMEOUT, 128 + SIGKILL);
}

static void the_signal_mask_is_reset(void **state)
{
    sigset_t mask, before;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR1);
    sigprocmask(SIG_BLOCK, &mask, &before);
    weft_job *job = spawn(1, "signals", NULL);
    sigprocmask(SIG_SETMASK, &before, NULL);
    expect(job, 20000, WEFT_OK, 0);
}

static void only_the_secrets_descriptor_reaches_a_child(void **state)
{
    char inherited[16];
    snprintf(inherited, sizeof(inherited), "%d", count_descriptors() + 1);
    expect(spawn(2, "descriptors", inherited), 20000, WEFT_OK, 0);
}

static void children_find_the_secret_once_and_leave_no_trace(void **state)
{
    weft_job *job = spawn(2, "secret", NULL);
    assert_int_equal(wfi_job_secret(job)->size, WFI_SECRET_RANDOM);
    expect(job, 20000, WEFT_OK, 0);
}

static void fail_to_spawn(weft_status status, const char *says)
{
    weft_error *error = NULL;
    weft_job *job;
    assert_int_equal(weft_job_open(&(weft_job_options){.count = 1}, &job, &error), status);
    if (!strstr(weft_error_message(error), says))
        fail_msg("\"%s\" does not say \"%s\"", weft_error_message(error), says);
    weft_error_unref(error);
}

/* The children get it as they get a random one: they see a descriptor, and no other variable. */
static void a_secret_of_the_users_is_the_jobs(void **state)
{
    static const char given[] = "thirty-two bytes, as of a random";
    char path[] = "/tmp/weft-test-spawn-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, given, WFI_SECRET_RANDOM) == WFI_SECRET_RANDOM);
    close(fd);
    for (int i = 0; i < 2; i++) {
        setenv(i ? "WEFT_SECRET_FILE" : "WEFT_SECRET", i ? path : given, 1);
        weft_job *job = spawn(2, "secret", NULL);
        assert_null(getenv("WEFT_SECRET"));
        assert_int_equal(wfi_job_secret(job)->size, WFI_SECRET_RANDOM);
        assert_memory_equal(wfi_job_secret(job)->bytes, given, WFI_SECRET_RANDOM);
        expect(job, 20000, WEFT_OK, 0);
    }
    assert_int_equal(unlink(path), 0);
    fail_to_spawn(WEFT_ERR_IO, "\"): No such file or directory");
    setenv("WEFT_SECRET_FILE", "", 1);
    fail_to_spawn(WEFT_ERR_INVALID, "(WEFT_SECRET_FILE) is empty");
    unsetenv("WEFT_SECRET_FILE");
    setenv("WEFT_SECRET", "short", 1);
    fail_to_spawn(WEFT_ERR_INVALID, "has 5 bytes: give 16 to 4,096");
}

static void a_childs_own_children_do_not_inherit_its_secret(void **state)
{
    char inherited[16];
    snprintf(inherited, sizeof(inherited), "%d", count_descriptors() + 1);
    expect(spawn(1, "grandchild", inherited), 20000, WEFT_OK, 0);
}

static void a_child_that_did_not_look_at_its_rank_spawns_nothing(void **state)
{
    expect(spawn(1, "generation", NULL), 20000, WEFT_OK, 0);
}

/*
 * Searches what the kernel shows of the process. The kernel lets the parent go on before it has set up the new
 * program's arguments and environment: until then it shows nothing.
 */
static bool shows(pid_t pid, const char *what, const wfi_secret *secret)
{
    static char text[1 << 20];
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, what);
    size_t size = 0;
    for (int i = 0; i < 10000 && !size; i++) {
        FILE *file = fopen(path, "re");
        assert_non_null(file);
        size = fread(text, 1, sizeof(text), file);
        fclose(file);
        if (!size)
            usleep(1000);
    }
    assert_true(size > 0);
    return memmem(text, size, secret->bytes, 8) != NULL;
}

static void the_secret_shows_in_no_environment_and_on_no_command_line(void **state)
{
    weft_job *job = spawn(1, "hang", NULL);
    assert_false(shows(weft_job_pid(job, 1), "environ", wfi_job_secret(job)));
    assert_false(shows(weft_job_pid(job, 1), "cmdline", wfi_job_secret(job)));
    kill(weft_job_pid(job, 1), SIGKILL);
    expect(job, 20000, WEFT_ERR_REMOTE, 128 + SIGKILL);
}

static void waiting_closes_all_descriptors(void **state)
{
    int before = count_descriptors();
    expect(spawn(2, "environment", "3"), 20000, WEFT_OK, 0);
    assert_int_equal(count_descriptors(), before);
}

static void the_stores_socket_is_taken_once(void **state)
{
    weft_job *job = spawn(0, "hang", NULL);
    wfi_endpoint where;
    int fd = wfi_job_take_fd(job);
    assert_int_equal(wfi_listens_at(fd, &where), WEFT_OK);
    assert_int_equal(wfi_job_take_fd(job), -1);
    assert_true(wfi_job_port(job) > 0);
    expect(job, 0, WEFT_OK, 0);
    assert_int_equal(close(fd), 0);
}

static void a_program_that_does_not_exist_is_an_error(void **state)
{
    weft_job *job = NULL;
    weft_error *error = NULL;
    const char *argv[] = {"x", NULL};
    weft_job_options options = {.count = 2, .program = "/does/not/exist", .argv = argv};
    assert_int_equal(weft_job_open(&options, &job, &error), WEFT_ERR_SYSTEM);
    assert_non_null(strstr(weft_error_message(error), "No such file"));
    assert_null(job);
    weft_error_unref(error);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void a_child_is_started_by_its_path(void **state)
{
    expect(spawn(2, "path", NULL), 20000, WEFT_OK, 0);
}

static void copy_file(int from, int to)
{
    char bytes[65536];
    ssize_t got;
    while ((got = read(from, bytes, sizeof(bytes))) > 0)
        assert_int_equal(write(to, bytes, (size_t)got), got);
    assert_int_equal(got, 0);
    close(from);
    assert_int_equal(fchmod(to, 0700), 0);
    close(to);
}

static void a_program_whose_file_is_gone_starts_itself(void **state)
{
    char copy[] = "/tmp/weft-spawn-XXXXXX";
    const char *argv[] = {"child", "fileless", copy, NULL};
    weft_job *job;
    copy_file(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), mkostemp(copy, O_CLOEXEC));
    assert_int_equal(weft_job_open(&(weft_job_options){.count = 1, .program = copy, .argv = argv}, &job, NULL),
                     WEFT_OK);
    expect(job, 20000, WEFT_OK, 0);
}

static void no_options_start_nobody(void **state)
{
    weft_job *job = NULL;
    assert_int_equal(weft_job_open(NULL, &job, NULL), WEFT_OK);
    assert_non_null(job);
    assert_int_equal(weft_job_pid(job, 1), 0);
    assert_int_equal(weft_job_close(job, 0, NULL), WEFT_OK);
}

static void bad_options_are_refused(void **state)
{
    weft_job *job;
    const char *argv[] = {NULL};
    weft_error *error = NULL;
    assert_int_equal(weft_job_open(&(weft_job_options){.count = -1}, &job, &error), WEFT_ERR_INVALID);
    assert_string_equal(weft_error_message(error), "count is -1: 0 to 65535");
    weft_error_unref(error);
    assert_int_equal(weft_job_open(&(weft_job_options){0}, NULL, &error), WEFT_ERR_INVALID);
    assert_string_equal(weft_error_message(error), "weft_job_open: out is NULL");
    weft_error_unref(error);
    assert_int_equal(weft_job_open(&(weft_job_options){.count = 1 << 20}, &job, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_job_open(&(weft_job_options){.count = 1, .argv = argv}, &job, NULL), WEFT_ERR_INVALID);
    assert_int_equal(weft_job_close(NULL, 0, NULL), WEFT_OK);
}

static void reap_everything(int number)
{
    int before = errno;
    while (waitpid(-1, NULL, WNOHANG) > 0)
        continue;
    errno = before;
}

static void an_application_that_reaps_first_is_survived(void **state)
{
    struct sigaction reaper = {.sa_handler = reap_everything}, before;
    sigaction(SIGCHLD, &reaper, &before);
    weft_job *job = spawn(2, "rank", NULL);
    usleep(100 * 1000);
    int worst = -1;
    weft_status status = weft_job_close(job, 20000, &worst);
    sigaction(SIGCHLD, &before, NULL);
    assert_true(status == WEFT_ERR_UNKNOWN || status == WEFT_ERR_REMOTE);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

/* A minute is what an opening has; that it fails long before is seen by what it says. */
static void fail_to_open(weft_job *job, const char *says)
{
    assert_true(is_refused(&(weft_agent_options){.job = job}, says));
}

static void an_agent_whose_children_have_ended_does_not_wait(void **state)
{
    weft_job *job = spawn(2, "rank", NULL); /* who end with their ranks */
    fail_to_open(job, " before the job began");
    expect(job, 20000, WEFT_ERR_REMOTE, 2); /* nobody was reaped */
    job = spawn(1, "abort", NULL);
    fail_to_open(job, "rank 1 was killed by signal 9 (Killed) before the job began");
    expect(job, 20000, WEFT_ERR_REMOTE, 137);
}

static void a_child_that_ends_before_the_job_begins_is_named_to_all(void **state)
{
    static const struct {
        const char *role, *says;
        int exit_code;
    } cases[] = {{"first-exits", "rank 1 exited with 7 before the job began", 7},
                 {"first-leaves", "rank 1 exited with 0 before the job began", 0},
                 {"first-is-killed", "rank 1 was killed by signal 9 (Killed) before the job began", 128 + SIGKILL}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        weft_job *job = spawn(3, cases[i].role, NULL);
        fail_to_open(job, cases[i].says);
        expect(job, 20000, cases[i].exit_code ? WEFT_ERR_REMOTE : WEFT_OK, cases[i].exit_code);
    }
}

static void a_child_that_is_killed_while_it_joins_is_named(void **state)
{
    weft_job *job = spawn(2, "joining", NULL);
    fail_to_open(job, "rank 1 was killed by signal 14 (Alarm clock)");
    expect(job, 20000, WEFT_ERR_REMOTE, 128 + SIGALRM);
}

/* One that is stopped, as in a debugger, and one that became another program. */
static void a_child_that_does_not_come_is_described(void **state)
{
    char says[128];
    siginfo_t about;
    weft_job *job = spawn(2, "lost", NULL);
    int stopped = weft_job_pid(job, 1), other = weft_job_pid(job, 2);
    assert_int_equal(waitid(P_PID, (id_t)stopped, &about, WSTOPPED | WNOWAIT), 0);
    snprintf(says, sizeof(says), "is process %d (test_spawn_job), which is stopped by a signal, rank 2 is process %d (",
             stopped, other);
    assert_true(is_refused(&(weft_agent_options){.job = job, .rendezvous_timeout_ms = 200}, says));
    kill(stopped, SIGKILL);
    kill(other, SIGKILL);
    expect(job, 20000, WEFT_ERR_REMOTE, 128 + SIGKILL);
}

/* An elastic job begins without them. */
static void an_elastic_job_begins_without_its_children(void **state)
{
    weft_agent *agent;
    weft_job *job = spawn(1, "rank", NULL);
    assert_int_equal(weft_agent_open(&(weft_agent_options){.job = job, .elastic = true}, &agent, NULL), WEFT_OK);
    assert_int_equal(weft_agent_close(agent, WEFT_FOREVER), WEFT_OK);
    expect(job, 20000, WEFT_ERR_REMOTE, 1);
}

static bool is_not_the_third(const void *arg, int rank)
{
    return !arg && rank != 3;
}

static void at_most_four_ends_are_named(void **state)
{
    char text[256];
    weft_job *job = spawn(6, "rank", NULL);
    wfi_processes *processes = wfi_processes_of(job);
    while (!wfi_processes_have_ended(processes))
        usleep(1000);
    assert_int_equal(wfi_processes_name(processes, is_not_the_third, NULL, text, sizeof(text)), 5);
    assert_string_equal(text, "rank 1 exited with 1, rank 2 exited with 2, rank 4 exited with 4, rank 5 exited with 5, "
                              "and 1 more");
    free(processes);
    expect(job, 20000, WEFT_ERR_REMOTE, 6);
}

static bool nobody_is_left(void *arg)
{
    return !arg;
}

/* A rank 0 that cannot join refuses the other workers, but does not wait for children that have ended. */
static void a_store_whose_workers_have_ended_does_not_wait(void **state)
{
    int fd;
    wfi_store_server *server;
    assert_int_equal(wfi_listen_at("127.0.0.1", 0, &fd, NULL), WEFT_OK);
    wfi_store_server_options how = {
        .listen_fd = fd, .world_size = 2, .death_timeout_ms = -1, .failure = "no", .is_alone = nobody_is_left};
    assert_int_equal(wfi_store_server_start(&how, &server, NULL), WEFT_OK);
    wfi_store_server_end(server, INT64_C(3600000)); /* the test's limit is shorter */
}

static void an_agent_whose_children_were_reaped_does_not_wait(void **state)
{
    struct sigaction reaper = {.sa_handler = reap_everything}, before;
    sigaction(SIGCHLD, &reaper, &before);
    weft_job *job = spawn(2, "rank", NULL);
    fail_to_open(job, " before the job began");
    assert_int_not_equal(weft_job_close(job, 20000, NULL), WEFT_ERR_TIMEOUT);
    sigaction(SIGCHLD, &before, NULL);
}

/* A child that spawns two of its own, writes their pids to descriptor 9 and hangs. */
static int spawn_and_hang(void)
{
    const char *argv[] = {"child", "hang", NULL};
    weft_job *job;
    weft_job_options options = {.count = 2, .argv = argv};
    unsetenv("WEFT_SPAWNED"); /* it means to */
    if (weft_job_open(&options, &job, NULL))
        return 7;
    int pids[2] = {weft_job_pid(job, 1), weft_job_pid(job, 2)};
    if (write(9, pids, sizeof(pids)) != (ssize_t)sizeof(pids))
        return 8;
    for (;;)
        pause();
}

/* Gone, or a zombie that some init has yet to reap. */
static bool is_dead(int pid)
{
    char path[64], text[256] = "";
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return true;
    (void)!fread(text, 1, sizeof(text) - 1, file);
    fclose(file);
    const char *after = strrchr(text, ')');
    return !after || after[2] == 'Z' || after[2] == 'X';
}

static void children_die_with_their_parent(void **state)
{
    int ends[2], pids[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    assert_int_equal(dup2(ends[1], 9), 9);
    close(ends[1]);
    weft_job *job = spawn(1, "parent", NULL);
    close(9);
    assert_int_equal(read(ends[0], pids, sizeof(pids)), sizeof(pids));
    close(ends[0]);
    assert_false(is_dead(pids[0]) || is_dead(pids[1]));
    kill(weft_job_pid(job, 1), SIGKILL);
    expect(job, 20000, WEFT_ERR_REMOTE, 128 + SIGKILL);
    for (int i = 0; i < 200 && !(is_dead(pids[0]) && is_dead(pids[1])); i++)
        usleep(10 * 1000);
    assert_true(is_dead(pids[0]) && is_dead(pids[1]));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(children_get_the_environment),
        cmocka_unit_test(the_job_knows_its_pids),
        cmocka_unit_test(the_worst_exit_code_is_told),
        cmocka_unit_test(a_killed_child_counts_as_128_and_the_signal),
        cmocka_unit_test(what_follows_from_rank_0_is_no_error),
        cmocka_unit_test(nobody_waits_for_rank_0_that_failed),
        cmocka_unit_test(a_straggler_is_ended),
        cmocka_unit_test(a_deaf_straggler_is_killed),
        cmocka_unit_test(a_stopped_straggler_is_killed),
        cmocka_unit_test(the_signal_mask_is_reset),
        cmocka_unit_test(only_the_secrets_descriptor_reaches_a_child),
        cmocka_unit_test(children_find_the_secret_once_and_leave_no_trace),
        cmocka_unit_test(a_secret_of_the_users_is_the_jobs),
        cmocka_unit_test(a_childs_own_children_do_not_inherit_its_secret),
        cmocka_unit_test(a_child_that_did_not_look_at_its_rank_spawns_nothing),
        cmocka_unit_test(the_secret_shows_in_no_environment_and_on_no_command_line),
        cmocka_unit_test(waiting_closes_all_descriptors),
        cmocka_unit_test(the_stores_socket_is_taken_once),
        cmocka_unit_test(a_program_that_does_not_exist_is_an_error),
        cmocka_unit_test(a_child_is_started_by_its_path),
        cmocka_unit_test(a_program_whose_file_is_gone_starts_itself),
        cmocka_unit_test(no_options_start_nobody),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(an_application_that_reaps_first_is_survived),
        cmocka_unit_test(an_agent_whose_children_have_ended_does_not_wait),
        cmocka_unit_test(a_child_that_ends_before_the_job_begins_is_named_to_all),
        cmocka_unit_test(a_child_that_is_killed_while_it_joins_is_named),
        cmocka_unit_test(a_child_that_does_not_come_is_described),
        cmocka_unit_test(an_elastic_job_begins_without_its_children),
        cmocka_unit_test(at_most_four_ends_are_named),
        cmocka_unit_test(a_store_whose_workers_have_ended_does_not_wait),
        cmocka_unit_test(an_agent_whose_children_were_reaped_does_not_wait),
        cmocka_unit_test(children_die_with_their_parent),
    };
    if (argc > 1)
        return be_child(argv);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
