/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_devices.c - device maps: how they are read, where tensors go and come back to, and what is refused;
 * weft_agent_transport. The workers have the two devices of the emulated GPU.
 */
#include "rpc/inside.h"
#include "rpc/world.h"

#include <sys/wait.h>
#include <unistd.h>

#define CPU                                                                                                            \
    {                                                                                                                  \
        WEFT_DEVICE_CPU, 0                                                                                             \
    }
#define GPU(n)                                                                                                         \
    {                                                                                                                  \
        WEFT_DEVICE_CUDA, (n)                                                                                          \
    }

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static weft_status read_maps(const char *variable, const weft_device_map *given, size_t given_count, size_t *count,
                             inside_device_map *last, weft_error **error)
{
    const weft_agent_options options = {.device_maps = given, .device_map_count = given_count};
    if (variable)
        setenv("WEFT_DEVICE_MAPS", variable, 1);
    weft_status status = inside_read_devices(&options, count, last, error);
    unsetenv("WEFT_DEVICE_MAPS");
    return status;
}

static void test_good_variables(void **state)
{
    static const struct {
        const char *text;
        size_t count;
        inside_device_map last;
    } good[] = {
        {"", 0, {"", 0, 0}},
        {"*/cuda:0=cuda:1", 1, {"", 1, 2}},
        {"*/cuda:0=cuda:1;server/cuda:0=cpu", 2, {"server", 1, 0}},
        {"a:b/cpu=cuda:63", 1, {"a:b", 0, 64}},
        {"*/cuda=cpu;*/cpu=cuda", 2, {"", 0, 1}},
        {"*/cpu=cpu", 1, {"", 0, 0}},
        {"a/cuda:1=cuda:0;b/cuda:1=cuda:0;*/cuda:1=cuda:0", 3, {"", 2, 1}},
    };
    for (size_t i = 0; i < sizeof(good) / sizeof(*good); i++) {
        inside_device_map last = {0};
        size_t count;
        assert_int_equal(read_maps(good[i].text, NULL, 0, &count, &last, NULL), WEFT_OK);
        assert_int_equal(count, good[i].count);
        assert_string_equal(last.worker, good[i].last.worker);
        assert_int_equal(last.here, good[i].last.here);
        assert_int_equal(last.there, good[i].last.there);
    }
}

static void must_refuse(const char *variable, const weft_device_map *given, size_t given_count, const char *text)
{
    inside_device_map last;
    size_t count;
    weft_error *error = NULL;
    assert_int_equal(read_maps(variable, given, given_count, &count, &last, &error), WEFT_ERR_INVALID);
    if (!strstr(weft_error_message(error), text) || (variable && !strstr(weft_error_message(error), variable)))
        fail_msg("\"%s\" has no \"%s\" or not the value", weft_error_message(error), text);
    weft_error_unref(error);
}

