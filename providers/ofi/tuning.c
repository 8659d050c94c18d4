/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tuning.c - settings of libfabric that exist only as environment variables, and signals that a library of it takes.
 *
 * libfabric reads its variables once in a process, when it is first used. So they are set before that, for all
 * providers. A value that the user has set is kept.
 *
 * tcp: since 1.19 each operation record has room for an unexpected tagged message of 16 KiB. tcp clears a thousand
 * records at the first operation. That is 17 MiB per worker, for messages that weft does not send. So this room is made
 * as small as possible.
 *
 * verbs: libfabric has a cache of registrations. It keeps a region valid after the region was closed, so peers can
 * still reach the memory. It also gives a new region the access of an earlier one at the same address. weft has its own
 * cache, so libfabric's is switched off.
 *
 * psm: libinfinipath, to which Debian's libfabric is linked, installs handlers of signals when it is loaded. They call
 * exit(3). So a worker that crashes ends with code 1, and one that is terminated inside of libfabric can hang in its
 * destructor. So weft gives these signals their default action again when it is loaded, whatever fabrics are used
 * later.
 */
#include "objects.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool is_infinipaths(const struct sigaction *action)
{
    Dl_info where;
    void *handler;
    memcpy(&handler, &action->sa_handler, sizeof(handler)); /* sa_sigaction is at the same place */
    return action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN && dladdr(handler, &where) &&
           where.dli_fname && strstr(where.dli_fname, "libinfinipath");
}

/* When the program is loaded: after libinfinipath, on which this code depends, and before main. */
__attribute__((constructor)) static void restore_signals(void)
{
    static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGILL, SIGINT, SIGTERM};
    for (size_t i = 0; i < sizeof(signals) / sizeof(*signals); i++) {
        struct sigaction action;
        if (!sigaction(signals[i], NULL, &action) && is_infinipaths(&action))
            (void)signal(signals[i], SIG_DFL);
    }
}

static void set_up(void)
{
    if (fi_version() >= FI_VERSION(1, 19))
        (void)setenv("FI_TCP_MAX_RX_SIZE", "128", 0); /* tcp raises it to its inject size, which is 128 too */
    (void)setenv("FI_MR_CACHE_MONITOR", "disabled", 0);
}

void wfofi_tune(void)
{
    pthread_once(&once, set_up);
}
