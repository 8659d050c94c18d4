/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi_groups.c - groups of weft in an MPI program: each operation by weft, by weft with MPI as its carrier, and by MPI
 * itself.
 *
 *   mpirun -n 2 --bind-to none mpi_groups
 *
 * Each process gets its rank from MPI. Process 0 runs weft's store. Functions of the program (weft/bootstrap.h) carry
 * its addresses, port and secret to the others with MPI_Bcast. Two groups contain all processes. weft carries the
 * operations of one group; it hands those of the other to MPI (mpi_groups/mpi_carrier.h), on a communicator of its
 * own. All operations of both groups are started before any is waited for, with MPI's own calls in between. Their
 * results must have the same bits. Then each way is timed alone. --help lists the options.
 *
 * The second group calls MPI from a thread of weft, while the main thread calls MPI too. So the program needs
 * MPI_THREAD_MULTIPLE, and ends if MPI does not provide it. A process that fails calls MPI_Abort, because other
 * processes may wait for it in MPI forever. Failures of the program's own MPI calls have the same effect:
 * MPI_COMM_WORLD keeps its default error handler, MPI_ERRORS_ARE_FATAL.
 */
#include <weft/weft.h>

#include "common/cli.h"                /* options */
#include "common/worker.h"             /* messages, exit codes, signals */
#include "common/report.h"             /* the report */
#include "mpi_groups/mpi_carrier.h"    /* a group's operations carried by MPI */
#include "mpi_groups/mpi_operations.h" /* each operation as weft's and as MPI's */
#include "common/random_stream.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TURNS 5              /* rounds of timing; the median counts */
#define TYPED_COUNT 13       /* elements of a tensor of each type */
#define NO_MATTER_ORDER 1e-5 /* relative difference of sums of floats in another order */

enum { BY_WEFT, CARRIED, BY_MPI, WAYS };

typedef struct settings {
    int64_t bytes, repeats;
    const char *master_addr, *report;
    bool quiet;
} settings;

/* One operation, in all three ways. */
typedef struct trial {
    const mpi_operation *operation;
    weft_tensor *in, *out[WAYS];
    weft_future *futures[WAYS][MPI_OPERATION_FUTURES]; /* NULL: none */
    bool equal;
    double us[WAYS];
} trial;

typedef struct program {
    const settings *set;
    int rank, size;
    weft_agent *agent;
    weft_group *groups[BY_MPI]; /* BY_WEFT, CARRIED */
    mpi_carrier *carrier;
    trial trials[MPI_OPERATIONS];
    int combinations, unequal; /* combinations of type and reduction: compared; with different bits */
    double difference;         /* relative, of sums of arbitrary floats: of weft from MPI */
    bool same_bits;            /* weft's sums have the same bits on all processes */
    weft_error *error;
} program;

/* ---- The job ---------------------------------------------------------------------------------------------------- */

/* How the other processes learn where process 0 is: one MPI_Bcast, which both functions of weft/bootstrap.h are. */
static weft_status broadcast(void *record, size_t size, void *comm)
{
    return MPI_Bcast(record, (int)size, MPI_BYTE, 0, *(MPI_Comm *)comm) ? WEFT_ERR_SYSTEM : WEFT_OK;
}

static weft_status publish(const char *key, const void *record, size_t size, void *comm)
{
    (void)key;
    return broadcast((void *)record, size, comm); /* the root of MPI_Bcast only reads */
}

static weft_status lookup(const char *key, void *record, size_t size, int64_t timeout_ms, void *comm)
{
    (void)key, (void)timeout_ms;
    return broadcast(record, size, comm);
}

static weft_status join(program *p)
{
    MPI_Comm world = MPI_COMM_WORLD;
    const weft_bootstrap by_mpi = {.publish = publish, .lookup = lookup, .arg = &world};
    const weft_agent_options options = {.has_rank = true,
                                        .rank = p->rank,
                                        .world_size = p->size,
                                        .master_addr = p->set->master_addr,
                                        .bootstrap = &by_mpi};
    weft_status st = weft_agent_open(&options, &p->agent, &p->error);
    if (!st)
        st = weft_group_open(p->agent, "weft", NULL, 0, &p->groups[BY_WEFT], NULL);
    if (!st)
        st = weft_group_open(p->agent, "carried", NULL, 0, &p->groups[CARRIED], NULL);
    if (!st)
        st = mpi_carrier_open(MPI_COMM_WORLD, &p->carrier);
    return st ? st : mpi_carrier_give(p->carrier, p->groups[CARRIED]);
}

