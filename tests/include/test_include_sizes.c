/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_include_sizes.c - programs that were compiled with the headers of another version (weft/base.h, SIZES). An older
 * program passes a shorter struct, and what follows it in memory is not weft's. A newer one passes a longer struct: if
 * its further fields are zero, this library does what is asked; otherwise it refuses.
 */
#include "base/text/sized.h"
#include "rpc/world.h"
#include "said.h"
#include "make.h"
#include "tensors.h"

#define NEWER "it was compiled with a newer weft"

/* A struct of a newer weft: it has one field more. */
#define NEWER_STRUCT(type)                                                                                             \
    struct {                                                                                                           \
        type known;                                                                                                    \
        void *more;                                                                                                    \
    }

/* ---- The copy ---------------------------------------------------------------------------------------------------- */

typedef struct pair {
    int64_t a, b;
} pair;

static void a_shorter_struct_is_a_prefix(void **state)
{
    pair given = {1, 2}, own;
    assert_ptr_equal(WFI_SIZED(&given, sizeof(given), &own), &given);
    assert_ptr_equal(WFI_SIZED(&given, offsetof(pair, b), &own), &own);
    assert_true(own.a == 1 && own.b == 0);
    assert_ptr_equal(WFI_SIZED((pair *)NULL, sizeof(pair), &own), &own);
    assert_true(own.a == 0 && own.b == 0);
}

static void a_longer_struct_is_read_if_the_rest_is_zero(void **state)
{
    int64_t given[] = {1, 2, 0};
    pair own;
    assert_ptr_equal(WFI_SIZED((pair *)given, sizeof(given), &own), &own);
    assert_true(own.a == 1 && own.b == 2);
    ((char *)given)[sizeof(given) - 1] = 1;
    assert_null(WFI_SIZED((pair *)given, sizeof(given), &own));
}

static void no_more_is_written_than_the_program_has(void **state)
{
    const pair own = {1, 2};
    int64_t out[] = {7, 7, 7, 7};
    wfi_sized_give(out, sizeof(int64_t), &own, sizeof(own));
    assert_true(out[0] == 1 && out[1] == 7);
    wfi_sized_give(out, 3 * sizeof(int64_t), &own, sizeof(own));
    assert_true(out[1] == 2 && out[2] == 0 && out[3] == 7);
}

/* ---- One agent, alone -------------------------------------------------------------------------------------------- */

static const weft_agent_options alone = {.has_rank = true, .world_size = 1, .no_threads = true};

static weft_agent *open_alone(void)
{
    weft_agent *agent;
    MUST_OK(weft_agent_open(&alone, &agent, NULL));
    return agent;
}

static void close_alone(weft_agent *agent)
{
    MUST_OK(weft_agent_close(agent, 20000));
}

/* `error` says that the program is too new. Releases it. */
static void assert_newer(weft_error *error)
{
    assert_int_equal(weft_error_code(error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), NEWER));
    weft_error_unref(error);
}

static void options(void **state)
{
    NEWER_STRUCT(weft_agent_options) newer = {.known = alone};
    weft_agent *agent;
    weft_error *error = NULL;
    weft_agent_options older = alone; /* a program without metrics and events */
    older.metrics_file = "/nonexistent/metrics";
    MUST_OK(weft_agent_open_sized(&older, offsetof(weft_agent_options, metrics_file), 0, 0, &agent, NULL));
    close_alone(agent);
    MUST_OK(weft_agent_open_sized(&newer.known, sizeof(newer), 0, 0, &agent, NULL));
    close_alone(agent);
    newer.more = &newer;
    MUST_BE(weft_agent_open_sized(&newer.known, sizeof(newer), 0, 0, &agent, &error), WEFT_ERR_INVALID);
    assert_newer(error);
}

