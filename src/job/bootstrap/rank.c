/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - a worker's rank and the size of its job, from the variables of its launcher (launchers.h). */
#include "base/env.h"
#include "base/error.h"
#include "base/launchers.h"
#include "base/utf8.h"
#include "job/bootstrap/bootstrap.h"

#include <weft/agent.h>
#include <weft/job.h>

/* The advice if the environment of a worker is incomplete. */
#define START_IT "start the program with weft-run -n N, mpirun or srun"

/* No launcher has set both variables. If one of them is set, the error names the other. */
static weft_status no_rank(bool elastic, weft_error **error)
{
    for (const wfi_launcher *one = wfi_launchers; one->name; one++) {
        const char *last = one->size[1] ? one->size[1] : one->size[0];
        const char *rank = wfi_env_string(one->rank), *size = last ? wfi_env_string(last) : NULL;
        if (!last || !rank == !size)
            continue;
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "%s is set (\"%.*s\"), but %s is not: a worker needs both (RANK and WORLD_SIZE, or a "
                              "launcher's variables): " START_IT ", or set has_rank "
                              "in the options",
                              rank ? one->rank : last, wfi_utf8_fit(rank ? rank : size, 32), rank ? rank : size,
                              rank ? last : one->rank);
    }
    return wfi_error_fail(error, WEFT_ERR_INVALID,
                          elastic ? "neither options (has_rank) nor the environment (WORLD_SIZE) say how many "
                                    "ranks the elastic job has: start it with weft-run --elastic MIN:MAX, or set "
                                    "WORLD_SIZE"
                                  : "neither options (has_rank) nor the environment (RANK and WORLD_SIZE) say "
                                    "which worker this is: " START_IT);
}

/* prterun sets no size: PMIx knows it. */
static weft_status rank_from_pmix(bool elastic, int *rank_out, int *size_out, weft_error **error)
{
    int64_t rank = -1;
    const char *why;
    weft_status status = wfi_env_i64("PMIX_RANK", 0, 65535, &rank, error);
    if (status)
        return status;
    if (rank < 0)
        return no_rank(elastic, error);
    if (!wfi_pmix_world_size(size_out, &why))
        return wfi_error_fail(error, WEFT_ERR_INVALID,
                              "PMIX_RANK is %lld, and the size of the job is not known (%s): " START_IT ", or set RANK "
                              "and WORLD_SIZE",
                              (long long)rank, why);
    *rank_out = (int)rank;
    return WEFT_OK;
}

/* Reads the rank and the size of the job, if this launcher has set both; *from is the variable of the size. Otherwise
 * *size is -1. */
static weft_status read_launcher(const wfi_launcher *launcher, bool elastic, int64_t *rank, int64_t *size,
                                 const char **from, weft_error **error)
{
    *rank = WEFT_ANY_RANK;
    *size = -1;
    weft_status status = wfi_env_i64(launcher->rank, elastic ? WEFT_ANY_RANK : 0, 65535, rank, error);
    for (size_t i = 0; i < WFI_LAUNCHER_NAMES && launcher->size[i] && *size < 1 && !status; i++) {
        *from = launcher->size[i];
        status = wfi_env_i64(*from, 1, 65536, size, error);
    }
    if (*rank < 0 && !elastic)
        *size = -1;
    return status;
}

/* RANK and WORLD_SIZE, left over in the environment, would make each worker of mpirun a job of its own. A launcher may
 * start fewer processes than WORLD_SIZE: one that starts the workers of a node. */
static weft_status check_by_hand(bool elastic, int64_t rank, int64_t size, weft_error **error)
{
    for (const wfi_launcher *one = wfi_launchers + WFI_LAUNCHER_BY_HAND + 1; one->name; one++) {
        int64_t other_rank, started;
        const char *from = NULL;
        weft_error *malformed = NULL;
        weft_status status = read_launcher(one, elastic, &other_rank, &started, &from, &malformed);
        weft_error_unref(malformed);
        if (!status && started > size && wfi_env_string(one->rank) && (!one->started || wfi_env_string(one->started)))
            return wfi_error_fail(error, WEFT_ERR_INVALID,
                                  "RANK is %lld and WORLD_SIZE %lld, but %s started this process as rank %lld of %lld "
                                  "(%s, %s): unset RANK and WORLD_SIZE, or start the program without %s",
                                  (long long)rank, (long long)size, one->command, (long long)other_rank,
                                  (long long)started, one->rank, from, one->command);
    }
    return WEFT_OK;
}

weft_status wfi_bootstrap_rank(bool elastic, int *rank_out, int *size_out, weft_error **error)
{
    int64_t rank, size = -1;
    const char *from = NULL;
    const wfi_launcher *one = wfi_launchers;
    for (; one->name && one->size[0]; one++) {
        weft_status status = read_launcher(one, elastic, &rank, &size, &from, error);
        if (status)
            return status;
        if (size >= 1)
            break;
    }
    if (size < 1)
        return rank_from_pmix(elastic, rank_out, size_out, error);
    if (one->started && !wfi_env_string(one->started) && rank == 0 && size > 1) /* as in a batch script */
        return wfi_error_fail(
            error, WEFT_ERR_INVALID,
            "world size %lld comes from %s, but %s did not start this process (%s is not set): " START_IT
            ", or set RANK and WORLD_SIZE",
            (long long)size, from, one->command, one->started);
    /* weft_job_open may run in a process of mpirun, and sets both variables for its children. */
    if (one == wfi_launchers && !wfi_env_string("WEFT_SPAWNED")) {
        weft_status status = check_by_hand(elastic, rank, size, error);
        if (status)
            return status;
    }
    *rank_out = (int)rank;
    *size_out = (int)size;
    return WEFT_OK;
}

bool weft_job_is_launched(int *rank, int *world_size)
{
    bool launched = wfi_env_string("WORLD_SIZE") != NULL;
    int one, all;
    weft_error *error = NULL;
    bool elastic = false;
    for (const wfi_launcher *l = wfi_launchers; l->name && !launched; l++)
        launched = wfi_env_string(l->rank) && (!l->started || wfi_env_string(l->started));
    bool known = launched && (rank || world_size) && !wfi_env_bool("WEFT_ELASTIC", &elastic, &error) &&
                 !wfi_bootstrap_rank(elastic, &one, &all, &error) && one < all;
    weft_error_unref(error);
    if (rank)
        *rank = known ? one : -1;
    if (world_size)
        *world_size = known ? all : -1;
    return launched;
}
