/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_carrier.c - a group whose operations MPI carries. */
#include "mpi_carrier.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#define TAG 0

struct mpi_carrier {
    MPI_Comm comm;
    int rank, size;
    char failure[MPI_MAX_ERROR_STRING + 64]; /* the first failure; "" */
};

/* ---- What MPI calls it ------------------------------------------------------------------------------------------ */

static MPI_Datatype type_of(weft_dtype dtype)
{
    switch (dtype) {
    case WEFT_DTYPE_FLOAT32:
        return MPI_FLOAT;
    case WEFT_DTYPE_FLOAT64:
        return MPI_DOUBLE;
    case WEFT_DTYPE_INT64:
        return MPI_INT64_T;
    case WEFT_DTYPE_INT32:
        return MPI_INT32_T;
    case WEFT_DTYPE_UINT8:
        return MPI_UINT8_T;
    case WEFT_DTYPE_BOOL:
        return MPI_C_BOOL;
    case WEFT_DTYPE_FLOAT16:
    case WEFT_DTYPE_BFLOAT16:
        return MPI_UINT16_T; /* for moving */
    case WEFT_DTYPE_INT8:
        return MPI_INT8_T;
    case WEFT_DTYPE_INT16:
        return MPI_INT16_T;
    case WEFT_DTYPE_COMPLEX64:
        return MPI_C_FLOAT_COMPLEX;
    case WEFT_DTYPE_COMPLEX128:
        return MPI_C_DOUBLE_COMPLEX;
    }
    return MPI_DATATYPE_NULL;
}

static MPI_Op op_of(weft_op how, weft_dtype dtype)
{
    bool logical = dtype == WEFT_DTYPE_BOOL;
    switch (how) {
    case WEFT_OP_SUM:
    case WEFT_OP_AVG:
        return logical ? MPI_LOR : MPI_SUM;
    case WEFT_OP_MIN:
        return logical ? MPI_LAND : MPI_MIN;
    case WEFT_OP_MAX:
        return logical ? MPI_LOR : MPI_MAX;
    case WEFT_OP_PROD:
        return logical ? MPI_LAND : MPI_PROD;
    }
    return MPI_OP_NULL;
}

/* ---- Errors ----------------------------------------------------------------------------------------------------- */

/* Converts the result of an MPI call to a status, and keeps the first failure. */
static weft_status outcome(mpi_carrier *c, const char *call, int code)
{
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    if (code == MPI_SUCCESS)
        return WEFT_OK;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof(text), "error %d", code);
    if (!*c->failure)
        snprintf(c->failure, sizeof(c->failure), "%s: %s", call, text);
    return WEFT_ERR_SYSTEM;
}

/* Checks that `count` fits an int, as MPI requires. */
static weft_status check(mpi_carrier *c, size_t count)
{
    if (count <= INT_MAX)
        return WEFT_OK;
    if (!*c->failure)
        snprintf(c->failure, sizeof(c->failure), "a part has %zu elements: MPI counts to %d", count, INT_MAX);
    return WEFT_ERR_TOO_LARGE;
}

/* ---- Reductions ------------------------------------------------------------------------------------------------- */

/* Checks that MPI can reduce `count` elements of the type. */
static weft_status check_reduction(mpi_carrier *c, weft_dtype dtype, size_t count)
{
    if (dtype != WEFT_DTYPE_FLOAT16 && dtype != WEFT_DTYPE_BFLOAT16)
        return check(c, count);
    if (!*c->failure)
        snprintf(c->failure, sizeof(c->failure), "MPI has no %s: reduce float32", weft_dtype_name(dtype));
    return WEFT_ERR_UNSUPPORTED;
}

/* The end of a reduction, on a member that has its result: an average is the sum, divided. */
static weft_status reduced(mpi_carrier *c, int code, void *result, size_t count, weft_dtype dtype, weft_op how)
{
    bool is_complex = dtype == WEFT_DTYPE_COMPLEX64 || dtype == WEFT_DTYPE_COMPLEX128;
    bool is_single = dtype == WEFT_DTYPE_FLOAT32 || dtype == WEFT_DTYPE_COMPLEX64;
    for (size_t i = 0; !code && how == WEFT_OP_AVG && i < count * (is_complex ? 2 : 1); i++) {
        if (is_single)
            ((float *)result)[i] /= (float)c->size;
        else
            ((double *)result)[i] /= c->size;
    }
    return outcome(c, "a reduction", code);
}

static weft_status allreduce(void *arg, void *data, size_t count, weft_dtype dtype, weft_op how)
{
    mpi_carrier *c = arg;
    weft_status status = check_reduction(c, dtype, count);
    if (status)
        return status;
    int code = MPI_Allreduce(MPI_IN_PLACE, data, (int)count, type_of(dtype), op_of(how, dtype), c->comm);
    return reduced(c, code, data, count, dtype, how);
}

static weft_status reduce(void *arg, void *data, size_t count, weft_dtype dtype, weft_op how, size_t root)
{
    mpi_carrier *c = arg;
    bool here = (size_t)c->rank == root;
    weft_status status = check_reduction(c, dtype, count);
    if (status)
        return status;
    int code =
        MPI_Reduce(here ? MPI_IN_PLACE : data, data, (int)count, type_of(dtype), op_of(how, dtype), (int)root, c->comm);
    return reduced(c, code, data, here ? count : 0, dtype, how);
}

static weft_status reduce_scatter(void *arg, const void *in, void *out, size_t count, weft_dtype dtype, weft_op how)
{
    mpi_carrier *c = arg;
    weft_status status = check_reduction(c, dtype, count);
    if (status)
        return status;
    int code = MPI_Reduce_scatter_block(in, out, (int)count, type_of(dtype), op_of(how, dtype), c->comm);
    return reduced(c, code, out, count, dtype, how);
}

