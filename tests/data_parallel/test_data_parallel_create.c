/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_data_parallel_create.c - weft_data_parallel_create: how long it waits, options that are none, or differ
 * between members, and what fails on one member alone: then the others do not wait for it.
 */
#include "data_parallel/data_parallel.h"
#include "data_parallel/member.h"
#include "data_parallel/refusal.h"
#include "mem/mem.h"
#include "tensor/tensor.h"
#include "make.h"

enum { WIDTH = 3, SHORT_MS = 300 };

static void adjust(weft_agent_options *options, void *arg)
{
    options->call_timeout_ms = 3600 * 1000; /* whatever waits for that long fails */
}

/* It is refused with that status and these words; unrefs the module. */
static void must_refuse(weft_group *group, weft_module *module, const weft_data_parallel_options *options,
                        weft_status status, const char *words)
{
    weft_data_parallel *none = NULL;
    weft_error *error = NULL;
    MUST_BE(weft_data_parallel_create(group, module, options, &none, &error), status);
    must_say(error, words);
    MUST(!none);
    weft_error_unref(error);
    weft_module_unref(module);
}

/* One member does not come: the others wait as long as their options say, not as long as a call. */
static void time_limit(weft_agent *agent, void *arg)
{
    weft_group *group = make_group(agent), *meet;
    MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &meet, NULL));
    if (weft_agent_rank(agent) != 1)
        must_refuse(group, linear_create(WIDTH, WIDTH, true, 1, NULL),
                    &(weft_data_parallel_options){.timeout_ms = SHORT_MS}, WEFT_ERR_TIMEOUT, "rank 1");
    MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
    weft_group_close(meet);
    weft_group_close(group);
}

/* What no operation of a group takes is refused here already, and nobody has taken part. */
static void no_time_limit(weft_agent *agent, void *arg)
{
    weft_group *group = make_group(agent);
    must_refuse(group, linear_create(WIDTH, WIDTH, true, 1, NULL), &(weft_data_parallel_options){.timeout_ms = -4},
                WEFT_ERR_INVALID, "timeout_ms is -4: 0, more, or WEFT_FOREVER");
    MUST(!weft_group_error(group));
    weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
    weft_data_parallel *parallel = NULL;
    MUST_OK(weft_data_parallel_create(group, module, &(weft_data_parallel_options){.timeout_ms = WEFT_FOREVER},
                                      &parallel, NULL));
    weft_data_parallel_unref(parallel);
    weft_module_unref(module);
    weft_group_close(group);
}

static weft_status own_reduce(weft_group *group, weft_tensor *bucket, size_t index, int64_t timeout_ms,
                              weft_future **out, void *arg)
{
    return weft_group_allreduce_async(group, bucket, WEFT_OP_AVG, timeout_ms, out);
}

typedef struct difference {
    weft_data_parallel_options of_odd, of_others;
    const char *words;
} difference;

static int anything;
static const difference differences[] = {
    {{.find_unused = true}, {0}, "member 2 has find_unused true where member 0 has find_unused false"},
    {{0}, {.uneven = true}, "member 2 has uneven false where member 0 has uneven true"},
    {{.uneven = true}, {.uneven = true, .divide_by_all = true}, "member 2 has divide_by_all false where"},
    {{.bucket_bytes = 64}, {0}, "member 2 has bucket_bytes 64 where member 0 has bucket_bytes 26214400"},
    {{.first_bucket_bytes = 1 << 20}, {.first_bucket_bytes = 9}, "has first_bucket_bytes 1048576 where"},
    {{.reduce = weft_bucket_bfloat16}, {0}, "member 2 has reduce weft_bucket_bfloat16 where member 0 has reduce NULL"},
    {{.reduce = weft_bucket_bfloat16}, {.reduce = own_reduce}, "where member 0 has reduce a function of the program's"},
    {{.bucket_bytes = 25 << 20, .timeout_ms = 5000}, {0}, NULL},
    {{.reduce = own_reduce, .reduce_arg = &anything}, {.reduce = own_reduce, .timeout_ms = 7000}, NULL},
};

