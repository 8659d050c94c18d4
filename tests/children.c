/* SPDX-License-Identifier: Apache-2.0 */
/* children.c - see children.h. */
#include "children.h"

#include "rpc/must.h"
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIMIT_S 120
#define LINE_FD 3 /* in child_exec's child */
#define MEMORY "TEST_CHILD_MEMORY"

static int line_to_parent = LINE_FD;
static bool is_copy; /* this is a child of child_fork */

double child_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* cmocka would show its own text at the end of a test, and only there. Its jump to that is for the parent alone. */
#define COMPLAIN(one, ...)                                                                                             \
    (fprintf(stderr, "child '%s': ", (one)->name), fprintf(stderr, __VA_ARGS__), is_copy ? _exit(1) : fail())

/* ---- In the child ------------------------------------------------------------------------------------------------ */

void child_become(const char *const *argv)
{
    dup2(line_to_parent, LINE_FD);
    fcntl(LINE_FD, F_SETFD, 0);
    (void)close_range(LINE_FD + 1, ~0U, 0);
    execv("/proc/self/exe", (char *const *)argv);
    _exit(127);
}

void child_tell(const void *data, size_t size)
{
    MUST(send(line_to_parent, data, size, MSG_NOSIGNAL) == (ssize_t)size);
}

void child_say(char what)
{
    child_tell(&what, 1);
}

void child_await_order(char what)
{
    char got = 0;
    MUST(read(line_to_parent, &got, 1) == 1 && got == what);
}

bool child_read_line(char *line, size_t room)
{
    size_t used = 0;
    char got;
    while (read(line_to_parent, &got, 1) == 1 && got != '\n' && used + 1 < room)
        line[used++] = got;
    line[used] = 0;
    return used > 0;
}

int child_play(int argc, char **argv, const child_role *roles, size_t count)
{
    for (size_t i = 0; argc > 1 && i < count; i++)
        if (strcmp(argv[1], roles[i].name) == 0)
            return roles[i].run();
    return -1;
}

/* ---- Starting ---------------------------------------------------------------------------------------------------- */

child child_fork(const char *name)
{
    int ends[2];
    child one = {0};
    pid_t parent = getpid();
    snprintf(one.name, sizeof(one.name), "%s", name);
    fflush(NULL);
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) || (one.pid = fork()) < 0)
        COMPLAIN(&one, "starting it: %s\n", strerror(errno));
    one.line = ends[one.pid == 0];
    close(ends[one.pid != 0]);
    if (one.pid)
        return one;
    line_to_parent = one.line;
    is_copy = true;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    return one;
}

child child_exec(const char *name, const char *const *argv)
{
    child one = child_fork(name);
    if (!one.pid)
        child_become(argv);
    return one;
}

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof(text), "%d", number);
    setenv(name, text, 1);
}

child child_start(int rank, int world_size, int port, const char *role)
{
    char name[40];
    set_number("RANK", rank);
    set_number("WORLD_SIZE", world_size);
    set_number("MASTER_PORT", port);
    snprintf(name, sizeof(name), "%s, rank %d", role, rank);
    return child_exec(name, (const char *const[]){"child", role, NULL});
}

void child_start_three(child children[3], int port, const char *zero, const char *one, const char *two)
{
    children[0] = child_start(0, 3, port, zero);
    children[1] = child_start(1, 3, port, one);
    children[2] = child_start(2, 3, port, two);
}

void *child_memory(size_t bytes)
{
    char name[64];
    const char *inherited = getenv(MEMORY);
    int fd = inherited ? open(inherited, O_RDWR | O_CLOEXEC) : memfd_create("children", MFD_CLOEXEC);
    if (!inherited) {
        MUST(ftruncate(fd, (off_t)bytes) == 0);
        snprintf(name, sizeof(name), "/proc/%d/fd/%d", (int)getpid(), fd);
        setenv(MEMORY, name, 1);
    }
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    MUST(at != MAP_FAILED);
    if (inherited)
        close(fd);
    return at;
}

/* ---- Talking ----------------------------------------------------------------------------------------------------- */

void child_receive(const child *from, void *data, size_t size)
{
    struct pollfd line = {.fd = from->line, .events = POLLIN};
    if (poll(&line, 1, LIMIT_S * 1000) != 1)
        COMPLAIN(from, "has said nothing for %d s\n", LIMIT_S);
    if (recv(from->line, data, size, MSG_WAITALL) != (ssize_t)size)
        COMPLAIN(from, "has closed its line\n");
}

void child_hear(const child *from, char what)
{
    char heard = 0;
    child_receive(from, &heard, 1);
    if (heard != what)
        COMPLAIN(from, "has said '%c', not '%c'\n", heard, what);
}

void child_write_line(const child *to, const char *line)
{
    if (send(to->line, line, strlen(line), MSG_NOSIGNAL) != (ssize_t)strlen(line))
        COMPLAIN(to, "takes no orders: %s\n", strerror(errno));
}

void child_order(const child *to, char what)
{
    child_write_line(to, (const char[]){what, 0});
}

void child_dismiss(const child *one)
{
    shutdown(one->line, SHUT_WR);
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

void child_signal(const child *to, int signal_number)
{
    int status = 0;
    if (kill(to->pid, signal_number) ||
        (signal_number == SIGSTOP && (waitpid(to->pid, &status, WUNTRACED) != to->pid || !WIFSTOPPED(status))))
        COMPLAIN(to, "signal %d: %s, status %#x\n", signal_number, strerror(errno), (unsigned)status);
}

bool child_has_ended(child *one, int *status)
{
    pid_t ended = waitpid(one->pid, status, WNOHANG);
    if (ended == 0)
        return false;
    if (ended < 0)
        COMPLAIN(one, "waiting for it: %s\n", strerror(errno));
    close(one->line);
    one->pid = 0;
    return true;
}

int child_end(child *one)
{
    int status = 0;
    for (double until = child_now_s() + LIMIT_S; !child_has_ended(one, &status); usleep(1000))
        if (child_now_s() > until) {
            kill(one->pid, SIGKILL);
            COMPLAIN(one, "has not ended in %d s\n", LIMIT_S);
        }
    return status;
}

void child_kill(child *one)
{
    kill(one->pid, SIGKILL);
    int status = child_end(one);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
        COMPLAIN(one, "had ended by itself: status %#x\n", (unsigned)status);
}

void child_must_end_well(child *children, int count)
{
    for (int i = 0; i < count; i++) {
        int status = child_end(&children[i]);
        if (status)
            COMPLAIN(&children[i], "%s %d\n", WIFEXITED(status) ? "exited with" : "was killed by signal",
                     WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
}
