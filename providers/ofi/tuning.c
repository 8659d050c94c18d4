/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tuning.c - settings of libfabric's providers that exist only as environment variables.
 *
 * Since 1.19 each operation record of tcp has room for an unexpected tagged message of 16 KiB, and tcp clears a
 * thousand records at the first operation: 17 MiB per worker, for messages that weft does not send. So this room is
 * made as small as possible. libfabric reads its variables once in a process, when a provider is first used. A value
 * that the user has set is kept.
 */
#include "objects.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void set_variables(void)
{
    if (fi_version() >= FI_VERSION(1, 19))
        (void)setenv("FI_TCP_MAX_RX_SIZE", "128", 0); /* tcp raises it to its inject size, which is 128 too */
}

void wfofi_tune(void)
{
    pthread_once(&once, set_variables);
}
