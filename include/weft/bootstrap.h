/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/bootstrap.h - how the workers of a job find rank 0, if the program brings its own way.
 *
 * Nothing is needed here if MASTER_ADDR and MASTER_PORT are set, or if the launcher is mpirun, prterun or srun: weft
 * uses PMIx, Slurm and PMI 1 by itself (docs/environment.md). For another runtime, the program supplies two or three
 * functions. A program that uses MPI, started by mpiexec of MPICH or a relative, supplies them too: `publish` and
 * `lookup` are both one MPI_Bcast of WEFT_BOOTSTRAP_BYTES bytes from rank 0 (examples/mpi_groups.c).
 */
#ifndef WEFT_BOOTSTRAP_H
#define WEFT_BOOTSTRAP_H

#include <weft/status.h>

WEFT_BEGIN_C

/*
 * Functions of the program that find rank 0, for weft_agent_options.bootstrap. weft_agent_open calls them in the
 * calling thread, without any lock of weft. If one fails, opening fails with its status. Each job has one record of
 * WEFT_BOOTSTRAP_BYTES bytes: rank 0's addresses and port, and the job's secret unless the program gave one. A
 * process that can read the record can join the job.
 */
#define WEFT_BOOTSTRAP_BYTES 2048
typedef struct weft_bootstrap {
    /* On rank 0: makes `size` bytes available to the other workers. `key` is "weft/N", N = 0, 1 ... for the first,
     * second ... agent of this process. Borrowed. */
    weft_status (*publish)(const char *key, const void *data, size_t size, void *arg);
    /* On the others: waits until rank 0 has published `key`, and copies its `size` bytes to `data`; at most timeout_ms
     * (WEFT_FOREVER: without limit), then WEFT_ERR_TIMEOUT. A collective function may ignore the limit. */
    weft_status (*lookup)(const char *key, void *data, size_t size, int64_t timeout_ms, void *arg);
    /* On all workers, after `publish` and before `lookup`; for runtimes whose lookup does not wait. NULL: none. */
    weft_status (*barrier)(void *arg);
    void *arg; /* passed to them */
} weft_bootstrap;

WEFT_END_C

#endif
