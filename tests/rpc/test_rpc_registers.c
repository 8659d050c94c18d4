/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_rpc_registers.c - fabrics on which registering memory takes long: meanwhile the agent makes and serves other
 * calls, and may end. One fabric is tcp with lasting keys. The other one is sim-verbs, where registering takes virtual
 * time: if the agent's lock were held, the simulation would stop. The linker puts wfi_fabric_find below in the place of
 * the library's.
 */
#include "rpc/world.h"

#include "fabric.h"
#include "mem/mem.h"
#include "sim/sim.h"
#include "tensors.h"

#include <pthread.h>
#include <time.h>

/* Elements of 4 bytes. Sizes that differ, so that none is in recycled memory, which is registered already. */
enum {
    ARGUMENT = 300 << 10,
    PULLED = 600 << 10,
    LANDED = 1200 << 10,
    RESULT = 2400 << 10,
    ITEM = 4800 << 10,
    SENT = 9600 << 10,
    SIMULATED = 300 << 10
};
#define SMALL_BYTES (1 << 20)
#define META_BYTES (3 << 20)
#define LIMIT_MS 20000
#define REMOTE (WFI_REMOTE_READ | WFI_REMOTE_WRITE)

const wfi_fabric_ops *__real_wfi_fabric_find(const char *name);
const wfi_fabric_ops *__wrap_wfi_fabric_find(const char *name);

static struct shared {
    wfi_fabric_ops tcp, verbs;
    wfi_fabric_limits limits;
    weft_agent *agent;   /* rank 0's */
    atomic_bool waits;   /* the next registration of much memory for `access` waits for `answered` */
    unsigned access;     /* among REMOTE; 0: for this worker's own reads and writes */
    atomic_bool entered; /* it is waiting */
    atomic_bool answered;
    atomic_int slow; /* registrations that took virtual time */
    weft_sim *sim;
} shared;

static void wait_for(const atomic_bool *flag)
{
    for (int i = 0; i < LIMIT_MS && !atomic_load(flag); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    MUST(atomic_load(flag));
}

static const wfi_fabric_limits *limits_with_lasting_keys(const wfi_fabric *fabric)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* agents open on several threads */
    pthread_mutex_lock(&lock);
    if (!shared.limits.needs_local_regions) {
        shared.limits = *wfi_fabric_tcp.limits(fabric);
        shared.limits.keys_per_transfer = false;
        shared.limits.needs_local_regions = true;
    }
    pthread_mutex_unlock(&lock);
    return &shared.limits;
}

static weft_status region_open_waiting(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    if (memory->size > SMALL_BYTES && (access & REMOTE) == shared.access && atomic_exchange(&shared.waits, false)) {
        atomic_store(&shared.entered, true);
        wait_for(&shared.answered);
    }
    return wfi_fabric_tcp.region_open(fabric, memory, access, out);
}

static weft_status region_open_slowly(wfi_fabric *fabric, const wfi_memory *memory, unsigned access, wfi_region **out)
{
    if (memory->size > SMALL_BYTES) {
        atomic_fetch_add(&shared.slow, 1);
        weft_sim_sleep(shared.sim, 20000000);
    }
    return wfi_fabric_sim_verbs.region_open(fabric, memory, access, out);
}

const wfi_fabric_ops *__wrap_wfi_fabric_find(const char *name)
{
    const wfi_fabric_ops *found = __real_wfi_fabric_find(name);
    return found == &wfi_fabric_tcp ? &shared.tcp : found == &wfi_fabric_sim_verbs ? &shared.verbs : found;
}

/* ---- Functions ------------------------------------------------------------------------------------------------ */

static weft_tensor *ones(int64_t count)
{
    weft_tensor *x = tensor_full(WEFT_SHAPE(count), WEFT_DTYPE_FLOAT32, 1);
    MUST(x);
    return x;
}

static weft_status run_make(weft_call *call, void *user)
{
    weft_tensor *large = ones(weft_call_i64(call, 0));
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(large)));
    weft_tensor_unref(large);
    return WEFT_OK;
}

static weft_status run_make_item(weft_call *call, void *user)
{
    weft_tensor *large = ones(weft_call_i64(call, 0));
    MUST_OK(weft_call_send_item(call, WEFT_VALUES(weft_of_tensor(large))));
    weft_tensor_unref(large);
    return WEFT_OK;
}

static weft_status run_swallow(weft_call *call, void *user)
{
    return WEFT_OK;
}

