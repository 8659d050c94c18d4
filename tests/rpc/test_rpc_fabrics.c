/* SPDX-License-Identifier: Apache-2.0 */
/* test_rpc_fabrics.c - lists of fabrics (WEFT_FABRIC): wrong ones, workers without a common fabric,
 * weft_agent_fabric, results that land while a fabric fails. */
#include "rpc/world.h"
#include "make.h"
#include "tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const weft_function functions[] = {{.name = "nothing", .run = world_run_nothing}};
static const weft_function echo[] = {
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo}};

/* ---- Wrong lists ---------------------------------------------------------------------------------------------- */

static void refuse(const char *list, weft_sim *sim, const char *wanted)
{
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_agent_options options = {.has_rank = true,
                                  .rank = 0,
                                  .world_size = 1,
                                  .master_addr = "127.0.0.1",
                                  .master_port = sim ? 0 : WEFT_ANY_PORT,
                                  .fabric = list,
                                  .sim = sim};
    MUST_BE(weft_agent_open(&options, &agent, &error), WEFT_ERR_INVALID);
    if (!strstr(weft_error_message(error), wanted))
        fprintf(stderr, "\"%s\" is not in: %s\n", wanted, weft_error_message(error));
    MUST(strstr(weft_error_message(error), wanted));
    weft_error_unref(error);
}

static void wrong_in_a_world(weft_sim *sim, int rank, void *arg)
{
    refuse("sim,tcp", sim, "is \"sim,tcp\": simulated fabrics");
    refuse("sim,", sim, "\"sim,\"");
    refuse("sim,,sim-reads", sim, "\"sim,,sim-reads\": a name is empty");
    refuse("sim-reads,sim-reads", sim, "\"sim-reads,sim-reads\": it names sim-reads twice");
    refuse("auto", sim, "is \"auto\": simulated");
    refuse("tcp", sim, "is \"tcp\": simulated");
    refuse("simx", sim, "is \"simx\": this build has no \"simx\"");
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    MUST_BE(weft_agent_open(&(weft_agent_options){.sim = sim, .has_rank = true, .world_size = 1, .no_threads = true},
                            &agent, &error),
            WEFT_ERR_INVALID);
    MUST(strstr(weft_error_message(error), "no_threads: "));
    weft_error_unref(error);
}

static void test_wrong_lists(void **state)
{
    refuse("", NULL, "\"\": it names none");
    refuse(",", NULL, "\",\": a name is empty");
    refuse("tcp,tcp", NULL, "\"tcp,tcp\": it names tcp twice");
    refuse("tcp,nothing", NULL, "\"tcp,nothing\": this build has no \"nothing\"");
    refuse("auto,tcp", NULL, "\"auto,tcp\": \"auto\" stands alone");
    refuse("sim", NULL, "is \"sim\": simulated");
    refuse("tcp,sim", NULL, "is \"tcp,sim\": simulated");
    weft_sim *sim = sim_open(&(weft_sim_options){.seed = 1});
    assert_non_null(sim);
    assert_int_equal(weft_sim_spawn(sim, 0, wrong_in_a_world, NULL), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, 60000), WEFT_OK);
    weft_sim_close(sim);
}

/* ---- A fabric that does not open --------------------------------------------------------------------------------- */

typedef struct lines { /* of the log */
    int louder, unopened;
    weft_log_level level; /* of the last line about a fabric that does not open */
    char last[1024];
} lines;

static void keep_line(weft_log_level level, const char *line, void *arg)
{
    lines *kept = arg;
    kept->louder += level <= WEFT_LOG_WARN && !strstr(line, "fabric verbs does not open: ");
    if (!strstr(line, "fabric verbs does not open: "))
        return;
    kept->unopened++;
    kept->level = level;
    snprintf(kept->last, sizeof(kept->last), "%s", line);
}

/* On the loopback interface, which belongs to no RDMA device: the agent opens, and says once why verbs does not. */
static void open_without_verbs(const char *fabric, weft_log_level wanted)
{
    weft_agent *agent = NULL;
    lines kept = {0};
    weft_log_level before = weft_logging_get_level();
    weft_agent_options options = {.has_rank = true,
                                  .rank = 0,
                                  .world_size = 1,
                                  .master_addr = "127.0.0.1",
                                  .master_port = WEFT_ANY_PORT,
                                  .fabric = fabric,
                                  .iface = "lo"};
    weft_logging_set_sink(keep_line, &kept);
    weft_logging_set_level(WEFT_LOG_INFO);
    MUST_OK(weft_agent_open(&options, &agent, NULL));
    MUST_OK(weft_agent_close(agent, WEFT_FOREVER));
    weft_logging_set_level(before);
    weft_logging_set_sink(NULL, NULL);
    assert_int_equal(kept.louder, 0);
    assert_int_equal(kept.unopened, 1);
    assert_int_equal(kept.level, wanted);
    if (!strstr(kept.last, "no RDMA device") && !strstr(kept.last, "/dev/infiniband") &&
        !strstr(kept.last, "WEFT_IFACE"))
        fail_msg("no reason in: %s", kept.last);
}

