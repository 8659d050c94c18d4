/* SPDX-License-Identifier: Apache-2.0 */
/* launchers.c - see launchers.h. */
#include "base/launchers.h"

#include <stdlib.h>
#include <string.h>

/*
 * PMI comes before Slurm: if Hydra starts its own processes with srun, Slurm's variables count those. SLURM_NTASKS may
 * be of the whole allocation, so the number of the step comes first.
 */
const wfi_launcher wfi_launchers[] = {[WFI_LAUNCHER_BY_HAND] = {.name = "weft-run",
                                                                .command = "weft-run",
                                                                .rank = "RANK",
                                                                .size = {"WORLD_SIZE"},
                                                                .local_size = {"LOCAL_WORLD_SIZE"},
                                                                .local_rank = "LOCAL_RANK"},
                                      {.name = "Open MPI",
                                       .command = "mpirun",
                                       .rank = "OMPI_COMM_WORLD_RANK",
                                       .size = {"OMPI_COMM_WORLD_SIZE"},
                                       .local_size = {"OMPI_COMM_WORLD_LOCAL_SIZE"},
                                       .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK"},
                                      {.name = "MPICH",
                                       .command = "mpirun",
                                       .rank = "PMI_RANK",
                                       .size = {"PMI_SIZE"},
                                       .local_size = {"MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"},
                                       .local_rank = "MPI_LOCALRANKID"},
                                      {.name = "MVAPICH",
                                       .command = "mpirun",
                                       .rank = "PMI_RANK",
                                       .size = {"PMI_SIZE"},
                                       .local_size = {"MV2_COMM_WORLD_LOCAL_SIZE"},
                                       .local_rank = "MV2_COMM_WORLD_LOCAL_RANK"},
                                      {.name = "Slurm",
                                       .command = "srun",
                                       .rank = "SLURM_PROCID",
                                       .size = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
                                       .local_rank = "SLURM_LOCALID",
                                       .started = "SLURM_STEP_ID"},
                                      {.name = "PMIx", .command = "prterun", .rank = "PMIX_RANK"},
                                      {0}};

/* The value of the first of these variables that is set; 0: none, or no number. */
static long first_number(const char *const *names)
{
    for (size_t i = 0; i < WFI_LAUNCHER_NAMES && names[i]; i++) {
        const char *text = getenv(names[i]);
        if (text && *text)
            return strtol(text, NULL, 10);
    }
    return 0;
}

int wfi_launcher_nodes(const char **launcher)
{
    for (const wfi_launcher *one = wfi_launchers + WFI_LAUNCHER_BY_HAND + 1; one->name; one++) {
        long size = first_number(one->size), local = first_number(one->local_size);
        *launcher = one->name;
        if (size >= 1 && local >= 1 && local <= size)
            return local < size ? 2 : 1;
    }
    return 0;
}

long wfi_launcher_slurm_number(const char *list, size_t node, long most)
{
    char *end;
    for (const char *at = list; at && *at; at = *end == ',' ? end + 1 : end) {
        long number = strtol(at, &end, 10), nodes = 1;
        if (end == at || number < 1 || number > most)
            return 0;
        if (strncmp(end, "(x", 2) == 0)
            nodes = strtol(end + 2, &end, 10);
        if (*end == ')')
            end++;
        if (nodes < 1 || (*end != ',' && *end != '\0'))
            return 0;
        if (node < (size_t)nodes)
            return number;
        node -= (size_t)nodes;
    }
    return 0;
}