static const weft_function functions[] = {
    {.name = "nothing", .run = world_run_nothing},
    {.name = "swallow", .takes = {WEFT_TYPE_BYTES}, .run = run_swallow},
    {.name = "echo", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_TENSOR}, .run = world_run_echo},
    {.name = "make", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_make},
    {.name = "make item", .takes = {WEFT_TYPE_I64}, .run = run_make_item},
};

/* ---- On threads ----------------------------------------------------------------------------------------------- */

/* While memory is being registered at this worker or at the other one, a small call between them ends. */
static void *call_meanwhile(void *arg)
{
    wait_for(&shared.entered);
    MUST_OK(weft_rpc_sync(shared.agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, NULL));
    atomic_store(&shared.answered, true);
    return NULL;
}

static pthread_t watch_for(unsigned access)
{
    pthread_t thread;
    shared.access = access;
    atomic_store(&shared.entered, false);
    atomic_store(&shared.answered, false);
    atomic_store(&shared.waits, true);
    MUST(!pthread_create(&thread, NULL, call_meanwhile, NULL));
    return thread;
}

static void ignore_item(const weft_values *item, void *arg) {}

static void call_slowly(unsigned access, const char *function, weft_args args, weft_tensor *land)
{
    pthread_t thread = watch_for(access);
    weft_rpc_options options = {.land = {.items = &land, .count = land != NULL}, .on_item = ignore_item};
    weft_values *values = NULL;
    MUST_OK(weft_rpc_sync(shared.agent, weft_to_rank(1), function, args, &options, &values));
    weft_values_unref(values);
    MUST(atomic_load(&shared.entered));
    pthread_join(thread, NULL);
}

static void send_slowly(weft_agent *agent)
{
    weft_group *both;
    weft_tensor *x = ones(SENT);
    bool watches = weft_agent_rank(agent) == 0;
    pthread_t thread;
    MUST_OK(weft_group_open(agent, "both", NULL, 0, 0, &both, NULL));
    MUST_OK(weft_group_barrier(both, WEFT_FOREVER));
    if (watches)
        thread = watch_for(WFI_REMOTE_READ);
    MUST_OK(weft_group_barrier(both, WEFT_FOREVER));
    MUST_OK(weft_group_allreduce(both, x, WEFT_OP_SUM, WEFT_FOREVER));
    MUST(weft_tensor_get_f64(x, SENT - 1) == 2);
    if (watches) {
        MUST(atomic_load(&shared.entered));
        pthread_join(thread, NULL);
    }
    weft_group_close(both);
    weft_tensor_unref(x);
}

static void registrations_delay_nobody(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == 0)
        shared.agent = agent;
    send_slowly(agent);
    if (weft_agent_rank(agent) == 0) {
        weft_tensor *large = ones(ARGUMENT), *pulled = ones(PULLED), *land = ones(LANDED);
        uint8_t *bytes = calloc(1, META_BYTES);
        MUST(bytes);
        call_slowly(WFI_REMOTE_READ, "echo", WEFT_VALUES(weft_of_tensor(large)), NULL); /* an argument */
        call_slowly(0, "echo", WEFT_VALUES(weft_of_tensor(pulled)), NULL);              /* where it is pulled to */
        call_slowly(WFI_REMOTE_WRITE, "make", WEFT_VALUES(weft_of_i64(LANDED)), land);  /* a landing place */
        call_slowly(WFI_REMOTE_READ, "make", WEFT_VALUES(weft_of_i64(RESULT)), NULL);   /* a result */
        call_slowly(WFI_REMOTE_READ, "make item", WEFT_VALUES(weft_of_i64(ITEM)), NULL);
        call_slowly(WFI_REMOTE_READ, "swallow", WEFT_VALUES(weft_of_bytes(bytes, META_BYTES)), NULL); /* metadata */
        free(bytes);
        weft_tensor_unref(large);
        weft_tensor_unref(pulled);
        weft_tensor_unref(land);
    }
}

static void more_workers(weft_agent_options *options, void *arg)
{
    options->threads = 3;
}

static void begin_world(world *w)
{
    shared = (struct shared){.tcp = wfi_fabric_tcp, .verbs = wfi_fabric_sim_verbs, .sim = w->sim};
    shared.tcp.limits = limits_with_lasting_keys;
    shared.tcp.region_open = region_open_waiting;
    shared.verbs.region_open = region_open_slowly;
    wfi_slab_trim(0);
}

WORLD_TEST(registrations_delay_nobody, 0, 1, .size = 2, .begin = begin_world, .adjust = more_workers,
           WORLD_FUNCTIONS(functions))

/* Several callers register one tensor at once. */
#define CALLERS 6

