/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_no_thread_left.c - the system starts no thread for handlers: calls fail with WEFT_ERR_BUSY and name the
 * limit. Once there is a thread again, calls succeed.
 */
#include "rpc/world.h"

#include <errno.h>

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg);

static atomic_bool has_none;
static atomic_int opened;

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*run)(void *), void *arg)
{
    return atomic_load(&has_none) ? EAGAIN : __real_pthread_create(thread, how, run, arg);
}

static const weft_function functions[] = {{.name = "plain", .run = world_run_nothing}};

static void no_thread_left(weft_agent *agent, void *arg)
{
    atomic_fetch_add(&opened, 1);
    if (weft_agent_rank(agent) != 1)
        return;
    while (atomic_load(&opened) < 2) /* opening starts threads */
        world_sleep_ms(arg, 1);
    atomic_store(&has_none, true);
    for (int to = 0; to < 4; to++) { /* to rank 0 and to oneself */
        weft_error *error = NULL;
        const weft_rpc_options how = {.error = &error, .timeout_ms = WEFT_FOREVER};
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(to % 2), "plain", WEFT_NO_VALUES, &how, NULL), WEFT_ERR_BUSY);
        MUST(strstr(weft_error_message(error), "no thread") && strstr(weft_error_message(error), "ulimit -u"));
        weft_error_unref(error);
    }
    atomic_store(&has_none, false);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(0), "plain", WEFT_NO_VALUES, NULL, NULL));
}

WORLD_TEST(no_thread_left, 0, 1, .size = 2, WORLD_FUNCTIONS(functions))

UNIT_MAIN(test_no_thread_left)