/* All members hear of it, and the group lives: they may try again. */
static void options_differ(weft_agent *agent, void *arg)
{
    weft_group *group = make_group(agent);
    for (size_t i = 0; i < sizeof(differences) / sizeof(*differences); i++) {
        const difference *d = &differences[i];
        const weft_data_parallel_options *options = weft_agent_rank(agent) == 2 ? &d->of_odd : &d->of_others;
        weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
        if (d->words) {
            must_refuse(group, module, options, WEFT_ERR_INVALID, d->words);
            continue;
        }
        weft_data_parallel *parallel = NULL;
        MUST_OK(weft_data_parallel_create(group, module, options, &parallel, NULL));
        weft_data_parallel_unref(parallel);
        weft_module_unref(module);
    }
    MUST(!weft_group_error(group));
    weft_group_close(group);
}

/* ---- One member alone -------------------------------------------------------------------------------------------- */

enum { LAYERS = 5, NAMED = 320 /* bytes for the text of a tensor: verify.c */ };

static weft_module *layers(bool is_odd)
{
    weft_module *made[LAYERS];
    for (uint64_t i = 0; i < LAYERS; i++)
        made[i] = linear_create(WIDTH, WIDTH, is_odd && i == 0, i, NULL);
    return sequential_create(made, LAYERS, NULL);
}

typedef struct refusal {
    size_t count, size;
} refusal;

/* The object itself, the names where modules differ, the operations in which all get the same values. */
static const refusal one_by_one[] = {
    {1, sizeof(weft_data_parallel)}, {2 * LAYERS, NAMED}, {2 * LAYERS, sizeof(void *)}};

/* One member has no memory for a moment. The group of all is over, by its name; nobody waits for as long as calls
 * may take. */
static void no_memory(weft_agent *agent, void *arg)
{
    for (size_t i = 0; i < sizeof(one_by_one) / sizeof(*one_by_one); i++) {
        weft_group *group = make_group(agent), *meet;
        weft_module *module = layers(one_by_one[i].size == NAMED && weft_agent_rank(agent) == 1);
        weft_data_parallel *parallel = NULL;
        MUST_OK(weft_group_open(agent, "meet", NULL, 0, 0, &meet, NULL));
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        if (weft_agent_rank(agent) == 0)
            refuse_next(one_by_one[i].count, one_by_one[i].size);
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_status status = weft_data_parallel_create(group, module, NULL, &parallel, NULL);
        MUST(!status || status == WEFT_ERR_MEMORY); /* it may have had all of it before another failed */
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        MUST(was_refused());
        weft_data_parallel_unref(parallel);
        parallel = NULL;
        MUST_BE(weft_data_parallel_create(group, module, NULL, &parallel, NULL), WEFT_ERR_MEMORY);
        must_say(weft_group_error(group), "ended it");
        MUST_OK(weft_group_barrier(meet, WEFT_FOREVER));
        weft_group_close(meet);
        weft_group_close(group);
        weft_module_unref(module);
    }
}

/* A buffer on a device: as a parameter there it ends the group, which would wait for it. */
static void buffer_elsewhere(weft_agent *agent, void *arg)
{
    static char far_away[16]; /* stands for device memory */
    weft_group *group = make_group(agent);
    weft_module *module = linear_create(WIDTH, WIDTH, true, 1, NULL);
    bool is_odd = weft_agent_rank(agent) == 1;
    wfi_storage *storage;
    weft_tensor *buffer;
    MUST_OK(wfi_storage_wrap(is_odd ? WFI_MEMORY_CUDA : WFI_MEMORY_HOST, 0, far_away, sizeof(far_away), NULL, NULL,
                             &storage));
    MUST_OK(wfi_tensor_over(storage, 0, WEFT_SHAPE(4), WEFT_DTYPE_FLOAT32, &buffer));
    weft_module_add_buffer(module, "count", buffer);
    wfi_storage_unref(storage);
    MUST_OK(weft_module_status(module));
    must_refuse(group, module, NULL, WEFT_ERR_INVALID, "buffer count is on a device");
    MUST(weft_error_worker(weft_group_error(group)) == 1);
    weft_group_close(group);
}

#define SCENE .size = 3, .adjust = adjust
WORLD_TEST(time_limit, 2, 1, SCENE)
WORLD_TEST(no_time_limit, 2, 1, SCENE)
WORLD_TEST(options_differ, 2, 1, SCENE)
WORLD_TEST(no_memory, 4, 1, SCENE)
WORLD_TEST(buffer_elsewhere, 2, 1, SCENE)
UNIT_MAIN(test_time_limit, test_no_time_limit, test_options_differ, test_no_memory, test_buffer_elsewhere)
