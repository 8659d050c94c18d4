/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.c - see launcher.h. */
#include "run/launcher.h"

#include <stddef.h>
#include <stdlib.h>

static int number_of(const char *name)
{
    const char *text = getenv(name);
    long number = text ? strtol(text, NULL, 10) : 0;
    return number > 0 && number <= 1 << 24 ? (int)number : 0;
}

/* A batch script has the variables of Slurm too, without SLURM_STEP_ID. srun comes before PMI, because with --mpi=pmi2
 * it sets PMI's variables too. */
int launcher_tasks(const char **launcher)
{
    static const struct {
        const char *rank, *size, *step, *name;
    } known[] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, "mpirun"},
                 {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "srun"},
                 {"PMI_RANK", "PMI_SIZE", NULL, "mpirun"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        int size = number_of(known[i].size);
        *launcher = known[i].name;
        if (getenv(known[i].rank) && size > 0 && (!known[i].step || getenv(known[i].step)))
            return size > 1 ? size : 0;
    }
    *launcher = "prterun";
    return getenv("PMIX_RANK") ? -1 : 0;
}
