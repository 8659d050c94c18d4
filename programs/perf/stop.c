/* SPDX-License-Identifier: Apache-2.0 */
/* stop.c - see stop.h. */
#include "perf/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile sig_atomic_t caught;
static int wake[2] = {-1, -1};

static void on_signal(int number)
{
    int before = errno;
    caught = number;
    (void)!write(wake[1], "", 1);
    errno = before;
}

bool stop_catch(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0)
        return false;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
        struct sigaction now, action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | (int)SA_RESETHAND};
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler != SIG_IGN)
            (void)sigaction(numbers[i], &action, NULL);
    }
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1); /* stop_end_children then finds the processes of a task that has died */
    return true;
}

int stop_signal(void)
{
    return caught;
}

int stop_fd(void)
{
    return wake[0];
}

void stop_leave_to_parent(void)
{
    (void)signal(SIGINT, SIG_IGN);
    (void)signal(SIGTERM, SIG_DFL);
    (void)signal(SIGHUP, SIG_DFL);
}

/* Kills the children that exist now. False: this kernel has no list of them. */
static bool kill_children(void)
{
    int pid;
    FILE *list = fopen("/proc/thread-self/children", "re");
    if (!list)
        return false;
    while (fscanf(list, "%d", &pid) == 1)
        (void)kill(pid, SIGKILL);
    fclose(list);
    return true;
}

void stop_end_children(void)
{
    pid_t ended;
    do {
        bool is_killed = kill_children();
        ended = waitpid(-1, NULL, is_killed ? 0 : WNOHANG);
    } while (ended > 0 || (ended < 0 && errno == EINTR));
}
