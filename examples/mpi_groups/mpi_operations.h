/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_operations.h - the operations of a group, each as a call of weft and as a call of MPI, for comparing them. */
#ifndef EXAMPLES_MPI_OPERATIONS_H
#define EXAMPLES_MPI_OPERATIONS_H

#include <weft/group.h>

#include <mpi.h>

enum { MPI_OPERATIONS = 10, MPI_OPERATION_FUTURES = 2 };

/*
 * Tensors are float32. The root, if there is one, is the last member. In "send and recv" each member sends to the next
 * one and receives from the previous one.
 */
typedef struct mpi_operation {
    const char *name;
    bool in_place;            /* `out` initially has the input */
    bool parts_in, parts_out; /* one part for each member; otherwise one part */
    /* Starts the operation. You own the futures that were made, also after a failure; the others stay NULL. */
    weft_status (*start)(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures);
    /*
     * Runs the operation by MPI. `count`: elements of a part. The error handler of the communicator handles failures.
     */
    void (*call)(MPI_Comm comm, const float *in, float *out, int count);
} mpi_operation;

extern const mpi_operation mpi_operations[MPI_OPERATIONS];

#endif
