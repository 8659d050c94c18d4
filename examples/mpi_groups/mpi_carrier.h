/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_carrier.h - a group's operations carried by MPI: the table of weft_group_set_carrier over a communicator.
 *
 *     mpi_carrier *carrier;
 *     weft_group *all;
 *     weft_status st = mpi_carrier_open(MPI_COMM_WORLD, &carrier); // every process
 *     if (!st)
 *         st = weft_group_open(agent, "all", NULL, 0, &all, NULL);
 *     if (!st)
 *         st = mpi_carrier_give(carrier, all); // from now on MPI carries it
 *     ...
 *     weft_group_close(all);
 *     mpi_carrier_close(carrier); // every process, before MPI_Finalize
 *
 * THREADS. The functions of the table run on a thread of weft's while the program's own threads call MPI: it needs MPI_THREAD_MULTIPLE. The
 * communicator is a duplicate, so that nothing of the program's meets anything of the group's.
 *
 * TYPES AND REDUCTIONS. float16 and bfloat16, which MPI does not have, are moved as 16-bit integers and reduced as float32, rounded once at the
 * end. An average is MPI's sum, divided. bool takes MPI's logical "or" and "and". Order of additions, -0 and NaN are as MPI has them.
 *
 * ORDER. MPI carries a group's operations one after the other, each until it is done. So sends and receives of members in a circle must not all
 * begin with the send, as with MPI_Send itself.
 *
 * ERRORS of MPI return (MPI_ERRORS_RETURN) and end the group on this member, with WEFT_ERR_SYSTEM; a part of more than INT_MAX elements ends it with
 * WEFT_ERR_TOO_LARGE. Other members are not told, and may wait in MPI: a program whose group failed calls MPI_Abort.
 */
#ifndef EXAMPLES_MPI_CARRIER_H
#define EXAMPLES_MPI_CARRIER_H

#include <weft/group.h>

#include <mpi.h>

typedef struct mpi_carrier mpi_carrier;

/* Duplicates `comm`: every process of it calls this. WEFT_ERR_SYSTEM: MPI failed, or was not asked for MPI_THREAD_MULTIPLE. */
WEFT_NODISCARD weft_status mpi_carrier_open(MPI_Comm comm, mpi_carrier **out);
/*
 * Gives it the operations of a group whose members are those of the communicator, in the same order (else WEFT_ERR_INVALID), before the
 * first one (else WEFT_ERR_STATE). A carrier has one group.
 */
WEFT_NODISCARD weft_status mpi_carrier_give(mpi_carrier *carrier, weft_group *group);
/* What MPI said when an operation failed; NULL: none did. To be called after the group has failed. */
const char *mpi_carrier_failure(const mpi_carrier *carrier);
/* Every process, once the group is destroyed, in an order that is the same everywhere. NULL does nothing. */
void mpi_carrier_close(mpi_carrier *carrier);

#endif