static void *echo_often(void *arg)
{
    weft_tensor *shares = arg;
    for (int i = 0; i < 5; i++) {
        weft_tensor *own = ones(ARGUMENT + 4096 * i), *got;
        weft_values *values[2];
        MUST_OK(weft_rpc_sync(shared.agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(shares)), NULL,
                              &values[0]));
        MUST_OK(
            weft_rpc_sync(shared.agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(own)), NULL, &values[1]));
        for (int j = 0; j < 2; j++) {
            MUST_OK(weft_values_get_tensor(values[j], 0, &got));
            MUST(weft_tensor_get_f64(got, ARGUMENT - 1) == 1);
            weft_values_unref(values[j]);
        }
        weft_tensor_unref(own);
    }
    return NULL;
}

static void many_callers(weft_agent *agent, void *arg)
{
    pthread_t threads[CALLERS];
    if (weft_agent_rank(agent) != 0)
        return;
    shared.agent = agent;
    weft_tensor *shares = ones(ARGUMENT);
    for (int i = 0; i < CALLERS; i++)
        MUST(!pthread_create(&threads[i], NULL, echo_often, shares));
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    weft_tensor_unref(shares);
}

WORLD_TEST(many_callers, 0, 1, .size = 2, .begin = begin_world, .adjust = more_workers, WORLD_FUNCTIONS(functions))

/* Rank 1 stops while memory into which it pulls an argument is being registered. */
static void *answer_late(void *arg)
{
    wait_for(&shared.entered);
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* the worker has most likely begun to stop */
    atomic_store(&shared.answered, true);
    return NULL;
}

static void stop_meanwhile(weft_agent *agent, void *arg)
{
    static atomic_bool is_watching;
    weft_tensor *x = ones(PULLED);
    pthread_t late;
    if (weft_agent_rank(agent) == 0) {
        shared.access = 0;
        atomic_store(&shared.waits, true);
        MUST(!pthread_create(&late, NULL, answer_late, NULL));
        atomic_store(&is_watching, true);
        weft_values *values = NULL;
        weft_status status =
            weft_rpc_sync(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &values);
        MUST(status != WEFT_OK);
        pthread_join(late, NULL);
    } else {
        wait_for(&is_watching);
        wait_for(&shared.entered);
    }
    weft_tensor_unref(x);
}

WORLD_TEST(stop_meanwhile, 0, 1, .size = 2, .begin = begin_world, .adjust = more_workers, .stop = true,
           .close_may_fail = true, WORLD_FUNCTIONS(functions))

/* ---- In virtual time ------------------------------------------------------------------------------------------ */

static void on_verbs(weft_agent_options *options, void *arg)
{
    options->fabric = "sim-verbs,sim";
}

static void on_verbs_alone(weft_agent_options *options, void *arg)
{
    options->fabric = "sim-verbs";
}

static weft_future *echo(weft_agent *agent, weft_tensor *x, weft_tensor *land)
{
    weft_future *future;
    weft_rpc_options options = {.land = {.items = &land, .count = land != NULL}};
    MUST_OK(weft_rpc_async(agent, weft_to_rank(1 - weft_agent_rank(agent)), "echo", WEFT_VALUES(weft_of_tensor(x)),
                           &options, &future));
    return future;
}

/* Both workers call each other, with the same memory, and exchange in a group; some calls are cancelled. */
static void both_register(weft_agent *agent, void *arg)
{
    const world *w = arg;
    weft_group *both;
    weft_future *futures[6];
    weft_tensor *x = ones(SIMULATED), *land = ones(SIMULATED);
    shared.sim = w->sim;
    MUST_OK(weft_group_open(agent, "both", NULL, 0, 0, &both, NULL));
    for (int i = 0; i < 6; i++)
        futures[i] = echo(agent, x, i % 3 == 1 ? land : NULL);
    MUST_OK(weft_future_cancel(futures[2]));
    MUST_OK(weft_group_allreduce(both, land, WEFT_OP_MAX, 60000));
    for (int i = 0; i < 6; i++) {
        weft_status status = weft_future_wait(futures[i], 60000);
        MUST(status == WEFT_OK || (i == 2 && status == WEFT_ERR_CANCELLED));
        weft_future_unref(futures[i]);
    }
    MUST(weft_tensor_get_f64(land, SIMULATED - 1) == 1);
    MUST(atomic_load(&shared.slow) > 0);
    weft_group_close(both);
    weft_tensor_unref(x);
    weft_tensor_unref(land);
}

WORLD_TEST(both_register, 20, 0, .size = 2, .begin = begin_world, .adjust = on_verbs, WORLD_FUNCTIONS(functions))