static void options_of_calls(void **state)
{
    weft_agent *agent = open_alone();
    weft_error *error = NULL;
    weft_values *out;
    MUST_OK(weft_agent_register(agent, &(weft_function){.name = "nothing", .run = world_run_nothing}));
    weft_rpc_options older = {.timeout_ms = 20000, .retry.attempts = -1};
    MUST_OK(weft_rpc_sync_sized(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, &older,
                                offsetof(weft_rpc_options, retry), &out));
    weft_values_unref(out);
    NEWER_STRUCT(weft_rpc_options) newer = {.known.error = &error, .more = agent};
    MUST_BE(weft_rpc_sync_sized(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, &newer.known, sizeof(newer), &out),
            WEFT_ERR_INVALID);
    assert_newer(error);
    close_alone(agent);
}

/* A struct in another one cannot grow: it has room. */
static void nested_structs(void **state)
{
    weft_agent *agent = open_alone();
    weft_error *error = NULL;
    weft_function plain = {.name = "plain", .run = world_run_nothing, .batch.reserved = {1}};
    weft_rpc_options how = {.error = &error, .retry.reserved = {0, 0, 0, 1}};
    REFUSES(weft_agent_register(agent, &plain), WEFT_ERR_INVALID, NEWER);
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(0), "nothing", WEFT_NO_VALUES, &how, NULL), WEFT_ERR_INVALID);
    assert_newer(error);
    close_alone(agent);
    assert_null(conv2d_create(&(weft_conv2d_layer){.in_channels = 1, .how.reserved = {1}}, &error));
    assert_newer(error);
}

/* ---- Arrays ------------------------------------------------------------------------------------------------------ */

static bool serves(weft_agent *agent, const char *function)
{
    return !weft_rpc_sync(agent, weft_to_rank(0), function, WEFT_NO_VALUES, NULL, NULL);
}

static void arrays(void **state)
{
    enum { OLD = offsetof(weft_function, run_batch) }; /* a program without batches */
    weft_function one = {.name = "one", .run = world_run_nothing}, two = {.name = "two", .run = world_run_nothing};
    _Alignas(weft_function) char older[2 * OLD];
    memcpy(older, &one, OLD);
    memcpy(older + OLD, &two, OLD);
    weft_agent_options how = alone;
    weft_agent *agent;
    weft_error *error = NULL;
    how.functions = (const weft_function *)older;
    how.function_count = 2;
    MUST_OK(weft_agent_open_sized(&how, sizeof(how), OLD, 0, &agent, NULL));
    assert_true(serves(agent, "one") && serves(agent, "two"));
    close_alone(agent);

    NEWER_STRUCT(weft_function) newer[2] = {{.known = one}, {.known = two}};
    how.functions = &newer->known;
    MUST_OK(weft_agent_open_sized(&how, sizeof(how), sizeof(*newer), 0, &agent, NULL));
    assert_true(serves(agent, "one") && serves(agent, "two"));
    close_alone(agent);
    newer[1].more = newer;
    MUST_BE(weft_agent_open_sized(&how, sizeof(how), sizeof(*newer), 0, &agent, &error), WEFT_ERR_INVALID);
    assert_non_null(strstr(weft_error_message(error), "function 1"));
    assert_newer(error);
}

/* ---- Tables of functions ----------------------------------------------------------------------------------------- */

static int dropped, carried;

static void count_drop(void *arg)
{
    (void)arg;
    dropped++;
}

static weft_status carry_barrier(void *arg)
{
    (void)arg;
    carried++;
    return WEFT_OK;
}

static weft_status no_carrier(void *arg, const void *data, size_t count, weft_dtype dtype, size_t to)
{
    (void)arg, (void)data, (void)count, (void)dtype, (void)to;
    abort();
}

