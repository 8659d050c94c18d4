/* SPDX-License-Identifier: Apache-2.0 */
/*
 * wait.c - weft_job_close: waits for the children of a job, kills those that do not end in time, and leaves no
 * zombie.
 *
 * Nothing here depends on SIGCHLD. The application may have a handler that reaps any child, including these: a child
 * that waitpid does not know (ECHILD) has ended with an unknown exit code. The kernel may reuse a process number
 * after its process was reaped, so a signal is sent only to a child that has just been seen not reaped.
 */
#include "job/launch/launch.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/guarded.h"
#include "base/socket.h"
#include "base/text/log.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* the delay, at most, in noticing a child that another part of the process reaped */
#define SLICE_NS (100ull * 1000 * 1000)
#define BLIND_NS (5l * 1000 * 1000) /* the same, without pidfds */
#define TERM_MS 1000                /* from SIGTERM to SIGKILL */
#define FAILED_MS 3000              /* the longest wait if rank 0's agent did not open: no child can join then */

int weft_job_pid(const weft_job *job, int rank)
{
    WFI_CHECK_HANDLE(job);
    return job && rank >= 1 && rank <= job->count ? (int)job->processes[rank - 1].pid : 0;
}

int wfi_job_world_size(const weft_job *job)
{
    return job->count + 1;
}

int wfi_job_port(const weft_job *job)
{
    return job->port;
}

const wfi_secret *wfi_job_secret(const weft_job *job)
{
    return job->secret;
}

int wfi_job_take_fd(weft_job *job)
{
    return atomic_exchange(&job->store_fd, -1);
}

void wfi_job_opened(weft_job *job, bool has_failed)
{
    job->has_failed = has_failed;
}

/* Sets how a child has ended; `code` is CLD_EXITED or another code of siginfo_t. */
static void set_end(wfi_process *child, int code, int status)
{
    child->ended = true;
    child->signal = code == CLD_EXITED ? 0 : status;
    child->exit_code = code == CLD_EXITED ? status : 128 + status;
}

/* Returns true if the child has ended; reaps it. */
static bool reap(wfi_process *child)
{
    int status;
    if (child->ended)
        return true;
    pid_t got;
    do
        got = waitpid(child->pid, &status, WNOHANG);
    while (got < 0 && errno == EINTR);
    if (got == 0)
        return false;
    if (got > 0 && WIFSIGNALED(status))
        set_end(child, CLD_KILLED, WTERMSIG(status));
    else
        set_end(child, CLD_EXITED, got > 0 ? WEXITSTATUS(status) : -1);
    return true;
}

/* The same, without reaping. A child that another thread has reaped has ended (ECHILD). */
static bool poll_child(wfi_process *child)
{
    siginfo_t about = {0};
    int failed;
    do
        failed = waitid(P_PID, (id_t)child->pid, &about, WEXITED | WNOHANG | WNOWAIT);
    while (failed && errno == EINTR);
    if (!failed && about.si_pid == 0)
        return false;
    set_end(child, failed ? CLD_EXITED : about.si_code, failed ? -1 : about.si_status);
    return true;
}

wfi_processes *wfi_processes_of(const weft_job *job)
{
    wfi_processes *processes = wfi_calloc(1, sizeof(*processes) + (size_t)job->count * sizeof(*processes->at));
    if (!processes)
        return NULL;
    processes->count = job->count;
    for (int i = 0; i < job->count; i++)
        processes->at[i].pid = job->processes[i].pid;
    return processes;
}

int wfi_processes_poll(wfi_processes *processes)
{
    for (int i = 0; i < processes->count; i++)
        processes->ended += !processes->at[i].ended && poll_child(&processes->at[i]);
    return processes->ended;
}

bool wfi_processes_have_ended(wfi_processes *processes)
{
    return processes->count > 0 && wfi_processes_poll(processes) == processes->count;
}

#define NAMED_MOST 4

