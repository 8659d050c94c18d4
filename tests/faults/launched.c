/* SPDX-License-Identifier: Apache-2.0 */
/*
 * launched.c - one worker of a job that a launcher started, without any setting of weft (tools/long.d/launchers): all
 * operations of a group, with every result checked, then what the command line says.
 *
 * usage: launched [fails RANK CODE | killed RANK | aborts RANK | waits] fails: that rank exits with CODE, without
 * closing anything. killed, aborts: it ends itself by SIGKILL or SIGABRT. waits: all workers stay in a barrier that
 * rank 0 never calls; rank 0 prints "launched: waits". If the job fails, the exit code is 1 and standard error has the
 * reason.
 */
#include "tensors.h"

#include <weft/group.h>
#include <weft/rpc.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t size, me;

/* Element `i` of the input of member `rank`. It is a small integer, so a sum of elements has no rounding error. */
static double element(int64_t rank, int64_t i)
{
    return (double)((rank + 1) * (i % 1000 + 1));
}

static weft_tensor *input_of(int64_t rank, int64_t count)
{
    weft_tensor *x = tensor_empty(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT64);
    if (!x)
        abort();
    for (int64_t i = 0; i < count; i++)
        ((double *)weft_tensor_data(x))[i] = element(rank, i);
    return x;
}

static weft_tensor *room_for(int64_t count)
{
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT64);
    if (!x)
        abort();
    return x;
}

/* Element `i` of the sum of all inputs. */
static double sum(int64_t i)
{
    return (double)(size * (size + 1) / 2) * element(0, i);
}

typedef enum operation {
    BARRIER,
    ALLREDUCE,
    REDUCE,
    BROADCAST,
    ALLGATHER,
    REDUCE_SCATTER,
    GATHER,
    SCATTER,
    ALL_TO_ALL,
    SEND_RECV,
    OPERATIONS
} operation;

static const char *const names[] = {"barrier",        "allreduce", "reduce",  "broadcast",  "allgather",
                                    "reduce_scatter", "gather",    "scatter", "all_to_all", "send and recv"};

/* Runs `o` with parts of `n` elements. *wrong: the number of wrong elements. */
static weft_status run(weft_group *group, operation o, int64_t n, int64_t *wrong)
{
    bool whole = o == REDUCE_SCATTER || o == SCATTER || o == ALL_TO_ALL;
    bool gathers = o == ALLGATHER || o == GATHER || o == ALL_TO_ALL;
    int64_t count = gathers ? n * size : n;
    size_t last = (size_t)size - 1;
    weft_tensor *in = input_of(me, whole ? n * size : n), *out = gathers || whole ? room_for(count) : input_of(me, n);
    weft_future *arrives = NULL;
    weft_status status = WEFT_OK;
    switch (o) {
    case BARRIER:
        status = weft_group_barrier(group, WEFT_FOREVER);
        break;
    case ALLREDUCE:
        status = weft_group_allreduce(group, out, WEFT_OP_SUM, WEFT_FOREVER);
        break;
    case REDUCE:
        status = weft_group_reduce(group, out, WEFT_OP_SUM, last, WEFT_FOREVER);
        break;
    case BROADCAST:
        status = weft_group_broadcast(group, out, last, WEFT_FOREVER);
        break;
    case ALLGATHER:
        status = weft_group_allgather(group, in, out, WEFT_FOREVER);
        break;
    case REDUCE_SCATTER:
        status = weft_group_reduce_scatter(group, in, out, WEFT_OP_SUM, WEFT_FOREVER);
        break;
    case GATHER:
        status = weft_group_gather(group, in, out, last, WEFT_FOREVER);
        break;
    case SCATTER:
        status = weft_group_scatter(group, in, out, last, WEFT_FOREVER);
        break;
    case ALL_TO_ALL:
        status = weft_group_all_to_all(group, in, out, WEFT_FOREVER);
        break;
    case SEND_RECV:
        if (size == 1)
            break;
        status = weft_group_recv_async(group, out, (size_t)((me + size - 1) % size), WEFT_FOREVER, &arrives);
        if (!status)
            status = weft_group_send(group, in, (size_t)((me + 1) % size), WEFT_FOREVER);
        if (!status)
            status = weft_future_wait(arrives, WEFT_FOREVER);
        break;
    case OPERATIONS:
        break;
    }
    weft_future_unref(arrives);
    for (int64_t i = 0; !status && i < count; i++) {
        double expected[OPERATIONS] = {
            [BARRIER] = element(me, i),
            [ALLREDUCE] = sum(i),
            [REDUCE] = me == size - 1 ? sum(i) : element(me, i),
            [BROADCAST] = element(size - 1, i),
            [ALLGATHER] = element(n ? i / n : 0, n ? i % n : 0),
            [REDUCE_SCATTER] = sum(me * n + i),
            [GATHER] = me == size - 1 ? element(n ? i / n : 0, n ? i % n : 0) : 0,
            [SCATTER] = element(size - 1, me * n + i),
            [ALL_TO_ALL] = element(n ? i / n : 0, n ? me * n + i % n : 0),
            [SEND_RECV] = element((me + size - 1) % size, i),
        };
        *wrong += ((const double *)weft_tensor_data(out))[i] != expected[o];
    }
    weft_tensor_unref(in);
    weft_tensor_unref(out);
    return status;
}

/* All operations, small, in the middle, large. */
static weft_status run_all(weft_group *group)
{
    static const int64_t counts[] = {0, 1, 1000, 300000};
    for (size_t c = 0; c < sizeof(counts) / sizeof(*counts); c++)
        for (operation o = 0; o < OPERATIONS; o++) {
            int64_t wrong = 0;
            weft_status status = run(group, o, counts[c], &wrong);
            if (status || wrong) {
                fprintf(stderr, "launched: rank %lld: %s of %lld: %s, %lld elements are wrong\n", (long long)me,
                        names[o], (long long)counts[c], weft_status_name(status), (long long)wrong);
                return status ? status : WEFT_ERR_CANCELLED;
            }
        }
    return WEFT_OK;
}

static weft_status end(weft_group *group, int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    bool is_this_one = argc > 2 && atoi(argv[2]) == me;
    if (!strcmp(how, "fails") && is_this_one)
        _exit(argc > 3 ? atoi(argv[3]) : 1);
    if (!strcmp(how, "killed") && is_this_one)
        raise(SIGKILL);
    if (!strcmp(how, "aborts") && is_this_one)
        abort();
    bool waits = !strcmp(how, "waits");
    if (waits && !me) {
        puts("launched: waits");
        fflush(stdout);
        for (;;)
            pause();
    }
    return waits || argc > 2 ? weft_group_barrier(group, WEFT_FOREVER) : WEFT_OK;
}

int main(int argc, char **argv)
{
    weft_agent *agent = NULL;
    weft_group *group = NULL;
    weft_status status = weft_agent_open(&(weft_agent_options){.fabric = NULL}, &agent, NULL);
    if (!status)
        status = weft_group_open(agent, "launched", NULL, 0, 0, &group, NULL);
    if (!status) {
        size = (int64_t)weft_group_size(group);
        me = weft_group_index(group);
        status = run_all(group);
    }
    if (!status)
        status = end(group, argc, argv);
    if (status && group && weft_group_error(group))
        weft_error_print(weft_group_error(group), stderr);
    weft_group_close(group);
    weft_status closed = weft_agent_close(agent, WEFT_FOREVER);
    if (!status && !closed && !me)
        printf("launched: %lld workers, %d operations, all right\n", (long long)size, OPERATIONS);
    return weft_report(status ? status : closed);
}
