/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tuning.c - settings of libfabric that exist only as environment variables.
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
 */
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void set_variables(void)
{
    if (fi_version() >= FI_VERSION(1, 19))
        (void)setenv("FI_TCP_MAX_RX_SIZE", "128", 0); /* tcp raises it to its inject size, which is 128 too */
    (void)setenv("FI_MR_CACHE_MONITOR", "disabled", 0);
}

void wfofi_tune(void)
{
    pthread_once(&once, set_variables);
}