static void carriers(void **state)
{
    weft_agent *agent;
    weft_group *group;
    weft_group_carrier older = {.barrier = carry_barrier, .send = no_carrier};
    NEWER_STRUCT(weft_group_carrier) newer = {.known.barrier = carry_barrier, .more = &older};
    MUST_OK(weft_agent_open(&(weft_agent_options){.has_rank = true, .world_size = 1}, &agent, NULL));
    MUST_OK(weft_group_open(agent, "one", NULL, 0, 0, &group, NULL));
    carried = dropped = 0;
    REFUSES(weft_group_set_carrier_sized(group, &newer.known, sizeof(newer), NULL, count_drop), WEFT_ERR_INVALID,
            NEWER);
    assert_int_equal(dropped, 1);
    MUST_OK(weft_group_set_carrier_sized(group, &older, offsetof(weft_group_carrier, send), NULL, count_drop));
    MUST_OK(weft_group_barrier(group, 20000));
    assert_int_equal(carried, 1);
    weft_group_close(group);
    close_alone(agent);
}

static weft_status publish(const char *key, const void *data, size_t size, void *arg)
{
    (void)key, (void)data, (void)size, (void)arg;
    return WEFT_OK;
}

static weft_status lookup(const char *key, void *data, size_t size, int64_t timeout_ms, void *arg)
{
    (void)key, (void)data, (void)size, (void)timeout_ms, (void)arg;
    abort();
}

static weft_status no_barrier(void *arg)
{
    (void)arg;
    abort();
}

static void bootstraps(void **state)
{
    NEWER_STRUCT(weft_bootstrap) newer = {.known = {.publish = publish, .lookup = lookup}, .more = &newer};
    weft_bootstrap older = {.publish = publish, .lookup = lookup, .barrier = no_barrier};
    weft_agent_options how = alone;
    weft_agent *agent;
    weft_error *error = NULL;
    how.bootstrap = &older;
    MUST_OK(weft_agent_open_sized(&how, sizeof(how), 0, offsetof(weft_bootstrap, barrier), &agent, NULL));
    close_alone(agent);
    how.bootstrap = &newer.known;
    MUST_BE(weft_agent_open_sized(&how, sizeof(how), 0, sizeof(newer), &agent, &error), WEFT_ERR_INVALID);
    assert_newer(error);
}

static weft_tensor *forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    (void)self;
    return weft_relu(tape, x);
}

static weft_status no_call(weft_tape *tape, weft_module *self, weft_args inputs, weft_values *results)
{
    (void)tape, (void)self, (void)inputs, (void)results;
    abort();
}

static void module_types(void **state)
{
    weft_module_type older = {.name = "Mine", .forward = forward, .drop = count_drop, .call = no_call};
    NEWER_STRUCT(weft_module_type)
    newer = {.known = {.name = "Mine", .forward = forward, .drop = count_drop}, .more = &newer};
    weft_error *error = NULL;
    dropped = 0;
    weft_module *module;
    MUST_BE(weft_module_create_sized(&newer.known, sizeof(newer), NULL, &module, &error), WEFT_ERR_INVALID);
    assert_int_equal(dropped, 1);
    assert_newer(error);
    MUST_OK(weft_module_create_sized(&older, offsetof(weft_module_type, call), NULL, &module, NULL));
    weft_tape *tape = weft_tape_open(NULL);
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_args out = weft_module_call(tape, module, WEFT_VALUES(weft_of_tensor(x)));
    assert_int_equal(out.count, 1);
    weft_tape_close(tape);
    weft_tensor_unref(x);
    weft_module_unref(module);
    assert_int_equal(dropped, 2);
}

static weft_status no_gradient(void *op, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    (void)op, (void)saved, (void)dy, (void)wanted, (void)dx;
    return WEFT_OK;
}

static void operators(void **state)
{
    weft_operator older = {.name = "mine", .backward = no_gradient, .drop = (weft_drop_fn)abort};
    NEWER_STRUCT(weft_operator) newer = {.known = {"mine", no_gradient, count_drop}, .more = &newer};
    weft_tape *tape = weft_tape_open(NULL);
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32), *out;
    weft_tensors one = {&x, 1}, none = {NULL, 0};
    weft_tape_record_sized(tape, &older, offsetof(weft_operator, drop), one, none, NULL, one, &out);
    assert_non_null(out);
    dropped = 0;
    weft_tape_record_sized(tape, &newer.known, sizeof(newer), one, none, NULL, one, &out);
    assert_null(out);
    assert_int_equal(dropped, 1);
    assert_newer(weft_error_ref(weft_tape_error(tape)));
    weft_tape_close(tape);
    weft_tensor_unref(x);
}