static weft_status leave(program *p)
{
    for (int way = 0; way < BY_MPI; way++)
        weft_group_close(p->groups[way]);
    weft_status st = weft_agent_close(p->agent);
    mpi_carrier_close(p->carrier);
    return st;
}

/* Whether `here` is true on every process. */
static bool everywhere(bool here)
{
    int all = here;
    MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return all;
}

/* ---- The same in three ways, at the same time ------------------------------------------------------------------- */

static weft_status prepare(const program *p, trial *t, const mpi_operation *operation)
{
    int64_t part = p->set->bytes / (int64_t)sizeof(float);
    int64_t count_in = operation->parts_in ? part * p->size : part,
            count_out = operation->parts_out ? part * p->size : part;
    *t = (trial){.operation = operation, .in = weft_tensor_empty(WEFT_SHAPE(count_in), WEFT_DTYPE_FLOAT32)};
    float *values = t->in ? weft_tensor_data(t->in) : NULL;
    for (int64_t i = 0; values && i < count_in; i++)
        values[i] =
            (float)((p->rank * 31 + i * 7 + (operation - mpi_operations)) % 8); /* sums of these values are exact */
    for (int way = 0; way < WAYS; way++) {
        t->out[way] = operation->in_place ? weft_tensor_clone(t->in)
                                          : weft_tensor_zeros(WEFT_SHAPE(count_out), WEFT_DTYPE_FLOAT32);
        if (!values || !t->out[way])
            return WEFT_ERR_MEMORY;
    }
    return WEFT_OK;
}

static weft_status start(program *p, trial *t, int way)
{
    if (way != BY_MPI)
        return t->operation->start(p->groups[way], t->in, t->out[way], t->futures[way]);
    t->operation->call(MPI_COMM_WORLD, weft_tensor_data(t->in), weft_tensor_data(t->out[way]),
                       (int)(p->set->bytes / (int64_t)sizeof(float)));
    return WEFT_OK;
}

static weft_status finish(trial *t, int way)
{
    weft_status st = WEFT_OK;
    for (int i = 0; i < MPI_OPERATION_FUTURES; i++) {
        weft_future **future = &t->futures[way][i];
        if (*future && !st)
            st = weft_future_wait(*future, WEFT_FOREVER);
        weft_future_unref(*future);
        *future = NULL;
    }
    return st;
}

static bool alike(const weft_tensor *a, const weft_tensor *b)
{
    return weft_tensor_nbytes(a) == weft_tensor_nbytes(b) &&
           memcmp(weft_tensor_data(a), weft_tensor_data(b), weft_tensor_nbytes(a)) == 0;
}

static weft_status compare(program *p)
{
    weft_status st = WEFT_OK;
    for (int i = 0; i < MPI_OPERATIONS && !st; i++)
        st = prepare(p, &p->trials[i], &mpi_operations[i]);
    for (int i = 0; i < MPI_OPERATIONS && !st; i++)
        for (int way = 0; way < WAYS && !st; way++)
            st = start(p, &p->trials[i], way);
    for (int i = 0; i < MPI_OPERATIONS && !st; i++) {
        trial *t = &p->trials[i];
        for (int way = 0; way < BY_MPI && !st; way++)
            st = finish(t, way);
        if (!st)
            t->equal = everywhere(alike(t->out[BY_WEFT], t->out[BY_MPI]) && alike(t->out[CARRIED], t->out[BY_MPI]));
    }
    return st;
}

/* ---- Every type, every reduction -------------------------------------------------------------------------------- */

static bool there_is(weft_dtype dtype, weft_op how)
{
    bool is_complex = dtype == WEFT_DTYPE_COMPLEX64 || dtype == WEFT_DTYPE_COMPLEX128;
    bool is_float = dtype == WEFT_DTYPE_FLOAT32 || dtype == WEFT_DTYPE_FLOAT64 || dtype == WEFT_DTYPE_FLOAT16 ||
                    dtype == WEFT_DTYPE_BFLOAT16;
    if (how == WEFT_OP_AVG)
        return is_float || is_complex;
    return how == WEFT_OP_SUM || how == WEFT_OP_PROD || !is_complex;
}

