/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bootstrap.h - how a worker finds rank 0's store if MASTER_PORT is not set, or is set without MASTER_ADDR on several
 * nodes.
 *
 * weft asks what started the workers: the program's own functions (weft/bootstrap.h), PMIx (mpirun, prterun, srun
 * --mpi=pmix), PMI 1 (mpiexec of MPICH and its relatives), or Slurm (srun). All but Slurm carry a record from rank 0
 * to the others (record.h). Slurm carries nothing: all workers derive the host and the port from its variables.
 *
 * THREADS. Called on the thread that opens an agent. Agents share only the state of PMIx and the connection of PMI,
 * which have locks.
 */
#ifndef WFI_BOOTSTRAP_H
#define WFI_BOOTSTRAP_H

#include "job/protocol/secret.h"

#include <weft/bootstrap.h>

typedef struct wfi_bootstrap_ask {
    int rank;                        /* WEFT_ANY_RANK: not rank 0 */
    const weft_bootstrap *functions; /* the program's; NULL: none */
    const char *master_addr;         /* the address of rank 0 that the user gave; NULL: none */
    int port;                        /* of rank 0's store, that the user gave; 0: none */
    const char *iface;  /* a network interface of this worker: name or address; NULL: none. Slurm: unused */
    int64_t timeout_ms; /* for everything; < 0: none */
} wfi_bootstrap_ask;

typedef struct wfi_bootstrap_answer {
    char address[256]; /* of the store; on rank 0 one of this machine's */
    int port;
    int ports;    /* Slurm: how many ports the store may have: `port` and those above; otherwise 1 */
    int store_fd; /* rank 0: the store's listening socket, which the caller then owns; else -1 */
    /* The job's secret. On return it may have been made, or received. Slurm without a secret of the user's sets one
     * that anybody can guess: it only tells jobs apart. */
    wfi_secret *secret;
} wfi_bootstrap_answer;

/* One method of finding rank 0. */
typedef struct wfi_bootstrap {
    const char *name;
    bool (*is_there)(const wfi_bootstrap_ask *ask);
    int (*nodes)(void); /* number of nodes of the job; 0: unknown. NULL: only wfi_launcher_nodes knows it */
    weft_status (*find)(const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer, weft_error **error);
} wfi_bootstrap;

extern const wfi_bootstrap wfi_bootstrap_functions, wfi_bootstrap_pmix, wfi_bootstrap_pmi, wfi_bootstrap_slurm;

/* Returns the first method that applies; NULL: none. */
const wfi_bootstrap *wfi_bootstrap_choose(const wfi_bootstrap_ask *ask);
/* The number of the job's nodes, from the launcher. Where it only shows that there are several: 2. 0: unknown.
 * *launcher is the launcher's name. */
int wfi_bootstrap_nodes(const char **launcher);
/*
 * Finds rank 0 by `method`. answer->secret is the caller's; its size is 0 if the user gave none. Errors:
 * WEFT_ERR_INVALID (the launcher's variables, no secret for several nodes). WEFT_ERR_RENDEZVOUS (rank 0 has failed,
 * cannot be reached, or published nothing in time). WEFT_ERR_PROTOCOL (another version of weft), WEFT_ERR_EXISTS,
 * WEFT_ERR_SYSTEM, and what the program's functions return; with *error.
 */
weft_status wfi_bootstrap_find(const wfi_bootstrap *method, const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer,
                               weft_error **error);

/* This worker's rank and the number of workers, from the environment. `elastic`: the rank may be missing, and is then
 * WEFT_ANY_RANK. WEFT_ERR_INVALID, with *error: they are malformed, or not both there. */
weft_status wfi_bootstrap_rank(bool elastic, int *rank, int *world_size, weft_error **error);

/* PMIx: the size of the job of this process. False: there is no PMIx, or it does not say; *why (borrowed) has the
 * reason. */
bool wfi_pmix_world_size(int *size, const char **why);

/* Whether the address that the user gave for rank 0 is one of this machine's: WEFT_ERR_INVALID if not, with *error. */
weft_status wfi_bootstrap_check(const char *master_addr, weft_error **error);

/* A socket for the store on any address of this machine, IPv6 and IPv4. Errors as in wfi_listen_at. */
weft_status wfi_bootstrap_listen(bool only_loopback, int port, int *fd, weft_error **error);

#endif
