/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lanes.h - lanes: threads of each worker that meet in a group with some of the other workers, and play one scene after
 * the other there. All members of a lane know from the seed which scene it is and which member is the odd one. Lanes of
 * one worker overlap.
 */
#ifndef TESTS_FAULTS_LANES_H
#define TESTS_FAULTS_LANES_H

#include "faults/faults.h"

/* A lane of this worker in one generation: one scene. */
typedef struct faults_lane {
    faults_epoch e;
    int number, ranks[SEATS_MOST];
    size_t size, me; /* members; this worker's index */
    unsigned generation;
    uint64_t seed; /* of the scene */
    size_t odd;    /* the member that does something else than the others */
    weft_group *group;
    uint32_t incarnations[SEATS_MOST]; /* of the members of the group, by rank */
    char where[120];                   /* for messages */
} faults_lane;

/*
 * Plays scenes in this lane until the worker's end. `play` sees the lane with a new seed each time, and without a
 * group.
 */
void lane_run(int number, void (*play)(faults_lane *lane));
/* A number for a step of this scene, which is larger for each later step, scene and epoch of the job. */
unsigned long lane_place(const faults_lane *lane, unsigned step);
/* Waits until all members have come to this step of the scene, 1 to 15. False: the epoch is over. */
bool lane_meet(const faults_lane *lane, unsigned step);

/* False, and a fault if there is no reason for it: the group cannot be made. */
bool lane_make_group(faults_lane *lane, const char *suffix);
/* weft_group_open, once. *why: released by the caller. */
weft_status lane_open(faults_lane *lane, const char *suffix, int64_t limit_ms, weft_error **why);
void lane_drop_group(faults_lane *lane);

/*
 * Whether this failure has a reason: a death, a worker that leaves, a stop, the end of the epoch, a small budget. `why`
 * may be NULL.
 */
bool lane_excuses(const faults_lane *lane, weft_status status, const weft_error *why);
/* Something had to end with `wanted`. Returns whether it did; it is a fault if it did not and nothing excuses that. */
bool lane_judge(const faults_lane *lane, weft_status status, weft_status wanted, const weft_error *why,
                const char *what);
/* The error must have these words. */
void lane_judge_words(const faults_lane *lane, const weft_error *why, const char *words);
/* Nothing was done to any member, and the epoch goes on. */
bool lane_is_calm(const faults_lane *lane);

#endif
