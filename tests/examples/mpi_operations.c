/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_operations.c - each operation of a group by weft, and by weft with MPI as its carrier
 * (examples/mpi_groups/mpi_carrier.h). All operations of both groups are started before any is waited for. Their
 * results must have the same bits, also for every type and reduction.
 *
 * usage: mpirun -n 2 mpi_operations [REPEATS]      all operations are repeated; default 3
 */
#include <weft/weft.h>

#include "mpi_groups/mpi_carrier.h"
#include "../tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BYTES 65536    /* of one process's part of a tensor */
#define TYPED_COUNT 13 /* elements of a tensor of each type */

enum { BY_WEFT, CARRIED, WAYS };

/* One operation, in both ways. */
typedef struct trial {
    weft_tensor *in, *out[WAYS];
    weft_future *futures[2 * WAYS]; /* "send and recv" has two; NULL: none */
    bool equal;
} trial;

enum { BARRIER, ALLREDUCE, REDUCE, BROADCAST, ALLGATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL, AROUND, TRIALS };

/* Tensors have one part, or one part for each process. */
static const struct {
    const char *name;
    bool in_place; /* the output initially has the input */
    bool parts_in, parts_out;
} operations[TRIALS] = {
    [BARRIER] = {"barrier", false, false, false},     [ALLREDUCE] = {"allreduce", true, false, false},
    [REDUCE] = {"reduce", true, false, false},        [BROADCAST] = {"broadcast", true, false, false},
    [ALLGATHER] = {"allgather", false, false, true},  [REDUCE_SCATTER] = {"reduce_scatter", false, true, false},
    [GATHER] = {"gather", false, false, true},        [SCATTER] = {"scatter", false, true, false},
    [ALL_TO_ALL] = {"all_to_all", false, true, true}, [AROUND] = {"send and recv", false, false, false}};

typedef struct program {
    int rank, size;
    weft_agent *agent;
    weft_group *groups[WAYS];
    mpi_carrier *carrier;
    trial trials[TRIALS];
    int combinations, unequal; /* combinations of type and reduction: compared; with different bits */
} program;

/* ---- The job ---------------------------------------------------------------------------------------------------- */

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

