/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forks.c - disables the agents in a child of fork(2).
 *
 * A child has copies of its parent's agents. They must not send, because their connections are the parent's. So every
 * agent in the child is marked (`forked`): its calls are refused, its handles behave as after closing, and nothing
 * reads the network. (Not to be confused with the forks of a remote reference: rpc/refs.)
 */
#include "rpc/agent/agent.h"

#include <pthread.h>

/* Held during every fork, so that the list is consistent in the child. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static wfi_list open_agents = {&open_agents, &open_agents}; /* [lock] */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void in_parent(void)
{
    pthread_mutex_unlock(&lock);
}

/* The child has only this thread. The locks of agents and executors may be held by threads that exist only in the
 * parent. */
static void in_child(void)
{
    for (wfi_list *at = open_agents.next; at != &open_agents; at = at->next) {
        weft_agent *agent = wfi_container_of(at, weft_agent, open_link);
        wfi_net_forked(agent->net);
        wfi_executor_forked(agent->executor);
        agent->forked = true;
        agent->gone = WEFT_ERR_STATE;
        atomic_store(&agent->closed, true);
    }
    pthread_mutex_unlock(&lock);
}

static void watch_forks(void)
{
    (void)pthread_atfork(before_fork, in_parent, in_child);
}

void wfi_forks_watch(weft_agent *agent)
{
    pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
    wfi_list_push_back(&open_agents, &agent->open_link);
    pthread_mutex_unlock(&lock);
}

void wfi_forks_forget(weft_agent *agent)
{
    pthread_mutex_lock(&lock);
    wfi_list_remove(&agent->open_link);
    pthread_mutex_unlock(&lock);
}
