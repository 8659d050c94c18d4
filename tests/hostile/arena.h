/* SPDX-License-Identifier: Apache-2.0 */
/*
 * arena.h - the attacker: a job under attack, what one stroke of an attack is, and how it is seen what an attack did.
 */
#ifndef TESTS_HOSTILE_ARENA_H
#define TESTS_HOSTILE_ARENA_H

#include "board.h"
#include "children.h"

#include "unit.h"

#include <stdio.h>

#define HELD_MAX 1200 /* connections that a stranger keeps */

typedef struct insider insider; /* the attacker's own seat in the job: member.c */

typedef struct arena {
    board *at;
    child job; /* rank 0; the others are its children */
    int log_fd;
    unsigned window;
    int fds[HELD_MAX];
    int fd_count;
    insider *member;
    unsigned strokes;
} arena;

typedef struct attack {
    const char *name;
    void (*stroke)(arena *a, unsigned n); /* short; again every pause_ms */
    int pause_ms;
    bool refused;   /* every victim of a stroke counts it, or the store */
    bool by_member; /* it has the secret: it may do more than a stranger */
} attack;

/* ---- measure.c: a job, and how it fares ---- */

typedef struct footprint {
    long anonymous_kb;
    int descriptors, threads;
} footprint;

/* Starts the job, and waits until it works. The files may be NULL. */
void arena_begin(arena *a, const char *log_level, const char *trace_file, const char *metrics_file);
void arena_end(arena *a); /* everybody closes well, or the test fails */
footprint arena_footprint(const arena *a, int rank);
uint64_t arena_refused(const arena *a); /* by all workers, the store included */
void arena_check_calls(const arena *a); /* no answer was wrong, none is missing */
double arena_join_ms(arena *a);         /* how long a new worker with the secret takes to join */
char *arena_log(const arena *a, size_t *size);
void arena_drop_connections(arena *a);

/* Attacked and left alone in turn; fails if it delays anybody by more than 20 ms, if a wrong answer is seen, or if
 * something has grown. */
void arena_suffer(arena *a, const attack *what, int rounds, int window_ms);

/* ---- strangers.c ---- */
extern const attack strangers[];
extern const size_t stranger_count;
void stranger_flood(arena *a, int count, int64_t ms); /* as many connections as it can make, `count` of them open */
int stranger_dial(arena *a, int rank); /* rank -1: the store. A connected socket, which the arena keeps */

/* ---- member.c ---- */
extern const attack members[];
extern const size_t member_count;
void member_enter(arena *a); /* takes a seat, as whoever has the secret can */
void member_leave(arena *a);
/* References without number announced, by one that takes no answers: how much each victim holds for it, in kB. */
long member_flood(arena *a, unsigned forks);

#endif