static void object_types(void **state)
{
    weft_agent *agent = open_alone();
    weft_object_type older = {.name = "mine", .drop = (weft_drop_fn)abort};
    NEWER_STRUCT(weft_object_type) newer = {.known = {"mine", count_drop}};
    weft_rref *rref;
    void *object;
    dropped = 0;
    MUST_OK(weft_rref_create_typed_sized(agent, &older, offsetof(weft_object_type, drop), agent, &rref, NULL));
    MUST_OK(weft_rref_local_typed(rref, &older, 0, &object));
    weft_rref_unref(rref);
    MUST_OK(weft_rref_create_typed_sized(agent, &newer.known, sizeof(newer), agent, &rref, NULL));
    weft_rref_unref(rref);
    newer.more = agent;
    REFUSES(weft_rref_create_typed_sized(agent, &newer.known, sizeof(newer), agent, &rref, NULL), WEFT_ERR_INVALID,
            NEWER);
    close_alone(agent);
    assert_int_equal(dropped, 2);
}

static weft_status step(const weft_optimizer_update *update)
{
    (void)update;
    return WEFT_OK;
}

/* weft exports variables of this type, and a program may have copies of them: so its size never changes. */
static void optimizer_types(void **state)
{
    weft_optimizer_type type = {.name = "Mine", .lr = 1, .step = step, .reserved = {0, 1}};
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(2), WEFT_DTYPE_FLOAT32);
    weft_tensors one = {&x, 1};
    weft_error *error = NULL;
    assert_null(optimizer_create(one, &(weft_optimizer_spec){.type = &type}, &error));
    assert_newer(error);
    weft_optimizer_spec how = {.type = &weft_adam_type, .adam.reserved = {0, 0, 1}};
    assert_null(optimizer_create(one, &how, &error));
    assert_newer(error);
    how = (weft_optimizer_spec){.type = &weft_adam_type, .adam.beta1 = 0.5, .own = {1}}; /* without custom types */
    weft_optimizer *adam;
    MUST_OK(weft_optimizer_create_sized(one, &how, offsetof(weft_optimizer_spec, own), &adam, NULL));
    how.own[0] = 7;
    MUST_OK(weft_optimizer_get_spec_sized(adam, 0, &how, offsetof(weft_optimizer_spec, own)));
    assert_true(how.adam.beta1 == 0.5 && how.own[0] == 7);
    weft_optimizer_unref(adam);
    weft_tensor_unref(x);
}

static weft_tensor *no_replacement(weft_tensor *leaf, weft_tensor *sum, weft_future **wait, void *arg)
{
    (void)leaf, (void)sum, (void)wait, (void)arg;
    abort();
}

static void hooks_of_leaves(void **state)
{
    weft_leaf_hook older = {.drop = count_drop, .replace = no_replacement};
    NEWER_STRUCT(weft_leaf_hook) newer = {.known.drop = count_drop, .more = &newer};
    weft_hooks *hooks = hooks_create();
    weft_tensor *x = tensor_zeros(WEFT_SCALAR, WEFT_DTYPE_FLOAT32);
    weft_tape *tape = weft_tape_open(&(weft_tape_options){.record = true});
    weft_tensor_set_requires_grad(x, true);
    dropped = 0;
    REFUSES(weft_hooks_add_sized(hooks, x, &newer.known, sizeof(newer)), WEFT_ERR_INVALID, NEWER);
    assert_int_equal(dropped, 1);
    MUST_OK(weft_hooks_add_sized(hooks, x, &older, offsetof(weft_leaf_hook, replace)));
    weft_tape_set_hooks(tape, hooks);
    weft_backward(tape, weft_scale(tape, x, 2));
    MUST_OK(weft_tape_status(tape));
    weft_tape_close(tape);
    weft_hooks_unref(hooks);
    weft_tensor_unref(x);
    assert_int_equal(dropped, 2);
}

