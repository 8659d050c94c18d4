/* SPDX-License-Identifier: Apache-2.0 */
/*
 * signal.c - weft_debug_on_signal: on a signal a thread writes weft_debug_dump of each open agent to stderr. The signal
 * handler only writes to an eventfd, on which the thread waits.
 */
#include "rpc/observe/observe.h"

#include "base/error.h"
#include "base/text/log.h"
#include "base/threads.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static int watched; /* the signal; 0: none. Used by one thread at a time: weft/agent.h */
static struct sigaction before;
static pthread_t thread;
static _Atomic int wake_fd = -1;
static atomic_bool ends;
static pid_t owner; /* the process that has the thread: a child of fork(2) also has the descriptor */

static void wake(int signal_number)
{
    uint64_t one = 1;
    int error = errno, fd = atomic_load(&wake_fd);
    (void)signal_number;
    ssize_t written = fd >= 0 && getpid() == owner ? write(fd, &one, sizeof one) : 0;
    (void)written; /* a full eventfd also wakes */
    errno = error;
}

static void dump_all(void)
{
    size_t count = 0;
    for (weft_agent *agent; (agent = wfi_forks_enter(count)); count++) {
        weft_status st = wfi_dump(agent, stderr);
        if (st)
            wfi_log_agent(agent, WEFT_LOG_WARN, 0, "nothing could be written for the signal: %s", weft_status_text(st));
        wfi_agent_leave(agent);
    }
    if (!count)
        wfi_log(WEFT_LOG_WARN, "a signal asked for the state of the agents of this process: none is open");
}

static void *run(void *arg)
{
    uint64_t count;
    (void)arg;
    while (read(atomic_load(&wake_fd), &count, sizeof count) < 0 ? errno == EINTR : true) {
        if (atomic_load(&ends))
            break;
        dump_all();
    }
    return NULL;
}

static void stop_watching(void)
{
    uint64_t one = 1;
    if (!watched)
        return;
    (void)sigaction(watched, &before, NULL);
    watched = 0;
    atomic_store(&ends, true);
    ssize_t written = write(atomic_load(&wake_fd), &one, sizeof one);
    (void)written;
    pthread_join(thread, NULL);
    close(atomic_exchange(&wake_fd, -1));
    atomic_store(&ends, false);
}

static weft_status refuse(weft_status status, const char *why, int signal_number)
{
    wfi_log(WEFT_LOG_ERROR, "weft_debug_on_signal: signal %d: %s", signal_number, why);
    wfi_status_said(status);
    return status;
}

weft_status weft_debug_on_signal(int signal_number)
{
    struct sigaction how = {.sa_handler = wake, .sa_flags = SA_RESTART}, now;
    sigfillset(&how.sa_mask);
    if (signal_number == 0) {
        stop_watching();
        return WEFT_OK;
    }
    if (watched)
        return refuse(WEFT_ERR_EXISTS, "weft watches a signal already: call weft_debug_on_signal(0) first",
                      signal_number);
    if (signal_number < 0 || sigaction(signal_number, NULL, &now) != 0 || signal_number == SIGKILL ||
        signal_number == SIGSTOP)
        return refuse(WEFT_ERR_INVALID, "it is no signal that can be handled: take SIGUSR1, for example",
                      signal_number);
    if (now.sa_handler != SIG_DFL && now.sa_handler != SIG_IGN)
        return refuse(WEFT_ERR_EXISTS, "the program handles it: take another signal", signal_number);
    int fd = eventfd(0, EFD_CLOEXEC);
    owner = getpid();
    atomic_store(&wake_fd, fd);
    int trouble = fd < 0 ? errno : wfi_start_quiet_thread(&thread, run, NULL, "weft-debug");
    if (!trouble && sigaction(signal_number, &how, &before) == 0) {
        watched = signal_number;
        return WEFT_OK;
    }
    if (!trouble) { /* the thread runs: stop_watching ends it */
        watched = SIGKILL;
        stop_watching();
    } else if (fd >= 0) {
        close(atomic_exchange(&wake_fd, -1));
    }
    return refuse(WEFT_ERR_SYSTEM, "it could not be watched: no descriptor, or no thread, is left", signal_number);
}