/* Ones and twos (for bool also zeros): sums and products of a few of them are exact in every type. */
static weft_tensor *typed(const program *p, weft_dtype dtype)
{
    float values[2 * TYPED_COUNT];
    bool is_complex = dtype == WEFT_DTYPE_COMPLEX64 || dtype == WEFT_DTYPE_COMPLEX128,
         is_bool = dtype == WEFT_DTYPE_BOOL;
    for (int i = 0; i < 2 * TYPED_COUNT; i++)
        values[i] = (float)((p->rank + i * 3) % 4 / 2 + (is_bool ? 0 : 1));
    weft_tensor *plain =
        weft_tensor_copy_of(WEFT_SHAPE(TYPED_COUNT), is_complex ? WEFT_DTYPE_COMPLEX64 : WEFT_DTYPE_FLOAT32, values);
    weft_tensor *out = plain ? weft_tensor_to(plain, dtype) : NULL;
    weft_tensor_unref(plain);
    return out;
}

static weft_status compare_type(program *p, weft_dtype dtype, weft_op how)
{
    static const char *const names[] = {[WEFT_OP_SUM] = "sum",
                                        [WEFT_OP_AVG] = "average",
                                        [WEFT_OP_MIN] = "minimum",
                                        [WEFT_OP_MAX] = "maximum",
                                        [WEFT_OP_PROD] = "product"};
    weft_tensor *x[BY_MPI] = {typed(p, dtype), typed(p, dtype)};
    weft_future *futures[BY_MPI] = {NULL, NULL};
    weft_status st = x[BY_WEFT] && x[CARRIED] ? WEFT_OK : WEFT_ERR_MEMORY;
    for (int way = 0; way < BY_MPI && !st; way++)
        st = weft_group_allreduce_async(p->groups[way], x[way], how, 0, &futures[way]);
    if (!st)
        st = weft_future_wait_all(futures, BY_MPI, WEFT_FOREVER);
    if (!st) {
        bool equal = alike(x[BY_WEFT], x[CARRIED]);
        if (!equal && p->rank == 0)
            worker_note("%s of %s differs", names[how], weft_dtype_name(dtype));
        p->combinations++;
        p->unequal += !equal;
    }
    for (int way = 0; way < BY_MPI; way++) {
        weft_future_unref(futures[way]);
        weft_tensor_unref(x[way]);
    }
    return st;
}

static weft_status compare_types(program *p)
{
    weft_status st = WEFT_OK;
    for (weft_dtype dtype = WEFT_DTYPE_FLOAT32; dtype <= WEFT_DTYPE_COMPLEX128 && !st; dtype++)
        for (weft_op how = WEFT_OP_SUM; how <= WEFT_OP_PROD && !st; how++)
            if (there_is(dtype, how))
                st = compare_type(p, dtype, how);
    if (!everywhere(p->unequal == 0) && !p->unequal)
        p->unequal = 1; /* different on another process */
    return st;
}

/*
 * Compares sums of arbitrary floats. Their last bits depend on the order of additions, so weft and MPI may differ.
 * weft's sums must have the same bits on all processes.
 */
