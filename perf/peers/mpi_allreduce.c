/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_allreduce.c - allreduce and barrier of the MPI that it is built with, in the sizes, slices and words of peers/torch_allreduce.py: one JSON
 * object of microseconds, us_0 is the barrier, us_N an allreduce of N bytes of float32; medians of slices, as the first process sees them.
 *
 *   mpirun -n 2 --mca pml ob1 --mca btl tcp,self mpi_allreduce [--slices N] [--quick]
 */
#include "cli.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static const size_t sizes[] = {0, 4, 256, 4096, 65536, 1 << 20, 16 << 20, (size_t)100 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes, SIZE_MOST = 100 << 20, MOST_SLICES = 1000 };

static int count_of(size_t bytes, bool quick)
{
    int count = bytes <= 65536 ? 100 : bytes <= 1 << 20 ? 20 : bytes <= 16 << 20 ? 4 : 2;
    return quick ? (count / 4 > 2 ? count / 4 : 2) : count;
}

/* Microseconds an operation. Errors end the program: MPI_ERRORS_ARE_FATAL. */
static double one_slice(float *x, size_t bytes, int count)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    for (int i = 0; i < count; i++) {
        if (bytes)
            MPI_Allreduce(MPI_IN_PLACE, x, (int)(bytes / sizeof *x), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else
            MPI_Barrier(MPI_COMM_WORLD);
    }
    return 1e6 * (MPI_Wtime() - start) / count;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}

static void measure(float *x, int slices, bool quick)
{
    static double taken[SIZES][MOST_SLICES];
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (int turn = -1; turn < slices; turn++) /* the first one warms up */
        for (size_t i = 0; i < SIZES; i++) {
            double us = one_slice(x, sizes[i], turn < 0 ? 2 : count_of(sizes[i], quick));
            if (turn >= 0)
                taken[i][turn] = us;
        }
    for (size_t i = 0; i < SIZES && rank == 0; i++)
        printf("%s\"us_%zu\": %.17g", i ? ", " : "{", sizes[i], median(taken[i], slices));
    if (rank == 0)
        printf("}\n");
}

int main(int argc, char **argv)
{
    int64_t slices = 4;
    bool quick = false;
    const cli_option options[] = {
        {"slices", CLI_INT, &slices, 1, MOST_SLICES, NULL, "N", "turns of all sizes", "4"},
        {"quick", CLI_FLAG, &quick, 0, 0, NULL, NULL, "a quarter of it", NULL},
    };
    const cli program = {
        .program = "mpi_allreduce",
        .purpose = "allreduce and barrier of MPI",
        .example = "mpirun -n 2 --mca pml ob1 --mca btl tcp,self mpi_allreduce",
        .options = options,
        .count = sizeof options / sizeof *options,
    };
    int end = cli_parse(&program, argc, argv);
    if (end >= 0)
        return end;
    float *x = calloc(SIZE_MOST, 1); /* zeros, as the others sum */
    if (!x || MPI_Init(&argc, &argv))
        return 1;
    measure(x, (int)slices, quick);
    MPI_Finalize();
    free(x);
    return fflush(stdout) ? 1 : 0;
}