static void test_auto_without_verbs(void **state)
{
    char *asked = getenv("WEFT_FABRIC") ? strdup(getenv("WEFT_FABRIC")) : NULL;
    unsetenv("WEFT_FABRIC");
    open_without_verbs(NULL, WEFT_LOG_INFO);
    open_without_verbs("auto", WEFT_LOG_INFO);
    open_without_verbs("verbs,tcp", WEFT_LOG_WARN);
    if (asked)
        setenv("WEFT_FABRIC", asked, 1);
    free(asked);
}

/* ---- weft_agent_fabric ---------------------------------------------------------------------------------------- */

static void different_lists(weft_agent_options *options, void *arg)
{
    options->fabric = options->rank ? "sim" : "sim-verbs,sim";
}

static void ask_for_fabric(weft_agent *agent, void *arg)
{
    char text[256] = "unchanged";
    int rank = weft_agent_rank(agent);
    MUST_BE(weft_agent_fabric(NULL, 1, WEFT_LANE_BULK, text, sizeof(text)), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_fabric(agent, 1 - rank, WEFT_LANE_BULK, NULL, 8), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_fabric(agent, rank, WEFT_LANE_BULK, text, sizeof(text)), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_fabric(agent, -1, WEFT_LANE_BULK, text, sizeof(text)), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_fabric(agent, 2, WEFT_LANE_BULK, text, sizeof(text)), WEFT_ERR_INVALID);
    MUST_BE(weft_agent_fabric(agent, 1 - rank, (weft_lane)2, text, sizeof(text)), WEFT_ERR_INVALID);
    MUST(strcmp(text, "unchanged") == 0);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1 - rank), "nothing", WEFT_NO_VALUES, NULL, NULL));
    for (int lane = WEFT_LANE_CONTROL; lane <= WEFT_LANE_BULK; lane++) {
        MUST_OK(weft_agent_fabric(agent, 1 - rank, (weft_lane)lane, text, sizeof(text)));
        MUST(strcmp(text, rank ? "sim" : "sim (sim-verbs: no address of worker 1)") == 0);
    }
    MUST_OK(weft_agent_fabric(agent, 1 - rank, WEFT_LANE_BULK, text, 3)); /* cut */
    MUST(strcmp(text, "si") == 0);
}

WORLD_TEST(ask_for_fabric, 5, 0, .size = 2, .adjust = different_lists, WORLD_FUNCTIONS(functions))

/* The fabric of the bulk lane is known before the lane is opened, for a fabric without reads too (libfabric's shm
 * before 1.18). The text with all reasons fits 256 bytes if only verbs does not open. */
static void ask_before_and_after(weft_agent *agent, void *arg)
{
    char before[600], after[600];
    int other = 1 - weft_agent_rank(agent);
    MUST_OK(weft_agent_fabric(agent, other, WEFT_LANE_BULK, before, sizeof(before)));
    weft_tensor *large = tensor_zeros(WEFT_SHAPE(1 << 20), WEFT_DTYPE_FLOAT32);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(other), "echo", WEFT_VALUES(weft_of_tensor(large)), NULL, NULL));
    MUST_OK(weft_agent_fabric(agent, other, WEFT_LANE_BULK, after, sizeof(after)));
    weft_tensor_unref(large);
    MUST(strlen(before) < 256 && strlen(after) < 256);
    if (strncmp(before, "host", 4) != 0) /* whether host reads is known only when it is connected */
        assert_string_equal(before, after);
}

static void use_shm(weft_agent_options *options, void *arg)
{
    options->fabric = "shm,tcp";
}

static void use_auto(weft_agent_options *options, void *arg)
{
    options->fabric = "auto";
}

static void test_bulk_fabric_is_known_before(void **state)
{
    world w = {.fabric = WORLD_TCP, .program = ask_before_and_after, .size = 2, WORLD_FUNCTIONS(echo)};
    w.adjust = use_shm;
    world_run(&w);
    w.adjust = use_auto;
    world_run(&w);
}

/* A list of one fabric that does not open: the error says which list, why, and what to do. */
static void test_only_fabric_does_not_open(void **state)
{
    weft_agent *agent = NULL;
    weft_error *error = NULL;
    weft_agent_options options = {.has_rank = true,
                                  .world_size = 1,
                                  .master_addr = "127.0.0.1",
                                  .master_port = WEFT_ANY_PORT,
                                  .fabric = "verbs",
                                  .iface = "lo"};
    MUST(weft_agent_open(&options, &agent, &error) != WEFT_OK);
    const char *text = weft_error_message(error);
    if (!strstr(text, "fabric (WEFT_FABRIC) is \"verbs\": it does not open: libfabric ") ||
        !strstr(text, "; \"auto\" takes one that opens"))
        fail_msg("%s", text);
    weft_error_unref(error);
}

