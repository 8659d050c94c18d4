/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_allreduce.c - allreduce and barrier of the MPI that it is built with, for weft-perf. The first process reads
 * lines "BYTES WINDOW MICROSECONDS WHAT", and answers each with a line of the microseconds of single operations, as
 * it sees them. 0 bytes: barriers. Between orders all processes sleep: MPI would spin while weft is measured.
 *
 *   mpirun -n 2 mpi_allreduce
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SAMPLES 2000 /* of an answer, at most */
#define SLEEP_US 1000

/* Errors end the program: MPI_ERRORS_ARE_FATAL. */
static void time_operations(float *x, int elements, int count, double *us)
{
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < count; i++) {
        double start = MPI_Wtime();
        if (elements)
            MPI_Allreduce(MPI_IN_PLACE, x, elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else
            MPI_Barrier(MPI_COMM_WORLD);
        us[i] = 1e6 * (MPI_Wtime() - start);
    }
}

/* Two operations are tried first. Their time says how many fill the slice. */
static int follow(const double order[2], double us[SAMPLES])
{
    int elements = (int)(order[0] / sizeof(float)), count;
    float *x = calloc((size_t)elements + 1, sizeof(*x)); /* zeros, as the others sum */
    if (!x)
        MPI_Abort(MPI_COMM_WORLD, 1);
    time_operations(x, elements, 2, us);
    double wanted = order[1] / (us[0] < us[1] ? us[0] : us[1]);
    count = wanted < 1 ? 1 : wanted > SAMPLES ? SAMPLES : (int)wanted;
    MPI_Bcast(&count, 1, MPI_INT, 0, MPI_COMM_WORLD);
    time_operations(x, elements, count, us);
    free(x);
    return count;
}

static void lead(int processes)
{
    double order[2], us[SAMPLES];
    char line[256];
    while (fgets(line, sizeof(line), stdin) && sscanf(line, "%lf %*s %lf", &order[0], &order[1]) == 2) {
        for (int rank = 1; rank < processes; rank++)
            MPI_Send(order, 2, MPI_DOUBLE, rank, 0, MPI_COMM_WORLD);
        int count = follow(order, us);
        for (int i = 0; i < count; i++)
            printf("%s%.3f", i ? " " : "", us[i]);
        printf("\n");
        fflush(stdout);
    }
    MPI_Abort(MPI_COMM_WORLD, 0);
}

int main(int argc, char **argv)
{
    double order[2], us[SAMPLES];
    int rank = 0, processes = 0;
    if (MPI_Init(&argc, &argv))
        return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &processes);
    if (rank == 0)
        lead(processes);
    for (;;) {
        MPI_Request request;
        int has_come = 0;
        MPI_Irecv(order, 2, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD, &request);
        while (MPI_Test(&request, &has_come, MPI_STATUS_IGNORE) == 0 && !has_come)
            (void)usleep(SLEEP_US);
        (void)follow(order, us);
    }
}