/* Appends ", rank 1 exited with 3"; the first of the list has no comma. */
static void put_end(const wfi_process *child, int rank, char *out, size_t room)
{
    size_t used = strlen(out);
    used += (size_t)snprintf(out + used, room - used, "%srank %d ", used ? ", " : "", rank);
    if (child->signal)
        snprintf(out + used, room - used, "was killed by signal %d (%s)", child->signal, strsignal(child->signal));
    else if (child->exit_code < 0)
        snprintf(out + used, room - used, "ended with a status that is not known");
    else
        snprintf(out + used, room - used, "exited with %d", child->exit_code);
}

static void put_more(int named, char *out, size_t room)
{
    size_t used = strlen(out);
    if (named > NAMED_MOST)
        snprintf(out + used, room - used, ", and %d more", named - NAMED_MOST);
}

int wfi_processes_name(const wfi_processes *processes, bool (*counts)(const void *arg, int rank), const void *arg,
                       char *out, size_t room)
{
    int named = 0;
    out[0] = '\0';
    for (int i = 0; i < processes->count; i++)
        if (processes->at[i].ended && counts(arg, i + 1) && ++named <= NAMED_MOST)
            put_end(&processes->at[i], i + 1, out, room);
    put_more(named, out, room);
    return named;
}

/* The name of the process's program, printable, and its state: a letter of proc(5). False: it is not known. */
static bool read_state(pid_t pid, char name[32], char *letter)
{
    char path[64], text[256];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid); /* "4711 (sleep) S 4700 ..." */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[size > 0 ? size : 0] = '\0';
    const char *from = strchr(text, '('), *to = strrchr(text, ')');
    if (!from || !to || to <= from || to[1] != ' ' || !to[2])
        return false;
    snprintf(name, 32, "%.*s", (int)(to - from - 1), from + 1);
    for (char *at = name; *at; at++)
        if (*at < ' ' || *at > '~')
            *at = '?';
    *letter = to[2];
    return true;
}

static void put_process(const wfi_process *child, int rank, char *out, size_t room)
{
    char name[32], letter;
    size_t used = strlen(out);
    used +=
        (size_t)snprintf(out + used, room - used, "%s rank %d is process %d", used ? "," : ";", rank, (int)child->pid);
    if (used < room && read_state(child->pid, name, &letter))
        snprintf(out + used, room - used, " (%s)%s", name,
                 letter == 'T'   ? ", which is stopped by a signal"
                 : letter == 't' ? ", which is stopped by a debugger"
                                 : "");
}

void wfi_processes_describe(const wfi_processes *processes, bool (*counts)(const void *arg, int rank), const void *arg,
                            char *out, size_t room)
{
    int named = 0;
    out[0] = '\0';
    for (int i = 0; i < processes->count; i++)
        if (!processes->at[i].ended && counts(arg, i + 1) && ++named <= NAMED_MOST)
            put_process(&processes->at[i], i + 1, out, room);
    put_more(named, out, room);
}

/* Waits until the child may have changed, for at most SLICE_NS. */
static void sleep_for_child(int pidfd, uint64_t deadline_ns)
{
    uint64_t now_ns = wfi_now(&wfi_clock_real);
    if (pidfd < 0) {
        nanosleep(&(struct timespec){.tv_nsec = BLIND_NS}, NULL);
        return;
    }
    if (deadline_ns > now_ns + SLICE_NS)
        deadline_ns = now_ns + SLICE_NS;
    struct pollfd wait = {.fd = pidfd, .events = POLLIN};
    (void)poll(&wait, 1, wfi_poll_timeout(now_ns, deadline_ns));
}

static bool await(wfi_process *child, uint64_t deadline_ns)
{
    if (reap(child))
        return true;
    int pidfd = (int)syscall(SYS_pidfd_open, child->pid, 0);
    while (!reap(child) && wfi_now(&wfi_clock_real) < deadline_ns)
        sleep_for_child(pidfd, deadline_ns);
    if (pidfd >= 0)
        close(pidfd);
    return child->ended;
}

