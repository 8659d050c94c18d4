/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_data_parallel_create.c - weft_data_parallel_create: how long it waits, options that are none, or differ between members, and what fails
 * on one member alone: then the others do not wait for it.
 */
#include "mem/mem.h"
#include "rpc/world.h"
#include "tensor/tensor.h"

enum { WIDTH = 3, SHORT_MS = 300 };

static void adjust(weft_agent_options *options, void *arg)
{
    options->call_timeout_ms = 3600 * 1000; /* whatever waits for that long fails */
}

static weft_group *make_group(weft_agent *agent)
{
    weft_group *group;
    MUST_OK(weft_group_create(agent, "all", NULL, 0, &group));
    return group;
}

static void must_say(const weft_error *error, const char *words)
{
    if (!error || !strstr(weft_error_message(error), words))
        fprintf(stderr, "\"%s\", not \"%s\"\n", error ? weft_error_message(error) : "", words);
    MUST(error && strstr(weft_error_message(error), words));
}

/* It is refused with that status and these words; unrefs the module. */
static void must_refuse(weft_group *group, weft_module *module, const weft_data_parallel_options *options,
                        weft_status status, const char *words)
{
    weft_data_parallel *none = NULL;
    weft_error *error = NULL;
    MUST_BE(weft_data_parallel_create(group, module, options, &none, &error), status);
    must_say(error, words);
    MUST(none == NULL);
    weft_error_unref(error);
    weft_module_unref(module);
}

/* One member does not come: the others wait as long as their options say, not as long as a call. */
static void time_limit(weft_agent *agent, void *arg)
{
    weft_group *group = make_group(agent), *meet;
    MUST_OK(weft_group_create(agent, "meet", NULL, 0, &meet));
    if (weft_agent_rank(agent) != 1)
        must_refuse(group, weft_linear_create(WIDTH, WIDTH, true, 1),
                    &(weft_data_parallel_options){.timeout_ms = SHORT_MS}, WEFT_ERR_TIMEOUT, "rank 1");
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_destroy(meet);
    weft_group_destroy(group);
}

/* What no operation of a group takes is refused here already, and nobody has taken part. */
static void no_time_limit(weft_agent *agent, void *arg)
{
    weft_group *group = make_group(agent);
    must_refuse(group, weft_linear_create(WIDTH, WIDTH, true, 1), &(weft_data_parallel_options){.timeout_ms = -4},
                WEFT_ERR_INVALID, "timeout_ms is -4: 0, more, or WEFT_FOREVER");
    MUST(weft_group_error(group) == NULL);
    weft_module *module = weft_linear_create(WIDTH, WIDTH, true, 1);
    weft_data_parallel *parallel = NULL;
    MUST_OK(weft_data_parallel_create(group, module, &(weft_data_parallel_options){.timeout_ms = WEFT_FOREVER},
                                      &parallel, NULL));
    weft_data_parallel_unref(parallel);
    weft_module_unref(module);
    weft_group_destroy(group);
}

#define SCENE .size = 3, .adjust = adjust
WORLD_TEST(time_limit, 2, 1, SCENE)
WORLD_TEST(no_time_limit, 2, 1, SCENE)
UNIT_MAIN(test_time_limit, test_no_time_limit)
