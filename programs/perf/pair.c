/* SPDX-License-Identifier: Apache-2.0 */
/* pair.c - see pair.h. */
#include "perf/pair.h"

#include "perf/helper.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* The processors that share a core with this one, as Linux writes them ("0-1", "0,64"). "" if Linux does not say. */
static void read_siblings(int processor, char out[64])
{
    char path[96];
    *out = 0;
    snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", processor);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    if (!fgets(out, 64, file))
        *out = 0;
    fclose(file);
}

static bool share_a_core(int a, int b)
{
    char of_a[64], of_b[64];
    read_siblings(a, of_a);
    read_siblings(b, of_b);
    return *of_a && strcmp(of_a, of_b) == 0;
}

/* Two processors on which this process may run, of different cores if there are such. False: it may run on one only, or
 * on more than cpu_set_t can name. */
static bool find_cores(int out[2])
{
    cpu_set_t allowed;
    int found = 0;
    if (sched_getaffinity(0, sizeof(allowed), &allowed))
        return false;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET(i, &allowed))
            continue;
        if (found == 0 || !share_a_core(out[0], i)) {
            out[found > 0] = i;
            if (found++)
                return true;
        } else if (found == 1) {
            out[1] = i; /* unless a core of its own follows */
            found = 2;
        }
    }
    return found == 2;
}

/* A process that may not be bound stays where it is. */
static void bind_to(int processor)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(processor, &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

bool pair_split(pair *out, int (*serve)(const pair *p, void *arg), void *arg)
{
    int fds[2], processors[2];
    pid_t parent = getpid();
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds))
        return helper_say("socketpair: %s", strerror(errno));
    *out = (pair){.control = fds[0], .is_apart = find_cores(processors)};
    pid_t child = fork();
    if (child == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(fds[0]);
        out->control = fds[1];
        if (out->is_apart)
            bind_to(processors[1]);
        _exit(getppid() == parent ? serve(out, arg) : 1);
    }
    close(fds[1]);
    if (out->is_apart)
        bind_to(processors[0]);
    return child > 0 || helper_say("fork: %s", strerror(errno));
}