/* ---- What moves ------------------------------------------------------------------------------------------------- */

static weft_status barrier(void *arg)
{
    mpi_carrier *c = arg;
    return outcome(c, "MPI_Barrier", MPI_Barrier(c->comm));
}

static weft_status broadcast(void *arg, void *data, size_t count, weft_dtype dtype, size_t root)
{
    mpi_carrier *c = arg;
    weft_status status = check(c, count);
    return status ? status : outcome(c, "MPI_Bcast", MPI_Bcast(data, (int)count, type_of(dtype), (int)root, c->comm));
}

/* Returns MPI_IN_PLACE if the input is this member's part of the output, because MPI forbids overlapping buffers. */
static const void *input_of(const mpi_carrier *c, const void *in, const void *out, size_t count, weft_dtype dtype)
{
    size_t part = count * weft_dtype_size(dtype);
    return out && in == (const char *)out + (size_t)c->rank * part ? MPI_IN_PLACE : in;
}

static weft_status allgather(void *arg, const void *in, void *out, size_t count, weft_dtype dtype)
{
    mpi_carrier *c = arg;
    MPI_Datatype type = type_of(dtype);
    const void *from = input_of(c, in, out, count, dtype);
    weft_status status = check(c, count);
    if (status)
        return status;
    return outcome(c, "MPI_Allgather", MPI_Allgather(from, (int)count, type, out, (int)count, type, c->comm));
}

static weft_status gather(void *arg, const void *in, void *out, size_t count, weft_dtype dtype, size_t root)
{
    mpi_carrier *c = arg;
    MPI_Datatype type = type_of(dtype);
    const void *from = (size_t)c->rank == root ? input_of(c, in, out, count, dtype) : in;
    weft_status status = check(c, count);
    if (status)
        return status;
    return outcome(c, "MPI_Gather", MPI_Gather(from, (int)count, type, out, (int)count, type, (int)root, c->comm));
}

static weft_status scatter(void *arg, const void *in, void *out, size_t count, weft_dtype dtype, size_t root)
{
    mpi_carrier *c = arg;
    MPI_Datatype type = type_of(dtype);
    size_t part = count * weft_dtype_size(dtype);
    bool is_there =
        (size_t)c->rank == root && out == (const char *)in + root * part; /* the output is this part of the input */
    void *to = is_there ? MPI_IN_PLACE : out;
    weft_status status = check(c, count);
    if (status)
        return status;
    return outcome(c, "MPI_Scatter", MPI_Scatter(in, (int)count, type, to, (int)count, type, (int)root, c->comm));
}

static weft_status all_to_all(void *arg, const void *in, void *out, size_t count, weft_dtype dtype)
{
    mpi_carrier *c = arg;
    MPI_Datatype type = type_of(dtype);
    weft_status status = check(c, count);
    if (status)
        return status;
    return outcome(c, "MPI_Alltoall", MPI_Alltoall(in, (int)count, type, out, (int)count, type, c->comm));
}

static weft_status send_to(void *arg, const void *data, size_t count, weft_dtype dtype, size_t to)
{
    mpi_carrier *c = arg;
    weft_status status = check(c, count);
    return status ? status : outcome(c, "MPI_Send", MPI_Send(data, (int)count, type_of(dtype), (int)to, TAG, c->comm));
}

static weft_status recv_from(void *arg, void *data, size_t count, weft_dtype dtype, size_t from)
{
    mpi_carrier *c = arg;
    weft_status status = check(c, count);
    if (status)
        return status;
    return outcome(c, "MPI_Recv",
                   MPI_Recv(data, (int)count, type_of(dtype), (int)from, TAG, c->comm, MPI_STATUS_IGNORE));
}

/* ---- Its life --------------------------------------------------------------------------------------------------- */

weft_status mpi_carrier_open(MPI_Comm comm, mpi_carrier **out)
{
    int threads = MPI_THREAD_SINGLE;
    mpi_carrier *c = calloc(1, sizeof(*c));
    if (!c)
        return WEFT_ERR_MEMORY;
    if (MPI_Query_thread(&threads) || threads < MPI_THREAD_MULTIPLE || MPI_Comm_dup(comm, &c->comm)) {
        free(c);
        return WEFT_ERR_SYSTEM;
    }
    MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
    MPI_Comm_rank(c->comm, &c->rank);
    MPI_Comm_size(c->comm, &c->size);
    *out = c;
    return WEFT_OK;
}

weft_status mpi_carrier_give(mpi_carrier *c, weft_group *group)
{
    static const weft_group_carrier table = {.barrier = barrier,
                                             .allreduce = allreduce,
                                             .reduce = reduce,
                                             .broadcast = broadcast,
                                             .allgather = allgather,
                                             .reduce_scatter = reduce_scatter,
                                             .gather = gather,
                                             .scatter = scatter,
                                             .all_to_all = all_to_all,
                                             .send = send_to,
                                             .recv = recv_from};
    if (weft_group_index(group) != c->rank || weft_group_size(group) != (size_t)c->size)
        return WEFT_ERR_INVALID;
    /*
     * No drop function: all processes must free communicators in the same order, on the main thread
     * (mpi_carrier_close).
     */
    return weft_group_set_carrier(group, &table, c, NULL);
}

const char *mpi_carrier_failure(const mpi_carrier *c)
{
    return *c->failure ? c->failure : NULL;
}

void mpi_carrier_close(mpi_carrier *c)
{
    if (c)
        MPI_Comm_free(&c->comm);
    free(c);
}
