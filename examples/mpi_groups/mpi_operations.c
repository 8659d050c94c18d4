/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_operations.c - the operations of a group, each as a call of weft and as a call of MPI. */
#include "mpi_operations.h"

#define TAG 1

/* ---- As weft's -------------------------------------------------------------------------------------------------- */

static size_t last_of(const weft_group *group)
{
    return weft_group_size(group) - 1;
}

static weft_status start_barrier(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    (void)in, (void)out;
    return weft_group_barrier_async(group, 0, futures);
}

static weft_status start_allreduce(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    (void)in;
    return weft_group_allreduce_async(group, out, WEFT_OP_SUM, 0, futures);
}

static weft_status start_reduce(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    (void)in;
    return weft_group_reduce_async(group, out, WEFT_OP_SUM, last_of(group), 0, futures);
}

static weft_status start_broadcast(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    (void)in;
    return weft_group_broadcast_async(group, out, last_of(group), 0, futures);
}

static weft_status start_allgather(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    return weft_group_allgather_async(group, in, out, 0, futures);
}

static weft_status start_reduce_scatter(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    return weft_group_reduce_scatter_async(group, in, out, WEFT_OP_SUM, 0, futures);
}

static weft_status start_gather(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    return weft_group_gather_async(group, in, out, last_of(group), 0, futures);
}

static weft_status start_scatter(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    return weft_group_scatter_async(group, in, out, last_of(group), 0, futures);
}

static weft_status start_all_to_all(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    return weft_group_all_to_all_async(group, in, out, 0, futures);
}

/* The first member receives before it sends: a carrier runs one after the other, so all would wait in their sends. */
static weft_status start_around(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    size_t size = weft_group_size(group), me = (size_t)weft_group_index(group);
    size_t next = (me + 1) % size, before = (me + size - 1) % size;
    weft_status st = me ? WEFT_OK : weft_group_recv_async(group, out, before, 0, &futures[0]);
    if (!st)
        st = weft_group_send_async(group, in, next, 0, &futures[1]);
    if (!st && me)
        st = weft_group_recv_async(group, out, before, 0, &futures[0]);
    return st;
}

/* ---- As MPI's own ----------------------------------------------------------------------------------------------- */

typedef struct place {
    int rank, size, last;
} place;

static place place_in(MPI_Comm comm)
{
    place p = {0, 1, 0};
    MPI_Comm_rank(comm, &p.rank);
    MPI_Comm_size(comm, &p.size);
    p.last = p.size - 1;
    return p;
}

static void call_barrier(MPI_Comm comm, const float *in, float *out, int count)
{
    (void)in, (void)out, (void)count;
    MPI_Barrier(comm);
}

static void call_allreduce(MPI_Comm comm, const float *in, float *out, int count)
{
    (void)in;
    MPI_Allreduce(MPI_IN_PLACE, out, count, MPI_FLOAT, MPI_SUM, comm);
}

static void call_reduce(MPI_Comm comm, const float *in, float *out, int count)
{
    place p = place_in(comm);
    (void)in;
    MPI_Reduce(p.rank == p.last ? MPI_IN_PLACE : out, out, count, MPI_FLOAT, MPI_SUM, p.last, comm);
}

static void call_broadcast(MPI_Comm comm, const float *in, float *out, int count)
{
    (void)in;
    MPI_Bcast(out, count, MPI_FLOAT, place_in(comm).last, comm);
}

static void call_allgather(MPI_Comm comm, const float *in, float *out, int count)
{
    MPI_Allgather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, comm);
}

static void call_reduce_scatter(MPI_Comm comm, const float *in, float *out, int count)
{
    MPI_Reduce_scatter_block(in, out, count, MPI_FLOAT, MPI_SUM, comm);
}

static void call_gather(MPI_Comm comm, const float *in, float *out, int count)
{
    MPI_Gather(in, count, MPI_FLOAT, out, count, MPI_FLOAT, place_in(comm).last, comm);
}

static void call_scatter(MPI_Comm comm, const float *in, float *out, int count)
{
    MPI_Scatter(in, count, MPI_FLOAT, out, count, MPI_FLOAT, place_in(comm).last, comm);
}

static void call_all_to_all(MPI_Comm comm, const float *in, float *out, int count)
{
    MPI_Alltoall(in, count, MPI_FLOAT, out, count, MPI_FLOAT, comm);
}

static void call_around(MPI_Comm comm, const float *in, float *out, int count)
{
    place p = place_in(comm);
    MPI_Sendrecv(in, count, MPI_FLOAT, (p.rank + 1) % p.size, TAG, out, count, MPI_FLOAT,
                 (p.rank + p.size - 1) % p.size, TAG, comm, MPI_STATUS_IGNORE);
}

const mpi_operation mpi_operations[MPI_OPERATIONS] = {
    {"barrier", false, false, false, start_barrier, call_barrier},
    {"allreduce", true, false, false, start_allreduce, call_allreduce},
    {"reduce", true, false, false, start_reduce, call_reduce},
    {"broadcast", true, false, false, start_broadcast, call_broadcast},
    {"allgather", false, false, true, start_allgather, call_allgather},
    {"reduce_scatter", false, true, false, start_reduce_scatter, call_reduce_scatter},
    {"gather", false, false, true, start_gather, call_gather},
    {"scatter", false, true, false, start_scatter, call_scatter},
    {"all_to_all", false, true, true, start_all_to_all, call_all_to_all},
    {"send and recv", false, false, false, start_around, call_around},
};
