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

/* A launcher that says how many of the job's workers are on this node: more than one node, or one. */
static int nodes_of_open_mpi(void)
{
    const char *all = wfi_env_string("OMPI_COMM_WORLD_SIZE"), *here = wfi_env_string("OMPI_COMM_WORLD_LOCAL_SIZE");
    long size = all ? strtol(all, NULL, 10) : 0, local = here ? strtol(here, NULL, 10) : 0;
    if (size < 1 || local < 1 || local > size)
        return 0;
    return (int)((size + local - 1) / local);
}

int wfi_bootstrap_nodes(const char **launcher)
{
    const wfi_bootstrap_ask nothing = {0};
    int nodes = nodes_of_open_mpi();
    *launcher = "Open MPI";
    for (size_t i = 0; i < sizeof ways / sizeof *ways && !nodes; i++)
        if (ways[i]->is_there(&nothing)) {
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