static weft_status compare_floats(program *p)
{
    enum { COUNT = 4099 };
    weft_tensor *x = weft_tensor_empty(WEFT_SHAPE(COUNT), WEFT_DTYPE_FLOAT32);
    float *values = x ? weft_tensor_data(x) : NULL, theirs[COUNT], first[COUNT];
    random_stream random = {(uint64_t)p->rank + 1};
    for (int i = 0; values && i < COUNT; i++)
        theirs[i] = values[i] = (float)random_unit(&random);
    weft_status st = x ? weft_group_allreduce(p->groups[BY_WEFT], x, WEFT_OP_SUM, 0) : WEFT_ERR_MEMORY;
    if (!st) {
        MPI_Allreduce(MPI_IN_PLACE, theirs, COUNT, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        memcpy(first, values, sizeof first);
        MPI_Bcast(first, COUNT, MPI_FLOAT, 0, MPI_COMM_WORLD);
        p->same_bits = everywhere(memcmp(first, values, sizeof first) == 0);
        for (int i = 0; i < COUNT && !isnan(p->difference); i++) {
            double difference = fabs((double)values[i] - theirs[i]) / theirs[i];
            p->difference = difference <= p->difference ? p->difference : difference; /* also takes a NaN */
        }
    }
    weft_tensor_unref(x);
    return st;
}

/* ---- Timing ----------------------------------------------------------------------------------------------------- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Measures microseconds per operation, of the slowest process. */
static weft_status one_turn(program *p, trial *t, int way, double *us)
{
    weft_status st = WEFT_OK;
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (int64_t i = 0; i < p->set->repeats && !st; i++) {
        st = start(p, t, way);
        if (!st && way != BY_MPI)
            st = finish(t, way);
    }
    *us = 1e6 * (MPI_Wtime() - begin) / (double)p->set->repeats;
    if (!st)
        MPI_Allreduce(MPI_IN_PLACE, us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return st;
}

static weft_status time_all(program *p)
{
    weft_status st = WEFT_OK;
    for (int i = 0; i < MPI_OPERATIONS && !st; i++) {
        trial *t = &p->trials[i];
        double us[WAYS][TURNS];
        for (int turn = 0; turn < TURNS && !st; turn++)
            for (int way = 0; way < WAYS && !st; way++)
                st = one_turn(p, t, way, &us[way][turn]);
        for (int way = 0; way < WAYS && !st; way++) {
            qsort(us[way], TURNS, sizeof us[way][0], by_size);
            t->us[way] = us[way][TURNS / 2];
        }
    }
    return st;
}

/* ---- Results ---------------------------------------------------------------------------------------------------- */

static bool is_well(const program *p)
{
    bool well = p->unequal == 0 && p->same_bits && p->difference <= NO_MATTER_ORDER;
    for (int i = 0; i < MPI_OPERATIONS; i++)
        well = well && p->trials[i].equal;
    return well;
}

static const char *mpi_name(char *out)
{
    int length = 0;
    MPI_Get_library_version(out, &length);
    out[strcspn(out, ",\n")] = 0;
    return out;
}

static void print_table(const program *p)
{
    char name[MPI_MAX_LIBRARY_VERSION_STRING];
    printf("%d processes, %s, %lld bytes a part; microseconds\n\n", p->size, mpi_name(name), (long long)p->set->bytes);
    printf("  operation        equal       weft   weft by MPI    MPI itself\n");
    for (int i = 0; i < MPI_OPERATIONS; i++) {
        const trial *t = &p->trials[i];
        const char *equal = i == 0 ? "-" : t->equal ? "yes" : "NO"; /* a barrier has no result */
        printf("  %-15s  %-5s %10.1f %13.1f %13.1f\n", t->operation->name, equal, t->us[BY_WEFT], t->us[CARRIED],
               t->us[BY_MPI]);
    }
    printf("\n  types and reductions   %d of %d have weft's bits when MPI carries them\n", p->combinations - p->unequal,
           p->combinations);
    printf("  sums of any floats     weft's bits are %s on all processes; MPI's sums differ by %.1e at most\n",
           p->same_bits ? "the same" : "NOT the same", p->difference);
}

static bool add_operation(cJSON *list, const trial *t)
{
    cJSON *json = cJSON_CreateObject();
    return cJSON_AddItemToArray(list, json) && cJSON_AddStringToObject(json, "operation", t->operation->name) &&
           cJSON_AddBoolToObject(json, "equal", t->equal) && cJSON_AddNumberToObject(json, "weft_us", t->us[BY_WEFT]) &&
           cJSON_AddNumberToObject(json, "carried_us", t->us[CARRIED]) &&
           cJSON_AddNumberToObject(json, "mpi_us", t->us[BY_MPI]);
}

/* NULL if memory is out. */
static cJSON *to_json(const program *p)
{
    char name[MPI_MAX_LIBRARY_VERSION_STRING];
    cJSON *json = cJSON_CreateObject(), *list = cJSON_CreateArray();
    bool whole = cJSON_AddStringToObject(json, "mpi", mpi_name(name)) &&
                 cJSON_AddNumberToObject(json, "processes", p->size) &&
                 cJSON_AddNumberToObject(json, "bytes", (double)p->set->bytes) &&
                 cJSON_AddNumberToObject(json, "combinations", p->combinations) &&
                 cJSON_AddNumberToObject(json, "unequal_combinations", p->unequal) &&
                 cJSON_AddBoolToObject(json, "same_bits", p->same_bits) &&
                 cJSON_AddNumberToObject(json, "difference", p->difference);
    for (int i = 0; i < MPI_OPERATIONS && whole; i++)
        whole = add_operation(list, &p->trials[i]);
    if (cJSON_AddItemToObject(json, "operations", list) && whole)
        return json;
    cJSON_Delete(json);
    return NULL;
}

static void clean_up(program *p)
{
    for (int i = 0; i < MPI_OPERATIONS; i++) {
        weft_tensor_unref(p->trials[i].in);
        for (int way = 0; way < WAYS; way++)
            weft_tensor_unref(p->trials[i].out[way]);
    }
}

static weft_status conclude(program *p)
{
    weft_status st = WEFT_OK;
    if (p->rank == 0 && p->set->report)
        st = json_file_write(p->set->report, to_json(p), &p->error);
    if (p->rank == 0 && !p->set->quiet)
        print_table(p);
    if (!st && !is_well(p)) {
        p->error = weft_error_create(WEFT_ERR_STATE, "the ways differ");
        st = WEFT_ERR_STATE;
    }
    return st;
}

/* ---- The program ------------------------------------------------------------------------------------------------ */

static weft_status run(program *p)
{
    weft_status st = join(p);
    if (!st)
        st = compare(p);
    if (!st)
        st = compare_types(p);
    if (!st)
        st = compare_floats(p);
    if (!st)
        st = time_all(p);
    if (!st)
        st = conclude(p);
    return st ? st : leave(p);
}

/* Prints the reason, and ends all processes. */
static int end_early(program *p, weft_status st)
{
    const char *mpi = p->carrier ? mpi_carrier_failure(p->carrier) : NULL;
    for (int way = 0; way < BY_MPI && !p->error && !mpi; way++)
        p->error = weft_error_ref(weft_group_error(p->groups[way]));
    int code = mpi ? worker_fail("%s", mpi) : worker_error(st, p->error);
    MPI_Abort(MPI_COMM_WORLD, code);
    return code;
}

/* Runs between MPI_Init_thread and MPI_Finalize. */
static int work(const cli *line, const settings *set, int threads)
{
    program p = {.set = set};
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    worker_name(line->program, "process 0", "process", p.rank);
    if (p.size < 2)
        return cli_error(line, "one process alone has no group: start it as 'mpirun -n 2 %s'", line->program);
    if (threads < MPI_THREAD_MULTIPLE)
        return p.rank ? 1
                      : worker_fail("this MPI gives thread level %d, and %d (MPI_THREAD_MULTIPLE) is needed: weft "
                                    "calls it on a thread of its own",
                                    threads, MPI_THREAD_MULTIPLE);
    weft_status st = run(&p);
    if (st)
        return end_early(&p, st);
    clean_up(&p);
    return 0;
}

int main(int argc, char **argv)
{
    settings set = {.bytes = 65536, .repeats = 20};
    const cli_option options[] = {
        {"bytes", CLI_INT, &set.bytes, 4, 1 << 28, NULL, "N", "bytes of one process's part of a tensor", "65536"},
        {"repeats", CLI_INT, &set.repeats, 1, 1000000, NULL, "N", "repetitions of each operation in each of 5 rounds",
         "20"},
        {"master-addr", CLI_TEXT, &set.master_addr, 0, 0, NULL, "HOST", "address of process 0 for the other processes",
         "MASTER_ADDR, or its addresses"},
        {"report", CLI_TEXT, &set.report, 0, 0, NULL, "FILE", "write the table to FILE as JSON", NULL},
        {"quiet", CLI_FLAG, &set.quiet, 0, 0, NULL, NULL, "print no table", NULL},
    };
    const cli line = {.program = "mpi_groups",
                      .purpose = "runs each group operation with weft, with weft and MPI as its carrier, and with MPI",
                      .example = "mpirun -n 2 --bind-to none mpi_groups --report report.json",
                      .options = options,
                      .count = sizeof options / sizeof *options};
    int threads = MPI_THREAD_SINGLE, code = cli_parse(&line, argc, argv);
    if (code < 0)
        code = worker_check_output(&line, "--report", set.report);
    if (code >= 0)
        return code;
    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads))
        return 1; /* MPI has printed the reason */
    code = work(&line, &set, threads);
    MPI_Finalize();
    return worker_flush(code);
}