/* A worker refuses to register from some time on: calls and groups take the other fabric. */
static void one_refuses(weft_agent *agent, void *arg)
{
    const world *w = arg;
    weft_group *both;
    weft_tensor *x = ones(SIMULATED), *y = ones(2 * SIMULATED);
    shared.sim = w->sim;
    MUST_OK(weft_group_open(agent, "both", NULL, 0, 0, &both, NULL));
    MUST_OK(weft_group_barrier(both, 60000));
    if (weft_agent_rank(agent) == (int)(w->seed % 2))
        MUST_OK(weft_sim_fabric_refuse_memory(w->sim, (int)(w->seed / 2 % 2), "sim-verbs", true));
    weft_future *future = echo(agent, x, NULL);
    MUST_OK(weft_group_allreduce(both, y, WEFT_OP_SUM, 60000));
    MUST(weft_tensor_get_f64(y, 2 * SIMULATED - 1) == 2);
    MUST_OK(weft_future_wait(future, 60000));
    weft_future_unref(future);
    weft_group_close(both);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

WORLD_TEST(one_refuses, 20, 0, .size = 2, .begin = begin_world, .adjust = on_verbs, WORLD_FUNCTIONS(functions))

/* Without another fabric calls fail while memory is refused, and succeed later. */
static void all_refuse(weft_agent *agent, void *arg)
{
    const world *w = arg;
    weft_tensor *x = ones(SIMULATED), *land = ones(SIMULATED);
    shared.sim = w->sim;
    if (weft_agent_rank(agent) != 0)
        return weft_tensor_unref(x), weft_tensor_unref(land);
    MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), "nothing", WEFT_NO_VALUES, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        weft_rpc_options options = {.land = {.items = &land, .count = i}};
        weft_args args = WEFT_VALUES(weft_of_i64(SIMULATED)), tensor = WEFT_VALUES(weft_of_tensor(x));
        MUST_OK(weft_sim_fabric_refuse_memory(w->sim, 0, "sim-verbs", true));
        MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), i ? "make" : "echo", i ? args : tensor, &options, NULL),
                WEFT_ERR_MEMORY);
        MUST_OK(weft_sim_fabric_refuse_memory(w->sim, 0, "sim-verbs", false));
        MUST_OK(weft_rpc_sync(agent, weft_to_rank(1), i ? "make" : "echo", i ? args : tensor, &options, NULL));
    }
    MUST_OK(weft_sim_fabric_refuse_memory(w->sim, 1, "sim-verbs", true));
    MUST_BE(weft_rpc_sync(agent, weft_to_rank(1), "make", WEFT_VALUES(weft_of_i64(2 * SIMULATED)), NULL, NULL),
            WEFT_ERR_MEMORY);
    MUST_OK(weft_sim_fabric_refuse_memory(w->sim, 1, "sim-verbs", false));
    weft_tensor_unref(x);
    weft_tensor_unref(land);
}

WORLD_TEST(all_refuse, 10, 0, .size = 2, .begin = begin_world, .adjust = on_verbs_alone, WORLD_FUNCTIONS(functions))

/* The agent closes while its memory and that of the other worker is being registered. */
static void close_meanwhile(weft_agent *agent, void *arg)
{
    const world *w = arg;
    weft_group *both;
    weft_tensor *x = ones(SIMULATED), *y = ones(2 * SIMULATED);
    weft_future *future = NULL, *sum = NULL;
    shared.sim = w->sim;
    MUST_OK(weft_group_open(agent, "both", NULL, 0, 0, &both, NULL));
    MUST_OK(weft_group_barrier(both, 60000));
    weft_status status = weft_group_allreduce_async(both, y, WEFT_OP_SUM, 60000, &sum);
    MUST(status == WEFT_OK || status == WEFT_ERR_CANCELLED); /* the other one may have closed it already */
    if (weft_agent_rank(agent) == 0) {
        status = weft_rpc_async(agent, weft_to_rank(1), "echo", WEFT_VALUES(weft_of_tensor(x)), NULL, &future);
        MUST(status == WEFT_OK || status == WEFT_ERR_PEER_LEFT);
    }
    weft_sim_sleep(w->sim, 1000000 * (w->seed % 30));
    weft_group_close(both);
    weft_future_unref(future);
    weft_future_unref(sum);
    weft_tensor_unref(x);
    weft_tensor_unref(y);
}

WORLD_TEST(close_meanwhile, 30, 0, .size = 2, .begin = begin_world, .adjust = on_verbs, .stop = true,
           .close_may_fail = true, WORLD_FUNCTIONS(functions))

UNIT_MAIN(test_registrations_delay_nobody, test_many_callers, test_stop_meanwhile, test_both_register, test_one_refuses,
          test_all_refuse, test_close_meanwhile)
