/* SPDX-License-Identifier: Apache-2.0 */
/* worker.c - see worker.h. */
#include "run/worker.h"

#include "base/threads.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void close_both(int fds[2])
{
    for (int i = 0; i < 2; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* In the child: only functions that may be called between fork and exec. */
static void become(const worker_recipe *how, int out, int err, int report, pid_t parent)
{
    sigset_t none;
    int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC), trouble = 0;
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(127);
    (void)signal(SIGPIPE, SIG_DFL); /* the node ignores it */
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    if (nothing >= 0 && dup2(nothing, 0) >= 0 && dup2(out, 1) >= 0 && dup2(err, 2) >= 0 &&
        (how->secret_fd < 0 || fcntl(how->secret_fd, F_SETFD, 0) == 0))
        execvpe(how->argv[0], how->argv, how->envp);
    trouble = errno;
    (void)!write(report, &trouble, sizeof trouble);
    _exit(127);
}

static pid_t start(const worker_recipe *how, int out, int err, int report)
{
    pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        become(how, out, err, report, parent);
    if (pid > 0)
        (void)setpgid(pid, pid); /* the child does it too: the group exists before either goes on */
    return pid;
}

/* The exec closes the pipe; before it, the child writes why it could not. */
static int read_report(int fd)
{
    int trouble = 0;
    ssize_t got;
    do
        got = read(fd, &trouble, sizeof trouble);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof trouble ? trouble : 0;
}

int worker_start(worker *made, int rank, const worker_recipe *how)
{
    int out[2] = {-1, -1}, err[2] = {-1, -1}, report[2] = {-1, -1}, trouble = 0;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(err, O_CLOEXEC) != 0 || pipe2(report, O_CLOEXEC) != 0)
        goto fail;
    pid_t pid = start(how, out[1], err[1], report[1]);
    if (pid < 0)
        goto fail;
    close(report[1]);
    report[1] = -1;
    trouble = read_report(report[0]);
    if (trouble) {
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        goto close_pipes;
    }
    close(report[0]);
    close(out[1]);
    close(err[1]);
    (void)fcntl(out[0], F_SETFL, O_NONBLOCK);
    (void)fcntl(err[0], F_SETFL, O_NONBLOCK);
    *made = (worker){.rank = rank, .pid = pid, .pipes = {out[0], err[0]}};
    return 0;

fail:
    trouble = errno;
close_pipes:
    close_both(out);
    close_both(err);
    close_both(report);
    return trouble;
}

void worker_describe_trouble(const char *program, int trouble, char *out, size_t room)
{
    char here[300], limit[WFI_THREADS_TEXT];
    snprintf(here, sizeof here, "./%s", program);
    bool is_searched = trouble == ENOENT && !strchr(program, '/');
    if (is_searched && strlen(program) < sizeof here - 2 && access(here, X_OK) == 0)
        snprintf(out, room, "%.256s: not found on PATH: to start the program of this folder, write %s", program, here);
    else
        snprintf(out, room, "%.256s: %s", program,
                 is_searched         ? "not found on PATH"
                 : trouble == EAGAIN ? wfi_threads_text(trouble, limit)
                                     : strerror(trouble));
}

void worker_signal(const worker *to, int number)
{
    if (to->pid > 0)
        (void)kill(-to->pid, number);
}

int worker_reap(worker *ended)
{
    int status = 0;
    (void)kill(-ended->pid, SIGKILL); /* before it is reaped: nobody else can have the number of the group yet */
    while (waitpid(ended->pid, &status, 0) < 0 && errno == EINTR)
        ;
    ended->pid = 0;
    return status;
}
