/* SPDX-License-Identifier: Apache-2.0 */
/* find.c - chooses the method of bootstrap.h, and counts nodes. */
#include "job/bootstrap/bootstrap.h"

#include "base/launchers.h"

#include <unistd.h>

/* PMI comes before Slurm: in an allocation, Hydra starts its own processes with srun. */
static const wfi_bootstrap *const methods[] = {&wfi_bootstrap_functions, &wfi_bootstrap_pmix, &wfi_bootstrap_pmi,
                                               &wfi_bootstrap_slurm};

const wfi_bootstrap *wfi_bootstrap_choose(const wfi_bootstrap_ask *ask)
{
    for (size_t i = 0; i < sizeof(methods) / sizeof(*methods); i++)
        if (methods[i]->is_there(ask))
            return methods[i];
    return NULL;
}

int wfi_bootstrap_nodes(const char **launcher)
{
    const wfi_bootstrap_ask nothing = {0};
    int nodes = wfi_launcher_nodes(launcher);
    for (size_t i = 0; i < sizeof(methods) / sizeof(*methods) && !nodes; i++)
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
