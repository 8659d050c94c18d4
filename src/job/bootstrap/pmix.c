/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pmix.c - PMIx carries the record: under mpirun and prterun, and under srun --mpi=pmix.
 *
 * The library is loaded when it is needed, and only if a launcher of PMIx started this process. It stays initialised
 * until the process ends: a launcher reports a process that exits without PMIx_Finalize as failed, and MPI cannot
 * initialise PMIx a second time.
 *
 * Rank 0 puts the record and commits it. The others ask for it until it is there. A fence would need all processes of
 * the job, and perhaps not all of them open an agent.
 *
 * Functions and attributes: PMIx Standard 4.1, chapters 5 and 6.
 */
#include "job/bootstrap/record.h"

#include "base/env.h"
#include "base/error.h"

#ifdef WEFT_HAS_PMIX

#include "base/clock.h"
#include "base/thread.h"

#include <dlfcn.h>
#include <pmix.h>
#include <pthread.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GET_SECONDS 2 /* for one attempt of the server */
#define PAUSE_FIRST_NS 2000000l
#define PAUSE_LAST_NS 100000000l

/* `once` guards all fields. */
static struct {
    pthread_once_t once;
    bool works;
    char why[256]; /* if it does not work */
    pmix_proc_t self;
    pid_t pid; /* of the process that initialised it; a child of fork() does not finalise it */
    pmix_status_t (*init)(pmix_proc_t *proc, pmix_info_t info[], size_t count);
    pmix_status_t (*finalize)(const pmix_info_t info[], size_t count);
    pmix_status_t (*put)(pmix_scope_t scope, const char key[], pmix_value_t *value);
    pmix_status_t (*commit)(void);
    pmix_status_t (*get)(const pmix_proc_t *proc, const char key[], const pmix_info_t info[], size_t count,
                         pmix_value_t **value);
    const char *(*error_text)(pmix_status_t status);
} pmix = {.once = PTHREAD_ONCE_INIT};

static void finalize(void)
{
    if (getpid() == pmix.pid)
        (void)pmix.finalize(NULL, 0);
}

static bool find_functions(void *library)
{
    const struct {
        void *place;
        const char *name;
    } wanted[] = {{&pmix.init, "PMIx_Init"}, {&pmix.finalize, "PMIx_Finalize"},
                  {&pmix.put, "PMIx_Put"},   {&pmix.commit, "PMIx_Commit"},
                  {&pmix.get, "PMIx_Get"},   {&pmix.error_text, "PMIx_Error_string"}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(*wanted); i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (!symbol) {
            snprintf(pmix.why, sizeof(pmix.why), "libpmix.so.2 has no %s", wanted[i].name);
            return false;
        }
        memcpy(wanted[i].place, &symbol, sizeof(symbol));
    }
    return true;
}

static void load(void)
{
    sigset_t before;
    void *library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) /* where it was when weft was built */
        library = dlopen(WEFT_PMIX_FOLDER "/libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(pmix.why, sizeof(pmix.why), "%s", dlerror());
        return;
    }
    if (!find_functions(library))
        return;
    wfi_signals_block(&before); /* PMIx starts a thread, which must not take the program's signals */
    pmix_status_t got = pmix.init(&pmix.self, NULL, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (got != PMIX_SUCCESS) {
        snprintf(pmix.why, sizeof(pmix.why), "PMIx_Init: %s", pmix.error_text(got));
        return;
    }
    pmix.pid = getpid();
    pmix.works = true;
    (void)atexit(finalize);
}

static bool is_there(const wfi_bootstrap_ask *ask)
{
    (void)ask;
    return wfi_env_string("PMIX_NAMESPACE") && wfi_env_string("PMIX_RANK");
}

/* One value of rank `rank`, which the caller frees; its type is `type`. */
static pmix_status_t get(pmix_rank_t rank, const char *key, pmix_data_type_t type, pmix_value_t **out)
{
    pmix_proc_t whose = pmix.self;
    pmix_info_t limit;
    memset(&limit, 0, sizeof(limit));
    snprintf(limit.key, sizeof(limit.key), "%s", PMIX_TIMEOUT);
    limit.value.type = PMIX_INT;
    limit.value.data.integer = GET_SECONDS;
    whose.rank = rank;
    *out = NULL;
    pmix_status_t got = pmix.get(&whose, key, &limit, 1, out);
    if (got == PMIX_SUCCESS && *out && (*out)->type == type)
        return PMIX_SUCCESS;
    if (got == PMIX_SUCCESS && *out && (*out)->type == PMIX_BYTE_OBJECT)
        free((*out)->data.bo.bytes);
    free(*out);
    *out = NULL;
    return got == PMIX_SUCCESS ? PMIX_ERR_BAD_PARAM : got;
}

/* A number that the launcher knows of the whole job; 0: it does not. */
static int job_number(const char *key)
{
    pmix_value_t *value;
    pthread_once(&pmix.once, load);
    if (!pmix.works || get(PMIX_RANK_WILDCARD, key, PMIX_UINT32, &value))
        return 0;
    uint32_t number = value->data.uint32;
    free(value);
    return number <= 65536 ? (int)number : 0;
}

