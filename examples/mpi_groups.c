/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_groups.c - groups of weft in an MPI program. Each process averages a tensor over all processes in two ways: by
 * weft, and by weft with MPI as its carrier.
 *
 *   mpirun -n 2 --bind-to none mpi_groups
 *
 * Each process gets its rank from MPI. Process 0 runs weft's store. Functions of the program (weft/bootstrap.h) carry
 * its addresses, port and secret to the others with MPI_Bcast. Two groups contain all processes. weft carries the
 * operations of one group; it hands those of the other to MPI (mpi_groups/mpi_carrier.h), on a communicator of its own.
 *
 * The second group calls MPI from a thread of weft, while the main thread may call MPI too. So the program needs
 * MPI_THREAD_MULTIPLE. A process that fails calls MPI_Abort, because other processes may wait for it in MPI forever.
 */
#include <weft/weft.h>

#include "mpi_groups/mpi_carrier.h" /* a group's operations carried by MPI */

#include <stdio.h>

enum { BY_WEFT, CARRIED, WAYS, COUNT = 1 << 20 };

typedef struct program {
    int rank, size;
    weft_agent *agent;
    weft_group *groups[WAYS];
    mpi_carrier *carrier;
} program;

/* How the other processes learn where process 0 is: one MPI_Bcast, which both functions of weft/bootstrap.h are. */
static weft_status publish(const char *key, const void *record, size_t size, void *comm)
{
    (void)key; /* the root of MPI_Bcast only reads */
    return MPI_Bcast((void *)record, (int)size, MPI_BYTE, 0, *(MPI_Comm *)comm) ? WEFT_ERR_SYSTEM : WEFT_OK;
}

static weft_status lookup(const char *key, void *record, size_t size, int64_t timeout_ms, void *comm)
{
    (void)key, (void)timeout_ms;
    return MPI_Bcast(record, (int)size, MPI_BYTE, 0, *(MPI_Comm *)comm) ? WEFT_ERR_SYSTEM : WEFT_OK;
}

static weft_status join(program *p)
{
    MPI_Comm world = MPI_COMM_WORLD;
    const weft_bootstrap by_mpi = {.publish = publish, .lookup = lookup, .arg = &world};
    const weft_agent_options options = {.has_rank = true, .rank = p->rank, .world_size = p->size, .bootstrap = &by_mpi};
    weft_status status = weft_agent_open(&options, &p->agent, NULL);
    if (!status)
        status = weft_group_open(p->agent, "weft", NULL, 0, 0, &p->groups[BY_WEFT], NULL);
    if (!status)
        status = weft_group_open(p->agent, "carried", NULL, 0, 0, &p->groups[CARRIED], NULL);
    if (!status)
        status = mpi_carrier_open(MPI_COMM_WORLD, &p->carrier);
    return status ? status : mpi_carrier_give(p->carrier, p->groups[CARRIED]);
}

static weft_status leave(program *p)
{
    for (int way = 0; way < WAYS; way++)
        weft_group_close(p->groups[way]);
    weft_status status = weft_agent_close(p->agent, WEFT_FOREVER);
    mpi_carrier_close(p->carrier);
    return status;
}

/* Both ways are in flight at once. */
static weft_status average(program *p)
{
    weft_tensor *x[WAYS] = {NULL};
    weft_future *futures[WAYS] = {NULL};
    weft_status status = WEFT_OK;
    for (int way = 0; way < WAYS && !status; way++) {
        status = weft_tensor_full(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32, p->rank, &x[way], NULL);
        if (!status)
            status = weft_group_allreduce_async(p->groups[way], x[way], WEFT_OP_AVG, 0, &futures[way]);
    }
    if (!status)
        status = weft_future_wait_all(futures, WAYS, WEFT_FOREVER);
    if (!status && p->rank == 0)
        printf("the mean rank of %d processes is %g by weft, %g by MPI\n", p->size,
               weft_tensor_get_f64(x[BY_WEFT], COUNT - 1), weft_tensor_get_f64(x[CARRIED], COUNT - 1));
    for (int way = 0; way < WAYS; way++) {
        weft_future_unref(futures[way]);
        weft_tensor_unref(x[way]);
    }
    return status;
}

/* Prints the reason, and ends all processes. */
static int end_early(const program *p, weft_status status)
{
    const char *mpi = p->carrier ? mpi_carrier_failure(p->carrier) : NULL;
    if (mpi)
        fprintf(stderr, "mpi_groups: %s\n", mpi);
    for (int way = 0; way < WAYS && !mpi; way++)
        weft_error_print(weft_group_error(p->groups[way]), stderr);
    int code = weft_report(status);
    MPI_Abort(MPI_COMM_WORLD, code);
    return code;
}

int main(int argc, char **argv)
{
    program p = {0};
    int threads = MPI_THREAD_SINGLE, code = 2;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads))
        return 1; /* MPI has printed the reason */
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    if (p.size < 2) {
        fprintf(stderr, "mpi_groups: one process alone has no group: start it as 'mpirun -n 2 mpi_groups'\n");
    } else if (threads < MPI_THREAD_MULTIPLE) {
        fprintf(stderr, "mpi_groups: this MPI lacks MPI_THREAD_MULTIPLE: weft calls it on a thread of its own\n");
    } else {
        weft_status status = join(&p);
        if (!status)
            status = average(&p);
        if (!status)
            status = leave(&p);
        code = status ? end_early(&p, status) : 0;
    }
    MPI_Finalize();
    return code;
}
