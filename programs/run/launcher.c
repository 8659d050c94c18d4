/* SPDX-License-Identifier: Apache-2.0 */
/* launcher.c - see launcher.h. */
#include "run/launcher.h"

#include "base/launchers.h"

#include <stddef.h>
#include <stdlib.h>

static int number_of(const char *name)
{
    const char *text = getenv(name);
    long number = text ? strtol(text, NULL, 10) : 0;
    return number > 0 && number <= 1 << 24 ? (int)number : 0;
}

/* The number of tasks that the launcher has started; 0: it did not start this process; -1: not known. */
static int tasks_of(const wfi_launcher *one)
{
    int size = 0;
    if (!getenv(one->rank) || (one->started && !getenv(one->started)))
        return 0;
    for (size_t i = 0; i < WFI_LAUNCHER_NAMES && one->size[i] && !size; i++)
        size = number_of(one->size[i]);
    return one->size[0] ? size : -1;
}

/* RANK and WORLD_SIZE do not count, because a worker may start weft-run. With --mpi=pmi2, srun sets PMI's variables
 * too. So the last launcher that has started as many tasks is the one that is named. */
int launcher_tasks(const char **launcher)
{
    int tasks = 0;
    for (const wfi_launcher *one = wfi_launchers + WFI_LAUNCHER_BY_HAND + 1; one->name; one++) {
        int these = tasks_of(one);
        if (these && (!tasks || these == tasks)) {
            tasks = these;
            *launcher = one->command;
        }
    }
    return tasks != 1 ? tasks : 0;
}