/* All must end, so they are waited for one after the other. */
static bool await_all(weft_job *job, uint64_t deadline_ns)
{
    bool all = true;
    for (int i = 0; i < job->count; i++)
        all &= await(&job->processes[i], deadline_ns);
    return all;
}

static void signal_all(weft_job *job, int number)
{
    for (int i = 0; i < job->count; i++)
        if (!reap(&job->processes[i]))
            (void)kill(job->processes[i].pid, number);
}

/* The highest exit code; *unknown: the code of some child is not known. */
static int worst_of(const weft_job *job, bool *unknown)
{
    int worst = 0;
    *unknown = false;
    for (int i = 0; i < job->count; i++) {
        int code = job->processes[i].exit_code;
        *unknown |= code < 0;
        worst = code > worst ? code : worst;
    }
    return worst;
}

/* If rank 0's agent did not open, the exit codes of the children say nothing new. A signal does. */
static weft_log_level level_of(const weft_job *job)
{
    for (int i = 0; i < job->count; i++)
        if (job->processes[i].signal)
            return WEFT_LOG_ERROR;
    return job->has_failed ? WEFT_LOG_INFO : WEFT_LOG_ERROR;
}

/* The children that failed, as wfi_processes_name. */
static void name_failures(const weft_job *job, char *out, size_t room)
{
    int failed = 0;
    for (int i = 0; i < job->count; i++)
        if (job->processes[i].exit_code > 0 && ++failed <= NAMED_MOST)
            put_end(&job->processes[i], i + 1, out, room);
    put_more(failed, out, room);
}

static weft_status log_status(const weft_job *job, weft_status status, int64_t wait_ms)
{
    char failures[512] = "";
    name_failures(job, failures, sizeof(failures));
    const char *colon = *failures ? ": " : "";
    if (status == WEFT_ERR_TIMEOUT)
        wfi_log(WEFT_LOG_ERROR, "weft_job_close: not all children ended within %lld ms%s, and the rest were killed%s%s",
                (long long)wait_ms, job->has_failed ? " after rank 0 had failed" : "", colon, failures);
    else if (status == WEFT_ERR_REMOTE)
        wfi_log(level_of(job), "weft_job_close: children failed%s%s", colon, failures);
    else if (status)
        wfi_log(WEFT_LOG_ERROR, "weft_job_close: this program reaped a child itself, so its exit code is not known");
    if (status)
        wfi_status_logged(status);
    return status;
}

weft_status weft_job_close(weft_job *job, int64_t wait_ms, int *worst_exit)
{
    WFI_CHECK_HANDLE(job);
    if (!job)
        return WEFT_OK;
    if (wait_ms < WEFT_FOREVER) {
        wfi_log(WEFT_LOG_ERROR, "weft_job_close: wait_ms is %lld: 0, more, or WEFT_FOREVER", (long long)wait_ms);
        return WEFT_ERR_INVALID;
    }
    if (job->has_failed && (wait_ms == WEFT_FOREVER || wait_ms > FAILED_MS))
        wait_ms = FAILED_MS;
    bool in_time = await_all(job, wfi_deadline(&wfi_clock_real, wait_ms)), unknown;
    if (!in_time) {
        signal_all(job, SIGTERM);
        if (!await_all(job, wfi_deadline(&wfi_clock_real, TERM_MS))) {
            signal_all(job, SIGKILL);
            (void)await_all(job, WFI_NEVER);
        }
    }
    int worst = worst_of(job, &unknown), store_fd = wfi_job_take_fd(job);
    weft_status status = !in_time ? WEFT_ERR_TIMEOUT : worst ? WEFT_ERR_REMOTE : unknown ? WEFT_ERR_UNKNOWN : WEFT_OK;
    status = log_status(job, status, wait_ms);
    if (store_fd >= 0)
        close(store_fd);
    wfi_guarded_free(job->secret);
    wfi_handle_free(job);
    if (worst_exit)
        *worst_exit = worst;
    return status;
}
