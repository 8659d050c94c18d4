/* SPDX-License-Identifier: Apache-2.0 */
/* find.c - chooses the way of bootstrap.h, and counts nodes. */
#include "job/bootstrap/bootstrap.h"

#include "base/env.h"

#include <stdlib.h>

static const wfi_bootstrap *const ways[] = {&wfi_bootstrap_functions, &wfi_bootstrap_pmix, &wfi_bootstrap_slurm};

const wfi_bootstrap *wfi_bootstrap_find(const wfi_bootstrap_ask *ask)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (ways[i]->is_there(ask))
            return ways[i];
    return NULL;
}

/*
 * Launchers that say how many of the job's workers there are, and how many of them are on this node: 1 node, or 2 for
 * several. 0: none of them.
 */
static int nodes_by_counts(const char **launcher)
{
    static const char *const counts[][3] = {{"Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"},
                                            {"MPICH", "PMI_SIZE", "MPI_LOCALNRANKS"},
                                            {"MPICH", "PMI_SIZE", "PMI_LOCAL_SIZE"},
                                            {"MVAPICH", "PMI_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        const char *all = wfi_env_string(counts[i][1]), *here = wfi_env_string(counts[i][2]);
        long size = all ? strtol(all, NULL, 10) : 0, local = here ? strtol(here, NULL, 10) : 0;
        *launcher = counts[i][0];
        if (size >= 1 && local >= 1 && local <= size)
            return local < size ? 2 : 1;
    }
    return 0;
}

int wfi_bootstrap_nodes(const char **launcher)
{
    const wfi_bootstrap_ask nothing = {0};
    int nodes = nodes_by_counts(launcher);
    for (size_t i = 0; i < sizeof ways / sizeof *ways && !nodes; i++)
        if (ways[i]->nodes && ways[i]->is_there(&nothing)) {
            *launcher = ways[i]->name;
            nodes = ways[i]->nodes();
        }
    return nodes;
}

weft_status wfi_bootstrap_meet(const wfi_bootstrap *way, const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer,
                               weft_error **error)
{
    answer->store_fd = -1;
    answer->ports = 1;
    return way->meet(ask, answer, error);
}