/* ---- Operators and tapes ----------------------------------------------------------------------------------------- */

static void options_of_operators(void **state)
{
    weft_tape_options older = {.record = true, .mode = (weft_mode)77};
    weft_tape *tape = weft_tape_open_sized(&older, offsetof(weft_tape_options, mode));
    weft_tensor *x = tensor_zeros(WEFT_SHAPE(1, 1, 4, 4), WEFT_DTYPE_FLOAT32);
    weft_max_pool2d_options pool = {.kernel = {2, 2}, .padding = {-1, -1}};
    assert_non_null(weft_max_pool2d_sized(tape, x, &pool, offsetof(weft_max_pool2d_options, padding)));
    NEWER_STRUCT(weft_max_pool2d_options) newer = {.known.kernel = {2, 2}};
    assert_non_null(weft_max_pool2d_sized(tape, x, &newer.known, sizeof(newer)));
    newer.more = x;
    assert_null(weft_max_pool2d_sized(tape, x, &newer.known, sizeof(newer)));
    assert_newer(weft_error_ref(weft_tape_error(tape)));
    weft_tape_close(tape);
    weft_tensor_unref(x);
    NEWER_STRUCT(weft_tape_options) newest = {.more = &newest};
    tape = weft_tape_open_sized(&newest.known, sizeof(newest));
    assert_newer(weft_error_ref(weft_tape_error(tape)));
    weft_tape_close(tape);
}

/* ---- Structs that the library fills ------------------------------------------------------------------------------ */

static void filled_structs(void **state)
{
    weft_agent *agent = open_alone();
    enum { OLD = offsetof(weft_stats, calls_served) };
    NEWER_STRUCT(weft_stats) newer = {.more = agent};
    weft_stats older = {.calls_served = 77};
    MUST_OK(weft_agent_register(agent, &(weft_function){.name = "nothing", .run = world_run_nothing}));
    assert_true(serves(agent, "nothing"));
    weft_agent_stats_sized(agent, &older, OLD);
    assert_true(older.calls_started == 1 && older.calls_served == 77);
    weft_agent_stats_sized(agent, &newer.known, sizeof(newer));
    assert_true(newer.known.calls_served == 1 && !newer.more);

    weft_call_metrics metrics = {.failed = 77};
    MUST_OK(weft_metrics_read_sized(agent, WEFT_METRIC_CALLS, -1, NULL, &metrics, offsetof(weft_call_metrics, failed)));
    assert_true(metrics.count == 1 && metrics.failed == 77);
    weft_batch_stats batches = {.calls = 77};
    MUST_BE(weft_batch_stats_read_sized(agent, "nothing", &batches, offsetof(weft_batch_stats, calls)),
            WEFT_ERR_NOT_FOUND);
    assert_true(batches.calls == 77);

    NEWER_STRUCT(weft_worker) workers[2] = {{.more = agent}, {.more = agent}};
    assert_int_equal(weft_agent_workers_sized(agent, &workers->known, sizeof(*workers), 2), 1);
    assert_true(workers[0].known.incarnation && !workers[0].more && workers[1].more == agent);
    weft_agent_worker_sized(agent, 0, &workers[1].known, sizeof(*workers));
    assert_true(workers[1].known.incarnation == workers[0].known.incarnation && !workers[1].more);
    weft_worker short_one = {.incarnation = 77};
    weft_agent_worker_sized(agent, 0, &short_one, offsetof(weft_worker, incarnation));
    assert_int_equal(short_one.incarnation, 77);
    close_alone(agent);
}

UNIT_MAIN(a_shorter_struct_is_a_prefix, a_longer_struct_is_read_if_the_rest_is_zero,
          no_more_is_written_than_the_program_has, options, options_of_calls, nested_structs, arrays, carriers,
          bootstraps, module_types, operators, object_types, optimizer_types, hooks_of_leaves, options_of_operators,
          filled_structs)
