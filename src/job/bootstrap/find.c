/* SPDX-License-Identifier: Apache-2.0 */
/* find.c - chooses the method of bootstrap.h, and counts nodes. */
#include "job/bootstrap/bootstrap.h"

#include "base/env.h"
#include "base/launchers.h"

#include <stdlib.h>
#include <unistd.h>

static const wfi_bootstrap *const methods[] = {&wfi_bootstrap_functions, &wfi_bootstrap_pmix, &wfi_bootstrap_slurm};

const wfi_bootstrap *wfi_bootstrap_choose(const wfi_bootstrap_ask *ask)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (methods[i]->is_there(ask))
            return methods[i];
    return NULL;
}

/* The value of the first of these variables that is set; 0: none, or no number. */
static long first_number(const char *const *names)
{
    for (size_t i = 0; i < WFI_LAUNCHER_NAMES && names[i]; i++) {
        const char *text = wfi_env_string(names[i]);
        if (text)
            return strtol(text, NULL, 10);
    }
    return 0;
}

/*
 * Launchers that say how many of the job's workers there are, and how many of them are on this node: 1 node, or 2 for
 * several. 0: none of them.
 */
static int nodes_by_counts(const char **launcher)
{
    for (const wfi_launcher *one = wfi_launchers + WFI_LAUNCHER_BY_HAND + 1; one->name; one++) {
        long size = first_number(one->size), local = first_number(one->local_size);
        *launcher = one->name;
        if (size >= 1 && local >= 1 && local <= size)
            return local < size ? 2 : 1;
    }
    return 0;
}

int wfi_bootstrap_nodes(const char **launcher)
{
    const wfi_bootstrap_ask nothing = {0};
    int nodes = nodes_by_counts(launcher);
    for (size_t i = 0; i < sizeof methods / sizeof *methods && !nodes; i++)
        if (methods[i]->nodes && methods[i]->is_there(&nothing)) {
            *launcher = methods[i]->name;
            nodes = methods[i]->nodes();
        }
    return nodes;
}

weft_status wfi_bootstrap_find(const wfi_bootstrap *method, const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer,
                               weft_error **error)
{
    answer->store_fd = -1;
    answer->ports = 1;
    weft_status status = method->find(ask, answer, error);
    if (status && answer->store_fd >= 0) {
        close(answer->store_fd);
        answer->store_fd = -1;
    }
    return status;
}
