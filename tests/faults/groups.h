/* SPDX-License-Identifier: Apache-2.0 */
/* groups.h - operations of groups whose results every member knows beforehand (groups_ops.c), for groups.c. */
#ifndef TESTS_FAULTS_GROUPS_H
#define TESTS_FAULTS_GROUPS_H

#include "faults/faults.h"

typedef enum op_kind {
    OP_BARRIER,
    OP_ALLREDUCE,
    OP_REDUCE,
    OP_BROADCAST,
    OP_ALLGATHER,
    OP_REDUCE_SCATTER,
    OP_GATHER,
    OP_SCATTER,
    OP_ALL_TO_ALL,
    OP_RING, /* each member sends to the next one and receives from the one before */
    OP_VALUES,
    OPS
} op_kind;
extern const char *const op_names[OPS];

/* An operation, the same on all members unless one of them is to disagree. */
typedef struct op_plan {
    op_kind kind;
    weft_dtype dtype;
    weft_op how;
    size_t root;
    int64_t count;    /* elements of one part */
    unsigned salt;    /* of the contents */
    bool strided;     /* the tensors of this member are not contiguous */
    int64_t limit_ms; /* of the operation */
} op_plan;

/* One that is under way, or has ended. */
typedef struct op_run {
    op_plan plan;
    size_t size, me; /* of the group */
    weft_tensor *x, *y;
    weft_future *futures[2];
    size_t futures_count;
} op_run;

/* The plan follows from the seed. `most`: elements. */
op_plan op_choose(uint64_t seed, size_t size, int64_t most);
void op_describe(const op_plan *plan, char *out, size_t room);
/* The failure if it does not start; then there is nothing to end. */
weft_status op_begin(weft_group *group, const op_plan *plan, op_run *out);
/* Waits for the end, and checks the result if it is a success. `where` says which operation it is, for a fault. */
weft_status op_end(op_run *run, const char *where);
/* The same in one. */
weft_status op_do(weft_group *group, const op_plan *plan, const char *where);

#endif
