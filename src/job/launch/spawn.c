/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spawn.c - weft_job_open: starts the other workers of a job as children of this process. wait.c waits for them.
 *
 * Everything that a child needs is built before the fork, because only async-signal-safe functions may run between
 * fork and exec. If the exec fails, the child writes errno into a pipe; if it succeeds, the exec closes the pipe.
 *
 * The job's secret is random, unless the user gave one. It is stored in a sealed file in memory, and the children
 * inherit its descriptor; their environment holds only the number of that descriptor. A child's first agent reads it
 * and closes it (job/protocol/secret.c).
 */
#include "job/launch/launch.h"

#include "base/text/variables.h"
#include "base/alloc.h"
#include "base/error.h"
#include "base/nosignal.h"
#include "base/text/sized.h"
#include "base/guarded.h"
#include "base/text/log.h"
#include "base/socket.h"
#include "base/thread.h"
#include "base/utf8.h"
#include "job/protocol/protocol.h"

#include <poll.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXEC_LIMIT_MS 10000 /* from fork to exec */

#define VARIABLES 7 /* that the children get anew */

#define SPAWNED "WEFT_SPAWNED" /* this process is a child of weft_job_open and has not opened an agent yet */
#define SPAWNED_IS "WEFT_SPAWNED="

#define SELF "/proc/self/exe"

typedef struct recipe { /* how to make a child */
    const char *program;
    char self[PATH_MAX]; /* the target of SELF; "": it cannot be read, or is not the program that is started */
    char **argv, **envp; /* envp[0] is "RANK=..", rewritten for each */
    char *command_line;  /* the storage of a default argv; NULL: argv is the caller's */
    char rank[24], world_size[32], local_size[32], address[32], port[32], secret[32];
    int secret_fd; /* a file in memory, which only the children inherit */
    pid_t parent;
} recipe;

static weft_status spawn_fail(weft_error **error, weft_status code, const char *action, int errnum)
{
    return wfi_error_fail(error, code, "%s: %s", action, wfi_nosignal_strerror(errnum));
}

/* A program that calls weft_job_open regardless of its RANK would start children that do the same, without end. */
static weft_status refuse_generation(weft_error **error)
{
    const char *rank = getenv("RANK");
    return wfi_error_fail(error, WEFT_ERR_STATE,
                          "this process is itself a child of weft_job_open (RANK=%.*s): it opens an agent, "
                          "without .job, and may then spawn a job of its own (or unsets " SPAWNED ")",
                          rank ? wfi_utf8_fit(rank, 16) : 0, rank ? rank : "");
}

bool wfi_spawn_joined(void)
{
    bool is_spawned = getenv(SPAWNED) != NULL;
    if (is_spawned)
        (void)unsetenv(SPAWNED);
    return is_spawned;
}

/* ---- What the children get ------------------------------------------------------------------------------------- */

/* Reads a whole file of unknown size and appends a NUL. */
static char *read_file(const char *path, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = NULL;
    size_t have = 0, capacity = 0;
    ssize_t got = fd < 0 ? -1 : 1;
    while (got > 0) {
        if (capacity - have < 4096) {
            char *larger = realloc(text, capacity = capacity * 2 + 8192);
            if (!larger)
                break;
            text = larger;
        }
        got = read(fd, text + have, capacity - have - 1);
        if (got > 0)
            have += (size_t)got;
        else if (got < 0 && errno == EINTR)
            got = 1;
    }
    if (fd >= 0)
        close(fd);
    if (got != 0 || have == 0) {
        free(text);
        return NULL;
    }
    text[have] = 0;
    *size = have;
    return text;
}

/* This process's own arguments: /proc separates them by NUL. */
static bool default_argv(recipe *made)
{
    size_t size = 0, count = 0;
    made->command_line = read_file("/proc/self/cmdline", &size);
    if (!made->command_line)
        return false;
    for (size_t i = 0; i < size; i++)
        count += made->command_line[i] == 0;
    made->argv = wfi_calloc(count + 2, sizeof(*made->argv));
    if (!made->argv)
        return false;
    count = 0;
    for (size_t at = 0; at < size; at += strlen(made->command_line + at) + 1)
        made->argv[count++] = made->command_line + at;
    return true;
}