/* Whether `here` is true on every process. */
static bool everywhere(bool here)
{
    int all = here;
    MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

/* ---- Each operation --------------------------------------------------------------------------------------------- */

static weft_status prepare(program *p, int which)
{
    trial *t = &p->trials[which];
    int64_t part = BYTES / (int64_t)sizeof(float);
    int64_t count_in = operations[which].parts_in ? part * p->size : part;
    int64_t count_out = operations[which].parts_out ? part * p->size : part;
    *t = (trial){.in = tensor_empty(WEFT_SHAPE(count_in), WEFT_DTYPE_FLOAT32)};
    float *values = t->in ? weft_tensor_data(t->in) : NULL;
    for (int64_t i = 0; values && i < count_in; i++)
        values[i] = (float)((p->rank * 31 + i * 7 + which) % 8); /* sums of these values are exact */
    for (int way = 0; way < WAYS; way++) {
        t->out[way] =
            operations[which].in_place ? tensor_clone(t->in) : tensor_zeros(WEFT_SHAPE(count_out), WEFT_DTYPE_FLOAT32);
        if (!values || !t->out[way])
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

/*
 * Each member sends to the next one and receives from the previous one. The first member receives before it sends: a
 * carrier runs one after the other, so all would wait in their sends.
 */
static weft_status start_around(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    size_t size = weft_group_size(group), me = (size_t)weft_group_index(group);
    size_t next = (me + 1) % size, before = (me + size - 1) % size;
    weft_status status = me ? WEFT_OK : weft_group_recv_async(group, out, before, 0, &futures[0]);
    if (!status)
        status = weft_group_send_async(group, in, next, 0, &futures[1]);
    if (!status && me)
        status = weft_group_recv_async(group, out, before, 0, &futures[0]);
    return status;
}

/* The root, if there is one, is the last process. */
static weft_status start(weft_group *group, int which, weft_tensor *in, weft_tensor *out, weft_future **futures)
{
    size_t root = weft_group_size(group) - 1;
    switch (which) {
    case BARRIER:
        return weft_group_barrier_async(group, 0, futures);
    case ALLREDUCE:
        return weft_group_allreduce_async(group, out, WEFT_OP_SUM, 0, futures);
    case REDUCE:
        return weft_group_reduce_async(group, out, WEFT_OP_SUM, root, 0, futures);
    case BROADCAST:
        return weft_group_broadcast_async(group, out, root, 0, futures);
    case ALLGATHER:
        return weft_group_allgather_async(group, in, out, 0, futures);
    case REDUCE_SCATTER:
        return weft_group_reduce_scatter_async(group, in, out, WEFT_OP_SUM, 0, futures);
    case GATHER:
        return weft_group_gather_async(group, in, out, root, 0, futures);
    case SCATTER:
        return weft_group_scatter_async(group, in, out, root, 0, futures);
    case ALL_TO_ALL:
        return weft_group_all_to_all_async(group, in, out, 0, futures);
    default:
        return start_around(group, in, out, futures);
    }
}

static bool alike(const weft_tensor *a, const weft_tensor *b)
{
    return weft_tensor_nbytes(a) == weft_tensor_nbytes(b) &&
           memcmp(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a)) == 0;
}

static weft_status finish(trial *t)
{
    weft_status status = WEFT_OK;
    for (int i = 0; i < 2 * WAYS; i++) {
        if (t->futures[i] && !status)
            status = weft_future_wait(t->futures[i], WEFT_FOREVER);
        weft_future_unref(t->futures[i]);
    }
    t->equal = !status && everywhere(alike(t->out[BY_WEFT], t->out[CARRIED]));
    weft_tensor_unref(t->in);
    for (int way = 0; way < WAYS; way++)
        weft_tensor_unref(t->out[way]);
    return status;
}

/* All operations in both ways, at the same time. */
static weft_status compare(program *p)
{
    weft_status status = WEFT_OK;
    for (int i = 0; i < TRIALS && !status; i++)
        status = prepare(p, i);
    for (int i = 0; i < TRIALS && !status; i++)
        for (int way = 0; way < WAYS && !status; way++)
            status = start(p->groups[way], i, p->trials[i].in, p->trials[i].out[way], &p->trials[i].futures[2 * way]);
    for (int i = 0; i < TRIALS && !status; i++)
        status = finish(&p->trials[i]);
    return status;
}

/* ---- Every type, every reduction -------------------------------------------------------------------------------- */

/* Whether weft has the reduction for the type, and MPI has the type. */
static bool there_is(weft_dtype dtype, weft_op how)
{
    bool is_complex = dtype == WEFT_DTYPE_COMPLEX64 || dtype == WEFT_DTYPE_COMPLEX128;
    bool is_float = dtype == WEFT_DTYPE_FLOAT32 || dtype == WEFT_DTYPE_FLOAT64;
    if (dtype == WEFT_DTYPE_FLOAT16 || dtype == WEFT_DTYPE_BFLOAT16)
        return false;
    if (how == WEFT_OP_AVG)
        return is_float || is_complex;
    return how == WEFT_OP_SUM || how == WEFT_OP_PROD || !is_complex;
}

/* Ones and twos (for bool also zeros): sums and products of a few of them are exact in every type. */
static weft_tensor *typed(const program *p, weft_dtype dtype)
{
    float values[2 * TYPED_COUNT];
    bool is_complex = dtype == WEFT_DTYPE_COMPLEX64 || dtype == WEFT_DTYPE_COMPLEX128;
    for (int i = 0; i < 2 * TYPED_COUNT; i++)
        values[i] = (float)((p->rank + i * 3) % 4 / 2 + (dtype == WEFT_DTYPE_BOOL ? 0 : 1));
    weft_tensor *plain =
        tensor_copy_of(WEFT_SHAPE(TYPED_COUNT), is_complex ? WEFT_DTYPE_COMPLEX64 : WEFT_DTYPE_FLOAT32, values);
    weft_tensor *out = plain ? tensor_to(plain, dtype) : NULL;
    weft_tensor_unref(plain);
    return out;
}

static weft_status compare_type(program *p, weft_dtype dtype, weft_op how)
{
    weft_tensor *x[WAYS] = {typed(p, dtype), typed(p, dtype)};
    weft_future *futures[WAYS] = {NULL, NULL};
    weft_status status = x[BY_WEFT] && x[CARRIED] ? WEFT_OK : WEFT_ERR_MEMORY;
    for (int way = 0; way < WAYS && !status; way++)
        status = weft_group_allreduce_async(p->groups[way], x[way], how, 0, &futures[way]);
    if (!status)
        status = weft_future_wait_all(futures, WAYS, WEFT_FOREVER);
    p->combinations++;
    p->unequal += !status && !everywhere(alike(x[BY_WEFT], x[CARRIED]));
    for (int way = 0; way < WAYS; way++) {
        weft_future_unref(futures[way]);
        weft_tensor_unref(x[way]);
    }
    return status;
}

static weft_status compare_types(program *p)
{
    weft_status status = WEFT_OK;
    for (weft_dtype dtype = WEFT_DTYPE_FLOAT32; dtype <= WEFT_DTYPE_COMPLEX128 && !status; dtype++)
        for (weft_op how = WEFT_OP_SUM; how <= WEFT_OP_PROD && !status; how++)
            if (there_is(dtype, how))
                status = compare_type(p, dtype, how);
    return status;
}

/* ---- The program ------------------------------------------------------------------------------------------------ */

/* WEFT_ERR_STATE: results differ. */
static weft_status conclude(const program *p)
{
    char name[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    bool equal = p->unequal == 0;
    MPI_Get_library_version(name, &length);
    name[strcspn(name, ",\n")] = 0;
    if (p->rank == 0)
        printf("%d processes, %s\n\n  operation        equal\n", p->size, name);
    for (int i = 0; i < TRIALS; i++) {
        equal = equal && p->trials[i].equal;
        if (p->rank == 0) /* a barrier has no result */
            printf("  %-15s  %s\n", operations[i].name, i == BARRIER ? "-" : p->trials[i].equal ? "yes" : "NO");
    }
    if (p->rank == 0)
        printf("\n  %d of %d combinations of type and reduction are equal\n", p->combinations - p->unequal,
               p->combinations);
    return equal ? WEFT_OK : WEFT_ERR_STATE;
}

static weft_status run(program *p, long repeats)
{
    weft_status status = join(p);
    for (long i = 0; i < repeats && !status; i++)
        status = compare(p);
    if (!status)
        status = compare_types(p);
    if (!status)
        status = conclude(p);
    return status ? status : leave(p);
}

/* Prints the reason, and ends all processes. */
static int end_early(const program *p, weft_status status)
{
    const char *mpi = p->carrier ? mpi_carrier_failure(p->carrier) : NULL;
    if (mpi)
        fprintf(stderr, "mpi_operations: %s\n", mpi);
    for (int way = 0; way < WAYS && !mpi; way++)
        weft_error_print(weft_group_error(p->groups[way]), stderr);
    int code = weft_report(status);
    MPI_Abort(MPI_COMM_WORLD, code);
    return code;
}

int main(int argc, char **argv)
{
    program p = {0};
    int threads = MPI_THREAD_SINGLE;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads) || threads < MPI_THREAD_MULTIPLE)
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    weft_status status = run(&p, argc > 1 ? strtol(argv[1], NULL, 10) : 3);
    int code = status ? end_early(&p, status) : 0;
    MPI_Finalize();
    return code;
}
