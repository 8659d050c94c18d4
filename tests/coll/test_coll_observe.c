/* SPDX-License-Identifier: Apache-2.0 */
/* test_coll_observe.c - operations of groups in the metrics and in the trace: how many, their bytes, their time. */
#include "rpc/world.h"
#include "tensors.h"

#include <unistd.h>

enum { SIZE = 3, ELEMENTS = 10, TIMES = 4 };

static char *metrics_of(const weft_agent *agent)
{
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    MUST(to);
    MUST_OK(weft_metrics_write(agent, to));
    fclose(to);
    return text;
}

/* The value of the line that begins with `name`, and has all of `labels` in its braces. */
static double value_of(const char *text, const char *name, const char *labels)
{
    size_t length = strlen(name);
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        const char *end = strstr(line, "} "), *found = strstr(line, labels);
        if (strncmp(line, name, length) == 0 && line[length] == '{' && end && found && found < end)
            return atof(end + 2);
    }
    return -1;
}

static void must_count(const weft_agent *agent, const char *name, const char *labels, double wanted)
{
    char *text = metrics_of(agent);
    double value = value_of(text, name, labels);
    if (value != wanted)
        fprintf(stderr, "%s %s is %g, not %g\n%s", name, labels, value, wanted, text);
    MUST(value == wanted);
    free(text);
}

static void use_groups(weft_agent *agent, void *arg)
{
    weft_group *group;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32);
    (void)arg;
    char *text = metrics_of(agent);
    MUST(!strstr(text, "weft_group_operation")); /* nothing was called: no lines */
    free(text);
    MUST_OK(weft_group_open(agent, "grads", NULL, 0, 0, &group, NULL));
    for (int i = 0; i < TIMES; i++)
        MUST_OK(weft_group_allreduce(group, x, WEFT_OP_SUM, 20000));
    MUST_OK(weft_group_barrier(group, 20000));
    must_count(agent, "weft_group_operations_total", "group=\"grads\",operation=\"allreduce\",outcome=\"ok\"", TIMES);
    must_count(agent, "weft_group_operations_total", "operation=\"allreduce\",outcome=\"failed\"", 0);
    must_count(agent, "weft_group_operations_total", "operation=\"barrier\",outcome=\"ok\"", 1);
    must_count(agent, "weft_group_bytes_total", "operation=\"allreduce\"", TIMES * ELEMENTS * sizeof(float));
    must_count(agent, "weft_group_bytes_total", "operation=\"barrier\"", 0);
    must_count(agent, "weft_group_operation_seconds_count", "group=\"grads\",operation=\"allreduce\"", TIMES);
    if (weft_group_index(group) == 0) { /* the others do not call it */
        MUST(weft_group_barrier(group, 2000) != WEFT_OK);
        must_count(agent, "weft_group_operations_total", "operation=\"barrier\",outcome=\"failed\"", 1);
    }
    weft_group_close(group);
    /* The numbers stay. */
    must_count(agent, "weft_group_operations_total", "operation=\"allreduce\",outcome=\"ok\"", TIMES);
    weft_tensor_unref(x);
}

WORLD_TEST(use_groups, 10, 1, .size = SIZE)

/* More names than are kept apart. */
static void use_many_names(weft_agent *agent, void *arg)
{
    (void)arg;
    for (int i = 0; i < 300; i++) {
        char name[32];
        weft_group *group;
        snprintf(name, sizeof(name), "group%d", i);
        MUST_OK(weft_group_open(agent, name, NULL, 0, 0, &group, NULL));
        MUST_OK(weft_group_barrier(group, 20000));
        weft_group_close(group);
    }
    must_count(agent, "weft_group_operations_total", "group=\"group255\",operation=\"barrier\",outcome=\"ok\"", 1);
    must_count(agent, "weft_group_operations_total", "group=\"(other)\",operation=\"barrier\",outcome=\"ok\"", 44);
}

WORLD_TEST(use_many_names, 1, 0, .size = 1)

/* ---- The trace --------------------------------------------------------------------------------------------------- */

static char path[64];

static void trace(weft_agent_options *options, void *arg)
{
    (void)arg;
    options->trace_file = path;
}

static void call_twice(weft_agent *agent, void *arg)
{
    weft_group *group;
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(ELEMENTS), WEFT_DTYPE_FLOAT32);
    (void)arg;
    MUST_OK(weft_group_open(agent, "grads", NULL, 0, 0, &group, NULL));
    for (int i = 0; i < 2; i++)
        MUST_OK(weft_group_allreduce(group, x, WEFT_OP_SUM, 20000));
    weft_group_close(group);
    weft_tensor_unref(x);
}

static int spans_in(const char *file, const char *what)
{
    char line[4096];
    int count = 0;
    FILE *from = fopen(file, "r");
    MUST(from);
    while (fgets(line, sizeof(line), from))
        count += strstr(line, what) && strstr(line, "\"bytes\":40") && strstr(line, "\"status\":\"OK\"");
    fclose(from);
    return count;
}

static void test_trace(void **cmocka)
{
    (void)cmocka;
    for (int fabric = 0; fabric < WORLD_FABRICS; fabric++) {
        snprintf(path, sizeof(path), "coll_observe_%d_%%r.json", (int)getpid());
        world_run(
            &(world){.fabric = (world_fabric)fabric, .size = 2, .seed = 1, .program = call_twice, .adjust = trace});
        for (int rank = 0; rank < 2; rank++) {
            char file[64];
            snprintf(file, sizeof(file), "coll_observe_%d_%d.json", (int)getpid(), rank);
            int spans = spans_in(file, "\"cat\":\"group\",\"name\":\"allreduce: grads\"");
            unlink(file);
            assert_int_equal(spans, 2);
        }
    }
}

UNIT_MAIN(test_use_groups, test_use_many_names, test_trace)