static bool is_ours(const char *variable)
{
    static const char *const names[] = {
        "RANK=",        "WORLD_SIZE=",     "LOCAL_WORLD_SIZE=", SPAWNED_IS,         "MASTER_ADDR=",
        "MASTER_PORT=", "WEFT_SECRET_FD=", "WEFT_SECRET=",      "WEFT_SECRET_FILE="};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++)
        if (strncmp(variable, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static bool build_environment(recipe *made)
{
    size_t count = 0, at = 0;
    while (environ && environ[count])
        count++;
    made->envp = wfi_calloc(count + VARIABLES + 1, sizeof(*made->envp));
    if (!made->envp)
        return false;
    made->envp[at++] = made->rank;
    made->envp[at++] = made->world_size;
    made->envp[at++] = made->local_size;
    made->envp[at++] = made->address;
    made->envp[at++] = made->port;
    made->envp[at++] = made->secret;
    made->envp[at++] = (char *)(uintptr_t)SPAWNED_IS "1"; /* exec takes it without const and changes nothing */
    for (size_t i = 0; i < count; i++)
        if (!is_ours(environ[i]))
            made->envp[at++] = environ[i];
    return true;
}

static void drop_recipe(recipe *made)
{
    if (made->command_line)
        free(made->argv);
    free(made->command_line);
    free(made->envp);
    if (made->secret_fd >= 0)
        close(made->secret_fd);
}

/*
 * Prefers the program's path to SELF if both name the same file: a tool that follows children (valgrind
 * --trace-children) starts this program in a process whose SELF is the tool. A deleted or replaced file has no path,
 * and SELF still starts it.
 */
static void find_self(recipe *made)
{
    ssize_t length = readlink(SELF, made->self, sizeof(made->self) - 1);
    made->self[length > 0 ? length : 0] = 0;
}

static weft_status build_recipe(const weft_job_options *options, const weft_job *job, recipe *made)
{
    *made = (recipe){.program = options->program ? options->program : SELF, .parent = getpid()};
    if (!options->program)
        find_self(made);
    made->secret_fd = wfi_secret_memory_file(job->secret);
    snprintf(made->secret, sizeof(made->secret), "WEFT_SECRET_FD=%d", made->secret_fd);
    snprintf(made->world_size, sizeof(made->world_size), "WORLD_SIZE=%d", job->count + 1);
    snprintf(made->local_size, sizeof(made->local_size), "LOCAL_WORLD_SIZE=%d", job->count + 1);
    snprintf(made->address, sizeof(made->address), "MASTER_ADDR=%s", WFI_JOB_ADDRESS);
    snprintf(made->port, sizeof(made->port), "MASTER_PORT=%d", job->port);
    made->argv = (char **)(uintptr_t)options->argv; /* exec takes it without const and changes nothing */
    if (made->secret_fd >= 0 && (options->argv || default_argv(made)) && build_environment(made))
        return WEFT_OK;
    drop_recipe(made);
    return WEFT_ERR_SYSTEM;
}

/* ---- Children -------------------------------------------------------------------------------------------------- */

/* In the child. The signals were blocked by the parent, so that none of its handlers runs here. */
static void become_worker(const recipe *made, int report_fd)
{
    sigset_t none;
    int errnum = prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && fcntl(made->secret_fd, F_SETFD, 0) == 0 ? 0 : errno;
    if (getppid() != made->parent) /* the parent died before this request took effect */
        _exit(127);
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (!errnum) {
        if (made->self[0])
            execve(made->self, made->argv, made->envp); /* returns if it cannot */
        execve(made->program, made->argv, made->envp);
        errnum = errno;
    }
    (void)!write(report_fd, &errnum, sizeof(errnum));
    _exit(127);
}

/* A child that is stopped before its exec would block this function forever: ETIMEDOUT. */
static int read_exec_result(int fd)
{
    struct pollfd report = {.fd = fd, .events = POLLIN};
    int errnum = 0, ready;
    ssize_t got;
    do
        ready = poll(&report, 1, EXEC_LIMIT_MS);
    while (ready < 0 && errno == EINTR);
    if (ready == 0)
        return ETIMEDOUT;
    do
        got = read(fd, &errnum, sizeof(errnum));
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof(errnum) ? errnum : 0; /* exec closed the pipe: success */
}

static pid_t fork_with_signals_blocked(const recipe *made, int report_fd)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = fork();
    if (pid == 0)
        become_worker(made, report_fd);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return pid;
}

/* Returns 0 or an errno value. */
static int start_child(recipe *made, int rank, wfi_process *child)
{
    int report[2];
    snprintf(made->rank, sizeof(made->rank), "RANK=%d", rank);
    if (pipe2(report, O_CLOEXEC) != 0)
        return errno;
    pid_t pid = fork_with_signals_blocked(made, report[1]);
    int errnum = pid < 0 ? errno : 0;
    close(report[1]);
    if (!errnum)
        errnum = read_exec_result(report[0]);
    close(report[0]);
    if (errnum && pid > 0)
        (void)kill(pid, SIGKILL); /* in case it has not ended */
    if (errnum && pid > 0)
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
    if (!errnum)
        child->pid = pid;
    return errnum;
}

static weft_status start_children(const weft_job_options *options, weft_job *job, weft_error **error)
{
    recipe made;
    if (build_recipe(options, job, &made))
        return spawn_fail(error, WEFT_ERR_SYSTEM, "cannot prepare the workers' arguments", errno ? errno : ENOMEM);
    int errnum = 0;
    for (int i = 0; i < job->count && !errnum; i++)
        errnum = start_child(&made, i + 1, &job->processes[i]);
    char action[PATH_MAX + 64];
    snprintf(action, sizeof(action), "cannot start a worker, program \"%s\"", made.program);
    drop_recipe(&made);
    char why[WFI_THREAD_STRERROR];
    if (errnum == EAGAIN)
        return wfi_error_fail(error, WEFT_ERR_SYSTEM, "%s: %s", action, wfi_thread_strerror(errnum, why));
    return errnum ? spawn_fail(error, WEFT_ERR_SYSTEM, action, errnum) : WEFT_OK;
}

/* ---- The job --------------------------------------------------------------------------------------------------- */

static weft_status bind_store(weft_job *job, weft_error **error)
{
    wfi_endpoint where;
    int fd;
    weft_status status = wfi_listen_at(WFI_JOB_ADDRESS, 0, &fd, error);
    if (status)
        return status;
    if (wfi_listens_at(fd, &where)) {
        close(fd);
        return spawn_fail(error, WEFT_ERR_SYSTEM, "cannot learn the store's port", errno);
    }
    job->port = ntohs(((const struct sockaddr_in *)&where.address)->sin_port);
    atomic_init(&job->store_fd, fd);
    return WEFT_OK;
}

/* The secret that the user gave by a variable, or a random one. An inherited descriptor's secret belongs to the job of
 * this process, and is not used. */
static weft_status make_secret(weft_job *job, weft_error **error)
{
    wfi_secret_guard_inherited();
    job->secret = wfi_guarded_calloc(sizeof(*job->secret));
    if (!job->secret)
        return spawn_fail(error, WEFT_ERR_MEMORY, "cannot make the job's secret", ENOMEM);
    weft_status status = wfi_secret_given(job->secret, error);
    if (status || job->secret->size)
        return status;
    status = wfi_secret_random(job->secret);
    return status ? spawn_fail(error, status, "cannot make the job's secret", ENOSYS) : WEFT_OK;
}

static weft_status spawn(const weft_job_options *options, weft_job **out, weft_error **error)
{
    if (!out)
        return wfi_refuse_null_to(error, "weft_job_open", "out");
    wfi_variables_check();
    if (options->count < 0 || options->count >= WFI_STORE_WORKERS_MAX)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "count is %d: 0 to %d", options->count,
                              WFI_STORE_WORKERS_MAX - 1);
    if (options->argv && !options->argv[0])
        return wfi_error_fail(error, WEFT_ERR_INVALID, "argv has no name of the program");
    if (getenv(SPAWNED))
        return refuse_generation(error);
    weft_job *job = wfi_calloc(1, sizeof(*job) + (size_t)options->count * sizeof(*job->processes));
    if (!job)
        return spawn_fail(error, WEFT_ERR_MEMORY, "cannot make a job", ENOMEM);
    WFI_HANDLE_INIT(job);
    job->count = options->count;
    weft_status status = make_secret(job, error);
    if (!status)
        status = bind_store(job, error);
    if (status)
        goto free_job;
    status = start_children(options, job, error);
    if (status)
        goto end_children;
    *out = job;
    return WEFT_OK;

end_children: /* kills the children that were started before one failed */
    while (job->count > 0 && job->processes[job->count - 1].pid == 0)
        job->count--;
    (void)!weft_job_close(job, 0, NULL); /* the result is known: they were killed */
    return status;
free_job:
    wfi_guarded_free(job->secret);
    free(job);
    return status;
}

weft_status weft_job_open_sized(const weft_job_options *options, size_t size, weft_job **out, weft_error **detail)
{
    weft_job_options own;
    weft_error *error = NULL;
    options = WFI_SIZED(options, size, &own);
    weft_status status =
        options ? spawn(options, out, &error) : wfi_refuse_newer(&error, "weft_job_open", "weft_job_options");
    if (status && !detail) { /* if the caller takes no error object, the log has the text */
        wfi_log(WEFT_LOG_ERROR, "weft_job_open: %s", weft_error_message(error));
        wfi_status_logged(status);
    }
    if (status)
        wfi_error_give(detail, error);
    return status;
}
