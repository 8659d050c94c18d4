/* SPDX-License-Identifier: Apache-2.0 */
/* quota.c - see quota.h. */
#include "topo/quota.h"

#include "base/env.h"
#include "base/launchers.h"
#include "base/text/log.h"
#include "topo/cgroup.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

#define PROCESSES_MAX 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int table_says;                /* [lock] 0: nothing yet */
static _Atomic int cores_found;       /* written under the lock; 0: to be found */
static _Atomic uint64_t memory_found; /* the same */
static pthread_once_t forks_once = PTHREAD_ONCE_INIT, said_once = PTHREAD_ONCE_INIT;

static void renew_lock(void) /* in a child of fork(): the thread that held the lock does not exist here */
{
    pthread_mutex_init(&lock, NULL);
}

static void watch_forks(void)
{
    (void)pthread_atfork(NULL, NULL, renew_lock);
}

static void take_lock(void)
{
    pthread_once(&forks_once, watch_forks);
    pthread_mutex_lock(&lock);
}

/* ---- How many processes ----------------------------------------------------------------------------------------- */

static int to_count(const char *text)
{
    char *end;
    long count = text ? strtol(text, &end, 10) : 0;
    return count >= 1 && count <= PROCESSES_MAX ? (int)count : 0;
}

static int slurm_says(void)
{
    static const char *const lists[] = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"};
    const char *node = wfi_env_string("SLURM_NODEID");
    long at = node ? strtol(node, NULL, 10) : 0;
    int tasks = 0;
    for (size_t i = 0; i < sizeof(lists) / sizeof(*lists) && !tasks && at >= 0; i++)
        tasks = (int)wfi_launcher_slurm_number(wfi_env_string(lists[i]), (size_t)at, PROCESSES_MAX);
    return tasks ? tasks : to_count(wfi_env_string("SLURM_NTASKS_PER_NODE")); /* one number for all nodes */
}

weft_status wfi_quota_setting(int64_t *processes, weft_error **error)
{
    *processes = 0;
    return wfi_env_i64("LOCAL_WORLD_SIZE", 1, PROCESSES_MAX, processes, error);
}

int wfi_quota_launched(bool *is_unbound)
{
    int64_t setting;
    *is_unbound = wfi_quota_setting(&setting, NULL) == WEFT_OK && setting > 0;
    if (*is_unbound)
        return (int)setting;
    for (const wfi_launcher *one = wfi_launchers + WFI_LAUNCHER_BY_HAND + 1; one->name; one++) {
        for (size_t i = 0; i < WFI_LAUNCHER_NAMES && one->local_size[i]; i++) {
            int count = to_count(wfi_env_string(one->local_size[i]));
            if (count)
                return count;
        }
    }
    return slurm_says();
}

static int to_rank(const char *text)
{
    char *end;
    long rank = text ? strtol(text, &end, 10) : -1;
    return rank >= 0 && rank < PROCESSES_MAX && end != text && *end == '\0' ? (int)rank : -1;
}

/* If the whole job is here, RANK is this rank too. */
int wfi_quota_local_rank(void)
{
    int here = to_count(wfi_env_string("LOCAL_WORLD_SIZE")), rank = -1;
    if (here > 0 && here == to_count(wfi_env_string("WORLD_SIZE")))
        rank = to_rank(wfi_env_string("RANK"));
    for (const wfi_launcher *one = wfi_launchers; one->name && rank < 0; one++)
        rank = one->local_rank ? to_rank(wfi_env_string(one->local_rank)) : -1;
    return rank > 0 ? rank : 0;
}

/* For programs that compute without an agent; the opening of one fails for a bad value. */
static void say_bad_setting(void)
{
    int64_t setting;
    weft_error *error = NULL;
    if (wfi_quota_setting(&setting, &error))
        wfi_log(WEFT_LOG_ERROR, "%s: it counts for nothing", weft_error_message(error));
    weft_error_unref(error);
}

void wfi_quota_set_processes(int processes)
{
    take_lock();
    table_says = processes;
    atomic_store(&cores_found, 0);
    atomic_store(&memory_found, 0);
    pthread_mutex_unlock(&lock);
}

/* ---- The shares ------------------------------------------------------------------------------------------------- */

static int at_least_one(int count)
{
    return count > 0 ? count : 1;
}

/*
 * Divides the cpuset that all workers have by their number; if the launcher does not bind, divides the affinity mask.
 * The result is at most the mask: a launcher that bound each worker to its own cores has divided already. A CPU quota
 * is always divided.
 */
int wfi_quota_cores_of(const wfi_quota_facts *facts, const char *root)
{
    wfi_cgroup group;
    wfi_cgroup_read(root, &group);
    int all = group.cores > 0 && group.cores < facts->online ? group.cores : facts->online;
    if (facts->is_unbound || all < facts->bound)
        all = facts->bound;
    int cores = at_least_one(all / facts->processes);
    if (facts->bound < cores)
        cores = at_least_one(facts->bound);
    int quota = at_least_one(group.quota / facts->processes);
    return group.quota > 0 && quota < cores ? quota : cores;
}

uint64_t wfi_quota_memory_of(const wfi_quota_facts *facts, const char *root)
{
    wfi_cgroup group;
    wfi_cgroup_read(root, &group);
    uint64_t memory = facts->memory;
    if (group.memory > 0 && (memory == 0 || group.memory < memory))
        memory = group.memory;
    return memory / (uint64_t)facts->processes;
}

/* [lock] */
static wfi_quota_facts facts_here(void)
{
    cpu_set_t mask;
    long online = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    wfi_quota_facts facts = {.online = online > 0 ? (int)online : 1};
    facts.bound = sched_getaffinity(0, sizeof(mask), &mask) == 0 ? CPU_COUNT(&mask) : facts.online;
    facts.memory = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : 0;
    facts.processes = wfi_quota_launched(&facts.is_unbound);
    if (!facts.processes)
        facts.processes = at_least_one(table_says);
    return facts;
}

int wfi_quota_cores(void)
{
    int cores = atomic_load(&cores_found);
    if (cores)
        return cores;
    take_lock();
    wfi_quota_facts facts = facts_here();
    cores = wfi_quota_cores_of(&facts, "");
    atomic_store(&cores_found, cores);
    pthread_mutex_unlock(&lock);
    pthread_once(&said_once, say_bad_setting);
    return cores;
}

uint64_t wfi_quota_memory(void)
{
    uint64_t memory = atomic_load(&memory_found);
    if (memory)
        return memory;
    take_lock();
    wfi_quota_facts facts = facts_here();
    memory = wfi_quota_memory_of(&facts, "");
    atomic_store(&memory_found, memory);
    pthread_mutex_unlock(&lock);
    return memory;
}
