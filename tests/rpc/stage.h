/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stage.h - an elastic job of four seats whose actors open and close agents as they like: fibers on the simulation,
 * threads on tcp. Every agent serves "add" and "hold", and what it is told of members is written down for its actor.
 */
#ifndef TESTS_RPC_STAGE_H
#define TESTS_RPC_STAGE_H

#include "rpc/world.h"

#define STAGE_SEATS 4
#define STAGE_ACTORS_MAX 8
#define STAGE_NEWS_MAX 256

/* What one agent was told, in order. */
typedef struct news {
    atomic_int count;
    struct {
        weft_member_event event;
        int rank;
    } items[STAGE_NEWS_MAX];
} news;

typedef struct stage {
    weft_sim *sim; /* NULL: tcp */
    int port;
    void (*program)(struct stage *s, int actor);
    int actors;
    int64_t death_ms;
    news heard[STAGE_ACTORS_MAX];
    atomic_int flags[16]; /* the program's */
    weft_call *held[4];   /* by "hold", in order, on whichever agent */
    atomic_int held_count;
} stage;

/* Runs the program on so many actors, once for each seed of the simulation and so often on tcp. */
void stage_play(void (*program)(stage *s, int actor), int actors, int seeds, int tcp_times);
/* cmocka's test of one program: STAGE_TEST(churn, 4, 20, 2) is test_churn. */
#define STAGE_TEST(name, actors, seeds, tcp_times)                                                                     \
    static void test_##name(void **cmocka)                                                                             \
    {                                                                                                                  \
        stage_play(name, actors, seeds, tcp_times);                                                                    \
    }

void stage_sleep_ms(stage *s, int ms);
void stage_await_flag(stage *s, int which, int wanted);

weft_agent_options stage_options(stage *s, int actor, int rank, const char *name);
weft_agent *stage_open(stage *s, int actor, int rank, const char *name); /* ends the test if that fails */
weft_status stage_add_at(weft_agent *agent, weft_target to);             /* a call of "add" */

/* The agent has been told this, for the `count`th time. */
void stage_await_news(stage *s, int actor, weft_member_event event, int rank, int count);
/* So many are there. Those who came before rank 0 are in its table from the beginning: it is not told of them. */
void stage_await_workers(stage *s, weft_agent *agent, size_t count);

#endif