static int count_nodes(void)
{
    int nodes = job_number(PMIX_NUM_NODES);
    if (nodes)
        return nodes;
    int all = job_number(PMIX_JOB_SIZE), here = job_number(PMIX_LOCAL_SIZE);
    return here > 0 ? (all + here - 1) / here : 0;
}

bool wfi_pmix_world_size(int *size, const char **why)
{
    *why = "no launcher of PMIx started this process";
    if (!is_there(NULL))
        return false;
    *size = job_number(PMIX_JOB_SIZE);
    *why = pmix.works ? "PMIx does not say how many processes the job has" : pmix.why;
    return *size > 0;
}

static weft_status publish(const char *key, const char *record, weft_error **error)
{
    pmix_value_t value = {.type = PMIX_BYTE_OBJECT};
    char *copy = malloc(WEFT_BOOTSTRAP_BYTES);
    if (!copy)
        return WEFT_ERR_MEMORY;
    memcpy(copy, record, WEFT_BOOTSTRAP_BYTES);
    value.data.bo.bytes = copy;
    value.data.bo.size = WEFT_BOOTSTRAP_BYTES;
    pmix_status_t put = pmix.put(PMIX_GLOBAL, key, &value);
    if (put == PMIX_SUCCESS)
        put = pmix.commit();
    sodium_memzero(copy, WEFT_BOOTSTRAP_BYTES);
    free(copy);
    return put == PMIX_SUCCESS ? WEFT_OK
                               : wfi_error_fail(error, WEFT_ERR_SYSTEM, "PMIx cannot publish rank 0's address: %s",
                                                pmix.error_text(put));
}

static weft_status lookup(const char *key, char *record, int64_t timeout_ms, weft_error **error)
{
    uint64_t deadline_ns = wfi_deadline(&wfi_clock_real, timeout_ms);
    long pause_ns = PAUSE_FIRST_NS;
    pmix_value_t *value;
    pmix_status_t got;
    while ((got = get(0, key, PMIX_BYTE_OBJECT, &value)) != PMIX_SUCCESS) {
        if (wfi_now(&wfi_clock_real) >= deadline_ns)
            return wfi_error_fail(error, WEFT_ERR_RENDEZVOUS,
                                  "rank 0 did not publish its address through PMIx within %lld ms: %s",
                                  (long long)timeout_ms, pmix.error_text(got));
        nanosleep(&(struct timespec){.tv_nsec = pause_ns}, NULL);
        pause_ns = pause_ns * 2 > PAUSE_LAST_NS ? PAUSE_LAST_NS : pause_ns * 2;
    }
    bool fits = value->data.bo.size == WEFT_BOOTSTRAP_BYTES;
    if (fits)
        memcpy(record, value->data.bo.bytes, WEFT_BOOTSTRAP_BYTES);
    free(value->data.bo.bytes);
    free(value);
    return fits ? WEFT_OK
                : wfi_error_fail(error, WEFT_ERR_PROTOCOL, "rank 0 published a record of another version of weft");
}

static weft_status find(const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer, weft_error **error)
{
    static _Atomic unsigned agents;
    char record[WEFT_BOOTSTRAP_BYTES], key[WFI_RECORD_KEY];
    wfi_bootstrap_record_key(&agents, key);
    pthread_once(&pmix.once, load);
    if (!pmix.works)
        return wfi_error_fail(error, WEFT_ERR_SYSTEM,
                              "this process was started by a launcher of PMIx, which cannot be used: %s. Install "
                              "libpmix, or set MASTER_ADDR and MASTER_PORT",
                              pmix.why);
    if ((ask->rank == 0) != (pmix.self.rank == 0))
        return wfi_error_fail(
            error, WEFT_ERR_INVALID,
            "this worker has rank %d, and rank %u in PMIx: one that is 0 in only one of them cannot be "
            "found; set MASTER_ADDR and MASTER_PORT",
            ask->rank, (unsigned)pmix.self.rank);
    weft_status status;
    if (ask->rank == 0) {
        status = wfi_bootstrap_record_make(ask, count_nodes() == 1, answer, record, error);
        weft_status published = publish(key, record, status ? NULL : error); /* of a failure, too */
        status = status ? status : published;
    } else {
        status = lookup(key, record, ask->timeout_ms, error);
        if (!status)
            status = wfi_bootstrap_record_use(ask, record, answer, error);
    }
    sodium_memzero(record, sizeof(record));
    return status;
}

#else

static bool is_there(const wfi_bootstrap_ask *ask)
{
    (void)ask;
    return false;
}

static int count_nodes(void)
{
    return 0;
}

static weft_status find(const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer, weft_error **error)
{
    (void)ask, (void)answer;
    return wfi_error_fail(error, WEFT_ERR_NOT_FOUND, "this build of weft has no PMIx");
}

bool wfi_pmix_world_size(int *size, const char **why)
{
    (void)size;
    *why = wfi_env_string("PMIX_RANK") ? "this build of weft has no PMIx" : "no launcher of PMIx started this process";
    return false;
}

#endif

const wfi_bootstrap wfi_bootstrap_pmix = {.name = "PMIx", .is_there = is_there, .nodes = count_nodes, .find = find};
