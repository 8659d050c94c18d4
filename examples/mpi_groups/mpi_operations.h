/* SPDX-License-Identifier: Apache-2.0 */
/* mpi_operations.h - the operations of a group, each as weft's call and as MPI's own, for comparing them. */
#ifndef EXAMPLES_MPI_OPERATIONS_H
#define EXAMPLES_MPI_OPERATIONS_H

#include <weft/group.h>

#include <mpi.h>

enum { MPI_OPERATIONS = 10, MPI_OPERATION_FUTURES = 2 };

/* Tensors are of float32. The root of those that have one is the last member; each member sends to the next one and receives from the one before. */
typedef struct mpi_operation {
    const char *name;
    bool in_place;            /* `out` begins as the input */
    bool parts_in, parts_out; /* a part for each member; else one */
    /* Starts it. The futures that there are become yours, also on failure; the others stay NULL. */
    weft_status (*start)(weft_group *group, weft_tensor *in, weft_tensor *out, weft_future **futures);
    /* Does it. `count`: elements of a part. What fails goes to the communicator's error handler. */
    void (*call)(MPI_Comm comm, const float *in, float *out, int count);
} mpi_operation;

extern const mpi_operation mpi_operations[MPI_OPERATIONS];

#endif
