/* SPDX-License-Identifier: Apache-2.0 */
/* batch_stats.h - what the tests of batches look at: the statistics of a function that is batched there. */
#ifndef TESTS_RPC_BATCH_STATS_H
#define TESTS_RPC_BATCH_STATS_H

#include "rpc/must.h"

#include <weft/batch.h>

static inline weft_batch_stats stats_of(weft_agent *agent, const char *function)
{
    weft_batch_stats stats;
    MUST_OK(weft_batch_stats_read(agent, function, &stats));
    return stats;
}

#endif
