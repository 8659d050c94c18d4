/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tuning.c - settings of libfabric's providers that only the environment has.
 *
 * From 1.19 on, tcp's records of operations have room for an unexpected tagged message each, 16 KiB, and it clears a thousand
 * records at the first operation: 17 MiB a worker, for messages that weft does not send. So the room is made as small as it
 * goes. libfabric reads its variables once in a process, when a provider is first asked for; a user's own value stands.
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
