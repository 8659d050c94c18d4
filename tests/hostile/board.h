/* SPDX-License-Identifier: Apache-2.0 */
/*
 * board.h - the memory that the attacked job and the attacker share: how the job fares, and what an attacker who
 * reads the wire, or has the secret, would know. It is child_memory.
 */
#ifndef TESTS_HOSTILE_BOARD_H
#define TESTS_HOSTILE_BOARD_H

#include "inside.h"

#include <stdatomic.h>

#define VICTIMS 3
#define SEATS 16 /* of the job, which is elastic: the others are for visitors, wanted or not */
#define WINDOWS 600
#define SAMPLES 512

typedef enum sample_kind {
    CALL,
    REACH,
    SAMPLE_KINDS
} sample_kind; /* an answer; the same, over a lane that must be opened */

typedef struct window {
    atomic_uint count;
    uint32_t us[SAMPLES];
} window;

typedef struct victim {
    atomic_int ready; /* its pid */
    atomic_uint seen; /* the window in which it began its present call */
    atomic_ullong calls, wrong, refused, held_bytes;
    char trouble[200];
    wfi_member member;
    wfi_net_keys keys;
    window windows[WINDOWS][SAMPLE_KINDS];
} victim;

typedef struct board {
    atomic_uint now; /* the present window */
    atomic_int stop;
    int port; /* the store's */
    wfi_secret secret;
    uint8_t job_key[WFI_JOB_KEY_BYTES];
    uint8_t recorded[WFI_CONNECT_DATA_MAX]; /* a request for a connection from rank 0 to rank 1 */
    atomic_int recorded_size;
    victim victims[VICTIMS];
} board;

/* A worker of the job, until board.stop: calls the others, checks every answer. Returns the exit code. */
int be_victim(void);

#endif
