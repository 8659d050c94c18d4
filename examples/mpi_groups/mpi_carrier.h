/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_carrier.h - a group whose operations MPI carries: the table of weft_group_set_carrier on a communicator.
 *
 *     mpi_carrier *carrier;
 *     weft_group *all;
 *     weft_status status = mpi_carrier_open(MPI_COMM_WORLD, &carrier); // every process
 *     if (!status)
 *         status = weft_group_open(agent, "all", NULL, 0, 0, &all, NULL);
 *     if (!status)
 *         status = mpi_carrier_give(carrier, all); // from now on MPI carries it
 *     ...
 *     weft_group_close(all);
 *     mpi_carrier_close(carrier);
 *
 * THREADS. The functions of the table run on a thread of weft, while the program's own threads call MPI. So they need
 * MPI_THREAD_MULTIPLE. The communicator is a duplicate, which keeps messages of the group apart from those of the
 * program.
 *
 * TYPES AND REDUCTIONS. MPI lacks float16 and bfloat16. They are moved as 16-bit integers; a reduction of them ends the
 * group with WEFT_ERR_UNSUPPORTED, so convert them to float32 first. An average is the sum of MPI, divided. bool uses
 * MPI's logical "or" and "and". The order of additions, -0 and NaN are those of MPI.
 *
 * ORDER. MPI carries the operations of a group one after the other, each until it is complete. So if members send and
 * receive in a circle, one of them must receive first, as with MPI_Send.
 *
 * ERRORS. Errors of MPI are returned (MPI_ERRORS_RETURN), and end the group on this member with WEFT_ERR_SYSTEM. A part
 * of more than INT_MAX elements ends the group with WEFT_ERR_TOO_LARGE. Other members are not notified, and may wait in
 * MPI: call MPI_Abort when a group failed.
 */
#ifndef EXAMPLES_MPI_CARRIER_H
#define EXAMPLES_MPI_CARRIER_H

#include <weft/group.h>

#include <mpi.h>

typedef struct mpi_carrier mpi_carrier;

/* Duplicates `comm`; every process of it calls this. WEFT_ERR_SYSTEM: MPI failed, or MPI_THREAD_MULTIPLE is missing. */
WEFT_NODISCARD weft_status mpi_carrier_open(MPI_Comm comm, mpi_carrier **out);
/*
 * Makes the carrier carry a group whose members are the processes of the communicator, in the same order; otherwise
 * WEFT_ERR_INVALID. Call it before the first operation of the group; otherwise WEFT_ERR_STATE. A carrier has one group.
 */
WEFT_NODISCARD weft_status mpi_carrier_give(mpi_carrier *carrier, weft_group *group);
/* The error of MPI that made an operation fail; NULL: none. Call it after the group has failed. */
const char *mpi_carrier_failure(const mpi_carrier *carrier);
/*
 * Frees the carrier. Every process calls this after closing the group and before MPI_Finalize, in the same order. NULL
 * does nothing.
 */
void mpi_carrier_close(mpi_carrier *carrier);

#endif