/* ---- No common fabric ----------------------------------------------------------------------------------------- */

static void nothing_in_common(weft_agent_options *options, void *arg)
{
    options->fabric = options->rank ? "sim" : "sim-verbs";
    options->death_timeout_ms = -1; /* no time has to pass */
}

static void call_in_vain(weft_agent *agent, void *arg)
{
    weft_future *future = NULL;
    char text[256];
    int other = 1 - weft_agent_rank(agent);
    MUST_OK(weft_agent_fabric(agent, other, WEFT_LANE_CONTROL, text, sizeof(text)));
    MUST(strncmp(text, "none (", 6) == 0);
    weft_tensor *large = tensor_zeros(WEFT_SHAPE(1 << 20), WEFT_DTYPE_FLOAT32);
    for (int turn = 0; turn < 2; turn++) {
        weft_error *error = NULL;
        MUST_OK(weft_rpc_async(agent, weft_to_rank(other), "nothing", WEFT_NO_VALUES, NULL, &future));
        MUST_BE(weft_future_wait(future, 30000), WEFT_ERR_UNREACHABLE);
        MUST(strstr(weft_error_message(weft_future_error(future)), "no fabric in common (WEFT_FABRIC)"));
        weft_future_unref(future);
        MUST_BE(weft_rpc_async(agent, weft_to_rank(other), "nothing", WEFT_VALUES(weft_of_tensor(large)),
                               &(weft_rpc_options){.error = &error}, &future),
                WEFT_ERR_UNREACHABLE);
        MUST(strstr(weft_error_message(error), "no fabric in common (WEFT_FABRIC)"));
        weft_error_unref(error);
    }
    weft_tensor_unref(large);
}

WORLD_TEST(call_in_vain, 5, 0, .size = 2, .adjust = nothing_in_common, .stop = true, WORLD_FUNCTIONS(functions))

/* ---- Results, when a fabric fails -------------------------------------------------------------------------------- */

enum { FLOATS = 1 << 20 };

static uint64_t failed_ns; /* when the first fabric failed; 0: it works */
static int in_the_middle;  /* calls in which it failed */

static void read_only_second(weft_agent_options *options, void *arg)
{
    options->fabric = "sim,sim-reads";
}

static void fail_first(weft_sim *sim, int rank, void *arg)
{
    const world *w = arg;
    weft_sim_sleep(sim, w->seed * 50000);
    failed_ns = weft_sim_now(sim);
    MUST_OK(weft_sim_fabric_fail(sim, 1, "sim"));
}

/* The second fabric has no remote writes, so the result cannot be pushed into the caller's landing place there. */
static void land_on_second(weft_agent *agent, void *arg)
{
    const world *w = arg;
    char text[256];
    if (weft_agent_rank(agent) == 1)
        return;
    weft_tensor *x = tensor_arange(FLOATS, WEFT_DTYPE_FLOAT32),
                *place = tensor_zeros(WEFT_SHAPE(FLOATS), WEFT_DTYPE_FLOAT32);
    MUST(x && place);
    MUST_OK(weft_sim_spawn(w->sim, 0, fail_first, arg));
    failed_ns = 0;
    for (bool worked = true; worked;) { /* the last one begins when the fabric has failed */
        weft_tensor_fill(place, -1);
        worked = !failed_ns;
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)),
                              &(weft_rpc_options){.land = {&place, 1}}, NULL));
        MUST(memcmp(weft_tensor_data(x), weft_tensor_data(place), FLOATS * sizeof(float)) == 0);
        in_the_middle += worked && failed_ns;
    }
    MUST_OK(weft_agent_fabric(agent, 1, WEFT_LANE_BULK, text, sizeof(text)));
    MUST(strncmp(text, "sim-reads", 9) == 0);
    weft_tensor_unref(x);
    weft_tensor_unref(place);
}

static void test_results_land_on_any_fabric(void **state)
{
    world_play(&(world){.program = land_on_second, .size = 2, .adjust = read_only_second, WORLD_FUNCTIONS(echo)}, 40,
               0);
    assert_true(in_the_middle >= (int)world_seeds(40));
}

UNIT_MAIN(test_wrong_lists, test_ask_for_fabric, test_call_in_vain, test_results_land_on_any_fabric,
          test_auto_without_verbs, test_bulk_fabric_is_known_before, test_only_fabric_does_not_open)
