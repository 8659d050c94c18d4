/* SPDX-License-Identifier: Apache-2.0 */
/* children.c - starting, stopping and hearing the workers of a test that is its own workers. */
#include "rpc/children.h"

#include "rpc/world.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define REPORT_FD 109 /* out of the way of those that are open already */
#define ORDER_FD 110
#define ALARM_S 60

double child_now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- In the child ------------------------------------------------------------------------------------------------ */

void child_say(char what)
{
    MUST(write(REPORT_FD, &what, 1) == 1);
}

void child_await_order(char what)
{
    char got = 0;
    MUST(read(ORDER_FD, &got, 1) == 1 && got == what);
}

bool child_read_line(char *line, size_t room)
{
    size_t used = 0;
    char got;
    while (read(ORDER_FD, &got, 1) == 1 && got != '\n' && used + 1 < room)
        line[used++] = got;
    line[used] = 0;
    alarm(ALARM_S);
    return used > 0;
}

int child_play(int argc, char **argv, const child_role *roles, size_t count)
{
    for (size_t i = 0; argc > 1 && i < count; i++)
        if (strcmp(argv[1], roles[i].name) == 0)
            return roles[i].run();
    signal(SIGPIPE, SIG_IGN);
    return -1;
}

/* ---- In the parent ----------------------------------------------------------------------------------------------- */

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void become(const char *role, int report, int order)
{
    alarm(ALARM_S);
    report = fcntl(report, F_DUPFD, 100); /* out of the way of the numbers that they get */
    order = fcntl(order, F_DUPFD, 100);
    for (int fd = 3; fd < 100; fd++)
        close(fd);
    dup2(report, REPORT_FD);
    dup2(order, ORDER_FD);
    close(report);
    close(order);
    execl("/proc/self/exe", "child", role, (char *)NULL);
    _exit(99);
}

child child_start(int rank, int world_size, int port, const char *role)
{
    int reports[2], orders[2];
    MUST(pipe(reports) == 0 && pipe(orders) == 0);
    set_number("RANK", rank);
    set_number("WORLD_SIZE", world_size);
    set_number("MASTER_PORT", port);
    pid_t pid = fork();
    MUST(pid >= 0);
    if (pid == 0)
        become(role, reports[1], orders[0]);
    close(reports[1]);
    close(orders[0]);
    return (child){pid, reports[0], orders[1]};
}

void child_start_three(child children[3], const char *zero, const char *one, const char *two)
{
    int port = world_free_port();
    children[0] = child_start(0, 3, port, zero);
    children[1] = child_start(1, 3, port, one);
    children[2] = child_start(2, 3, port, two);
}

void child_hear(const child *from, char what)
{
    char heard = 0;
    assert_int_equal(read(from->report, &heard, 1), 1);
    assert_int_equal(heard, what);
}

void child_order(const child *to, char what)
{
    assert_int_equal(write(to->order, &what, 1), 1);
}

void child_write_line(const child *to, const char *line)
{
    assert_int_equal(write(to->order, line, strlen(line)), strlen(line));
}

void child_dismiss(child *one)
{
    close(one->order);
    one->order = -1;
}

void child_signal(const child *to, int signal_number)
{
    int status;
    MUST(kill(to->pid, signal_number) == 0);
    if (signal_number == SIGSTOP)
        MUST(waitpid(to->pid, &status, WUNTRACED) == to->pid && WIFSTOPPED(status));
}

int child_end(child *one)
{
    int status;
    MUST(waitpid(one->pid, &status, 0) == one->pid);
    close(one->report);
    if (one->order >= 0)
        close(one->order);
    return status;
}

void child_must_end_well(child *children, int count)
{
    for (int rank = 0; rank < count; rank++)
        assert_int_equal(child_end(&children[rank]), 0);
}