static void test_bad_variables(void **state)
{
    static const char *const bad[][2] = {
        {"cuda:0=cuda:1", "\"cuda:0=cuda:1\": an entry is WORKER/DEVICE=DEVICE"},
        {"*/cuda:0", "\"*/cuda:0\": an entry is"},
        {"*/cuda:0=cuda:1;", "\"\": an entry is"},
        {";", "\"\": an entry is"},
        {"*/cuda:0=cuda:1,*/cuda:1=cuda:0", "a device is cpu, or cuda:0 to cuda:63"},
        {"*/cuda:0=cuda:1;server/gpu:0=cpu", "\"server/gpu:0=cpu\": a device is"},
        {"*/cuda:0=cuda:-1", "a device is"},
        {"*/cuda:-1=cuda:0", "a device is"},
        {"*/cuda:0=cuda:64", "a device is"},
        {"*/cuda:0=cuda:99999999999999999999", "a device is"},
        {"*/cuda:0=auto", "a device is"},
        {"*/cuda:0= cpu", "a device is"},
        {"*/=", "a device is"},
        {"/cuda:0=cpu", "the worker is neither * nor a name"},
        {"a b/cuda:0=cpu", "the worker is neither"},
        {"*/cuda:0=cpu;*/cuda=cuda:1", "\"*/cuda=cuda:1\": an earlier entry has the same worker"},
        {"a/cpu=cpu;b/cpu=cpu;a/cpu=cuda:0", "\"a/cpu=cuda:0\": an earlier entry"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        must_refuse(bad[i][0], NULL, 0, bad[i][1]);
}

static void test_options(void **state)
{
    static const weft_device_map good[] = {{NULL, GPU(0), CPU, {0}}, {"server", CPU, GPU(1), {0}}};
    static const weft_device_map twice[] = {{NULL, CPU, CPU, {0}}, {"*", CPU, GPU(0), {0}}};
    static const weft_device_map bad[] = {{"s", GPU(64), CPU, {0}},
                                          {"s", CPU, GPU(-1), {0}},
                                          {"s", {(weft_device_kind)2, 0}, CPU, {0}},
                                          {"s", {WEFT_DEVICE_CPU, 1}, CPU, {0}}};
    inside_device_map last;
    size_t count;
    assert_int_equal(read_maps("not read", good, 2, &count, &last, NULL), WEFT_OK);
    assert_true(count == 2 && strcmp(last.worker, "server") == 0 && last.here == 0 && last.there == 2);
    must_refuse(NULL, NULL, 3, "device_maps is NULL with a device_map_count of 3");
    must_refuse(NULL, twice, 2, "device_maps[1] is {\"*\", {0, 0}, {1, 0}} (worker, kinds and numbers): an earlier");
    must_refuse(NULL, &(weft_device_map){"", GPU(0), CPU, {0}}, 1, "the worker is neither");
    must_refuse(NULL, &(weft_device_map){"s", GPU(0), CPU, {0, 1}}, 1, "of a newer weft");
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++)
        must_refuse(NULL, &bad[i], 1, "a device is cpu, or cuda:0 to cuda:63");
}

static void test_transports(void **state)
{
    static const char *const bad[][2] = {{"ipc", "is \"ipc\", which this version does not have yet"},
                                         {"gpudirect", "is \"gpudirect\", which this version does not have yet"},
                                         {"fast", "WEFT_GPU_TRANSPORT"}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        setenv("WEFT_GPU_TRANSPORT", bad[i][0], 1);
        must_refuse(NULL, NULL, 0, bad[i][1]);
    }
    unsetenv("WEFT_GPU_TRANSPORT");
}

/* A bad value ends the opening. */
static void test_opening(void **state)
{
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    const weft_device_map map = {"server", GPU(0), GPU(70), {0}};
    weft_agent_options options = {.has_rank = true, .world_size = 1, .device_maps = &map, .device_map_count = 1};
    assert_int_equal(weft_agent_open(&options, &agent, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "device_maps[0]"));
    weft_error_unref(error);
}

/* ---- Looking up -------------------------------------------------------------------------------------------------- */

/* Where the device `from` of rank 0 goes at rank 1 (BACK: the reverse): to this device, or the problem has this text.
 * Codes: 0 is the CPU, 1 is cuda:0. */
enum { GOES = 0, BACK = 1 };
typedef struct lookup {
    bool back;
    uint8_t from, to;
    const char *problem;
} lookup;

#define ONLY_TWO ", which has only cuda:0 to cuda:1: "
#define TWO_TO_ONE                                                                                                     \
    "cuda:0 and cuda:1 of \"worker0\" both go to cuda:1 of \"worker1\": change the device map \"*/cuda:0=cuda:1\" or " \
    "\"worker1/cuda:1=cuda:1\""

static const struct plan {
    const char *maps;
    bool maps_cpu;
    size_t count;
    lookup lookups[8];
} plans[] = {
    {"",
     false,
     7,
     {{GOES, 0, 0, NULL},
      {GOES, 1, 1, NULL},
      {GOES, 2, 2, NULL},
      {BACK, 0, 0, NULL},
      {BACK, 2, 2, NULL},
      {GOES, 3, 0, "cuda:2 of \"worker0\" goes to cuda:2 of \"worker1\"" ONLY_TWO "no device map says otherwise"},
      {BACK, 3, 0, "cuda:2 of \"worker1\" comes to cuda:2 of \"worker0\"" ONLY_TWO "no device map says otherwise"}}},
    /* The entry that names the worker wins, wherever it stands; those of other workers do not count. */
    {"worker1/cuda:0=cpu;*/cuda:0=cuda:1;*/cuda:1=cpu;worker1/cuda:1=cuda:1;worker2/cuda:1=cpu",
     false,
     6,
     {{GOES, 0, 0, NULL},
      {GOES, 1, 0, NULL},
      {GOES, 2, 2, NULL},
      {BACK, 0, 1, NULL},
      {BACK, 1, 1, NULL},
      {BACK, 2, 2, NULL}}},
    {"*/cpu=cuda:2;*/cuda:0=cuda:1;*/cuda:1=cuda:0",
     true,
     6,
     {{GOES, 1, 2, NULL},
      {GOES, 2, 1, NULL},
      {BACK, 1, 2, NULL},
      {BACK, 2, 1, NULL},
      {GOES, 0, 0,
       "the CPU of \"worker0\" goes to cuda:2 of \"worker1\"" ONLY_TWO "change the device map \"*/cpu=cuda:2\""},
      {BACK, 3, 0, NULL}}},
    /* An entry for a device that this worker lacks does not count. */
    {"*/cuda:5=cpu;worker1/cpu=cuda:0", true, 3, {{GOES, 0, 1, NULL}, {BACK, 1, 0, NULL}, {BACK, 0, 0, NULL}}},
    {"*/cuda:0=cuda:1;worker1/cuda:1=cuda:1",
     false,
     5,
     {{GOES, 0, 0, NULL},
      {BACK, 1, 1, NULL},
      {GOES, 1, 0, TWO_TO_ONE},
      {GOES, 2, 0, "cuda:1 and cuda:0 of \"worker0\" both go to cuda:1"},
      {BACK, 2, 0, TWO_TO_ONE}}},
};

static void look_up(weft_agent *agent, void *arg)
{
    const struct plan *plan = arg;
    char problem[INSIDE_DEVICE_PROBLEM];
    uint8_t to;
    if (weft_agent_rank(agent))
        return;
    for (size_t i = 0; i < plan->count; i++) {
        const lookup *one = &plan->lookups[i];
        problem[0] = '\0';
        weft_status status = inside_device(agent, 1, one->back, one->from, &to, problem);
        if (status != (one->problem ? WEFT_ERR_INVALID : WEFT_OK) || (one->problem && !strstr(problem, one->problem)) ||
            (!one->problem && to != one->to))
            fail_msg("\"%s\", lookup %zu: %s, %d, \"%s\"", plan->maps, i, weft_status_name(status), to, problem);
        MUST_OK(inside_device(agent, 0, one->back, one->from, &to, problem));
        MUST(to == one->from); /* a call to itself */
    }
    MUST(inside_maps_cpu(agent) == plan->maps_cpu);
}

static void test_look_up(void **state)
{
    for (size_t i = 0; i < sizeof(plans) / sizeof(*plans); i++) {
        setenv("WEFT_DEVICE_MAPS", plans[i].maps, 1);
        world_play(&(world){.program = look_up, .arg = (void *)&plans[i], .size = 3}, 1, 1);
    }
    unsetenv("WEFT_DEVICE_MAPS");
}

/* The longest problem is not cut. */
static char long_name[2][128];

static void adjust_names(weft_agent_options *options, void *arg)
{
    static weft_device_map maps[] = {{long_name[1], GPU(1), GPU(10), {0}}, {long_name[1], GPU(0), GPU(10), {0}}};
    options->name = long_name[options->rank];
    options->device_maps = maps;
    options->device_map_count = 2;
}

static void look_up_names(weft_agent *agent, void *arg)
{
    char problem[INSIDE_DEVICE_PROBLEM];
    uint8_t code;
    if (weft_agent_rank(agent))
        return;
    MUST_BE(inside_device(agent, 1, false, 1, &code, problem), WEFT_ERR_INVALID);
    MUST(strcmp(problem + strlen(problem) - 2, "S)") == 0);
}

static void test_longest_names(void **state)
{
    for (int i = 0; i < 2; i++)
        memset(long_name[i], 'a' + i, sizeof(long_name[i]) - 1);
    world_play(&(world){.program = look_up_names, .adjust = adjust_names, .size = 2}, 1, 1);
}

/* ---- How a tensor travels ---------------------------------------------------------------------------------------- */

static void must_travel(weft_agent *agent, int rank, weft_device from, weft_device to, const char *wanted)
{
    char text[200] = "unchanged";
    weft_status status = weft_agent_transport(agent, rank, from, to, text, sizeof(text));
    MUST(status == (wanted ? WEFT_OK : WEFT_ERR_INVALID));
    MUST(strcmp(text, wanted ? wanted : "unchanged") == 0);
}

static void ask_for_transport(weft_agent *agent, void *arg)
{
    const weft_device cpu = CPU, gpu = GPU(0), other = GPU(1), third = GPU(2);
    const char *staged = arg;
    int self = weft_agent_rank(agent), peer = 1 - self;
    must_travel(agent, peer, cpu, cpu, "host memory");
    must_travel(agent, peer, cpu, gpu, staged);
    must_travel(agent, peer, other, cpu, staged);
    must_travel(agent, peer, gpu, other, staged);
    must_travel(agent, self, gpu, gpu, "passed on within this process");
    must_travel(agent, self, gpu, other, "copied within this process");
    must_travel(agent, peer, third, cpu, NULL);
    must_travel(agent, peer, cpu, third, NULL);
    must_travel(agent, peer, cpu, (weft_device){WEFT_DEVICE_CPU, 1}, NULL);
    must_travel(agent, peer, (weft_device){(weft_device_kind)2, 0}, cpu, NULL);
    must_travel(agent, 2, cpu, cpu, NULL);
    must_travel(agent, -1, cpu, cpu, NULL);
    must_travel(NULL, peer, cpu, cpu, NULL);
    MUST_BE(weft_agent_transport(agent, peer, cpu, cpu, NULL, 8), WEFT_ERR_INVALID);
}

static void test_transport(void **state)
{
    world like = {.program = ask_for_transport,
                  .arg = "staged through page-locked memory (this version has no ipc and no gpudirect)",
                  .size = 2};
    world_play(&like, 1, 1);
    setenv("WEFT_GPU_TRANSPORT", "staged", 1);
    like.arg = "staged through page-locked memory (WEFT_GPU_TRANSPORT is staged)";
    world_play(&like, 1, 0);
    setenv("WEFT_GPU_TRANSPORT", "auto", 1);
    like.arg = "staged through page-locked memory (this version has no ipc and no gpudirect)";
    world_play(&like, 1, 0);
    unsetenv("WEFT_GPU_TRANSPORT");
}

/* ---- A child of fork --------------------------------------------------------------------------------------------- */

/* A driver does not work in a child, so the child's own agent must not claim its devices. */
static void test_child(void **state)
{
    int status;
    assert_int_equal(weft_device_check((weft_device)GPU(1), NULL), WEFT_OK);
    pid_t child = fork();
    if (child == 0) {
        weft_error *error = NULL;
        weft_status checked = weft_device_check((weft_device)GPU(1), &error);
        _exit(checked == WEFT_ERR_UNSUPPORTED && strstr(weft_error_message(error), "forked") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

UNIT_MAIN(test_good_variables, test_bad_variables, test_options, test_transports, test_opening, test_child,
          test_look_up, test_longest_names, test_transport)
