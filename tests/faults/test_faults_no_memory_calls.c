/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_faults_no_memory_calls.c - one worker of three is refused memory, the kth request for every k, then each nth
 * for a while: all its calls, and those to it, end in bounded time with the right result or WEFT_ERR_MEMORY; the
 * other two notice nothing among themselves; as soon as there is memory everything works again, and nothing is left
 * behind.
 */
#include "rpc/must.h"
#include "rpc/world.h"
#include "faults/no_memory.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "tensors.h"
#include "unit.h"

enum { FRIEND, VICTIM, BYSTANDER, SIZE };
enum { BIG = 300000, PARTS = 4, BOUND_MS = 30000 };

static struct shared {
    world *w;
    atomic_bool over;
    _Atomic uint64_t rounds; /* of the friend's calls to the victim */
    uint64_t failures, good; /* of the victim's */
    weft_tensor *big, *place;
} shared;

/* ---- Functions, the same on all ---------------------------------------------------------------------------------- */

static weft_status run_echo(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(weft_call_i64(call, 0)), weft_of_string(weft_call_string(call, 1))));
    return WEFT_OK;
}

static int64_t sum_of(const weft_tensor *x)
{
    const int32_t *items = weft_tensor_data(x);
    int64_t sum = 0;
    for (int64_t i = 0; i < weft_tensor_numel(x); i++)
        sum += items[i];
    return sum;
}

static weft_status run_sum(weft_call *call, void *user)
{
    weft_call_give(call, WEFT_VALUES(weft_of_i64(sum_of(weft_call_tensor(call, 0)))));
    return WEFT_OK;
}

static weft_status run_big(weft_call *call, void *user)
{
    weft_tensor *x = tensor_arange(weft_call_i64(call, 0), WEFT_DTYPE_INT32);
    if (!x)
        return WEFT_ERR_MEMORY;
    weft_call_give(call, WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor_unref(x);
    return WEFT_OK;
}

static weft_status run_stream(weft_call *call, void *user)
{
    weft_status status = WEFT_OK;
    for (int64_t i = 0; i < PARTS && !status; i++)
        status = weft_call_send_item(call, WEFT_VALUES(weft_of_i64(i)));
    weft_call_give(call, WEFT_VALUES(weft_of_i64(PARTS)));
    return status;
}

/* Fetches what the reference names, from whoever owns it. */
static void fetched(weft_future *future, void *arg)
{
    weft_call *call = arg;
    int64_t number = 0;
    const weft_error *error = weft_future_error(future);
    weft_status status = error ? weft_error_code(error) : weft_values_get_i64(weft_future_values(future), 0, &number);
    if (status == WEFT_ERR_REMOTE)
        status = weft_error_handler_code(error); /* the owner's own trouble, two workers away */
    weft_call_give(call, WEFT_VALUES(weft_of_i64(number)));
    weft_call_finish(call, status);
}

static weft_status run_fetch(weft_call *call, void *user)
{
    weft_future *future;
    weft_status status = weft_rref_to_here_async(weft_call_rref(call, 0), BOUND_MS, &future);
    if (status)
        return status;
    status = weft_future_add_done_callback(future, fetched, weft_call_defer_keeping(call), NULL);
    weft_future_unref(future);
    if (status)
        weft_call_finish(call, status);
    return WEFT_DEFERRED;
}

static const weft_function functions[] = {
    {.name = "echo",
     .takes = {WEFT_TYPE_I64, WEFT_TYPE_STRING},
     .gives = {WEFT_TYPE_I64, WEFT_TYPE_STRING},
     .run = run_echo},
    {.name = "sum", .takes = {WEFT_TYPE_TENSOR}, .gives = {WEFT_TYPE_I64}, .run = run_sum},
    {.name = "big", .takes = {WEFT_TYPE_I64}, .gives = {WEFT_TYPE_TENSOR}, .run = run_big},
    {.name = "stream", .gives = {WEFT_TYPE_I64}, .run = run_stream},
    {.name = "fetch", .takes = {WEFT_TYPE_RREF}, .gives = {WEFT_TYPE_I64}, .run = run_fetch},
};

/* ---- One call, and what became of it ----------------------------------------------------------------------------- */

/* A failure is want of memory, here or at the handler; without want there is none. */
static bool went_well(const char *what, weft_status status, const weft_error *error, bool may_fail)
{
    weft_status inner = error ? weft_error_handler_code(error) : status;
    bool fitting = status == WEFT_ERR_MEMORY || (status == WEFT_ERR_REMOTE && inner == WEFT_ERR_MEMORY);
    /* Where the making of a value failed, its owner knows nothing of it; whoever it was passed to meanwhile hears
     * that, too. */
    fitting = fitting || (status == WEFT_ERR_REMOTE && inner == WEFT_ERR_NOT_FOUND && !strcmp(what, "to_here")) ||
              (status == WEFT_ERR_NOT_FOUND && !strcmp(what, "fetch"));
    if (!status)
        return true;
    if (!may_fail || !fitting) {
        fprintf(stderr, "%s (%s): %s, remote code %s\n", what, may_fail ? "scarce" : "plenty", weft_status_name(status),
                weft_status_name(inner));
        weft_error_print(error, stderr);
        abort();
    }
    return false;
}

typedef struct asked {
    weft_agent *agent;
    int to;
    bool may_fail;
} asked;

static bool call(const asked *a, const char *function, weft_args args, const weft_rpc_options *options,
                 weft_values **out)
{
    weft_error *error = NULL;
    weft_rpc_options how = options ? *options : (weft_rpc_options){0};
    how.timeout_ms = BOUND_MS;
    how.error = &error;
    *out = NULL;
    weft_status status = weft_rpc_sync(a->agent, weft_to_rank(a->to), function, args, &how, out);
    bool well = went_well(function, status, error, a->may_fail);
    weft_error_unref(error);
    return well;
}

static bool gives_i64(const asked *a, const char *function, weft_args args, int64_t wanted)
{
    weft_values *values;
    int64_t number;
    if (!call(a, function, args, NULL, &values))
        return false;
    MUST_OK(weft_values_get_i64(values, 0, &number));
    MUST(number == wanted);
    weft_values_unref(values);
    return true;
}

static bool small(const asked *a)
{
    return gives_i64(a, "echo", WEFT_VALUES(weft_of_i64(5), weft_of_string("five")), 5);
}

static bool large_argument(const asked *a)
{
    return gives_i64(a, "sum", WEFT_VALUES(weft_of_tensor(shared.big)), (int64_t)BIG * (BIG - 1) / 2);
}

static bool large_result(const asked *a)
{
    weft_values *values;
    weft_tensor *x;
    if (!call(a, "big", WEFT_VALUES(weft_of_i64(BIG)), NULL, &values))
        return false;
    MUST_OK(weft_values_get_tensor(values, 0, &x));
    MUST(sum_of(x) == (int64_t)BIG * (BIG - 1) / 2);
    weft_values_unref(values);
    return true;
}

static bool landing(const asked *a)
{
    weft_values *values;
    weft_tensor *place = a->to == VICTIM ? tensor_zeros(weft_tensor_shape(shared.big), WEFT_DTYPE_INT32) : shared.place;
    weft_rpc_options options = {.land = {&place, 1}};
    MUST(place);
    memset(weft_tensor_data(place), 0, weft_tensor_nbytes(place));
    bool well = call(a, "big", WEFT_VALUES(weft_of_i64(BIG)), &options, &values);
    if (well)
        MUST(sum_of(place) == (int64_t)BIG * (BIG - 1) / 2);
    weft_values_unref(values);
    if (place != shared.place)
        weft_tensor_unref(place);
    return well;
}

static void on_item(const weft_values *part, void *arg)
{
    atomic_int *count = arg;
    int64_t number;
    MUST_OK(weft_values_get_i64(part, 0, &number));
    MUST(number == atomic_fetch_add(count, 1));
}

static bool parts(const asked *a)
{
    weft_values *values;
    atomic_int count = 0;
    weft_rpc_options options = {.on_item = on_item, .item_arg = &count};
    bool well = call(a, "stream", WEFT_NO_VALUES, &options, &values);
    MUST(!well || atomic_load(&count) == PARTS);
    weft_values_unref(values);
    return well;
}

/* Made there, fetched, passed on to a third, let go. */
static bool remote(const asked *a)
{
    weft_rref *rref;
    int64_t number = 0;
    weft_error *error = NULL;
    weft_rpc_options options = {.timeout_ms = BOUND_MS, .error = &error};
    weft_status status = weft_rpc_remote(a->agent, weft_to_rank(a->to), "echo",
                                         WEFT_VALUES(weft_of_i64(9), weft_of_string("nine")), &options, &rref);
    bool well = went_well("remote", status, error, a->may_fail);
    weft_error_unref(error);
    if (!well)
        return false;
    weft_future *here = NULL;
    status = weft_rref_to_here_async(rref, BOUND_MS, &here);
    if (!status)
        status = weft_future_wait(here, BOUND_MS);
    well = went_well("to_here", status, here ? weft_future_error(here) : NULL, a->may_fail);
    if (well)
        MUST(weft_values_get_i64(weft_future_values(here), 0, &number) == WEFT_OK && number == 9);
    weft_future_unref(here);
    asked third = {.agent = a->agent, .to = SIZE - a->to - weft_agent_rank(a->agent), .may_fail = a->may_fail};
    well = gives_i64(&third, "fetch", WEFT_VALUES(weft_of_rref(rref)), 9) && well;
    weft_rref_unref(rref);
    return well;
}

/* A value of ours that the other fetches. */
static bool own_reference(const asked *a)
{
    weft_rref *rref;
    weft_status status = weft_rref_create(a->agent, weft_of_i64(4), &rref, NULL);
    if (!went_well("rref", status, NULL, a->may_fail))
        return false;
    bool well = gives_i64(a, "fetch", WEFT_VALUES(weft_of_rref(rref)), 4);
    weft_rref_unref(rref);
    return well;
}

static bool to_both(const asked *a)
{
    int me = weft_agent_rank(a->agent);
    weft_target to[] = {weft_to_rank(a->to), weft_to_rank(SIZE - a->to - me)};
    weft_rpc_options options = {.timeout_ms = BOUND_MS};
    weft_future *all;
    weft_status status =
        weft_rpc_multicast(a->agent, to, 2, "sum", WEFT_VALUES(weft_of_tensor(shared.big)), &options, &all);
    if (!went_well("multicast", status, NULL, a->may_fail))
        return false;
    status = weft_future_wait(all, BOUND_MS);
    bool well = went_well("multicast's end", status, weft_future_error(all), a->may_fail);
    weft_future *const *each = well ? weft_future_payload(all) : NULL;
    for (int i = 0; each && i < 2; i++) {
        const weft_error *error = weft_future_error(each[i]);
        well = went_well("one of many", error ? weft_error_code(error) : WEFT_OK, error, a->may_fail) && well;
    }
    weft_future_unref(all);
    return well;
}

static bool at_home(const asked *a)
{
    asked self = {.agent = a->agent, .to = weft_agent_rank(a->agent), .may_fail = a->may_fail};
    return large_argument(&self) && parts(&self);
}

/* ---- The programs ------------------------------------------------------------------------------------------------ */

static bool (*const kinds[])(const asked *) = {small,  large_argument, large_result, landing, parts,
                                               remote, own_reference,  to_both,      at_home};
enum { KINDS = sizeof(kinds) / sizeof(*kinds) };

static void befriend(weft_agent *agent)
{
    for (int i = 0; !atomic_load(&shared.over); i++) {
        /* What begins while there is plenty may meet want. */
        asked a = {.agent = agent, .to = VICTIM, .may_fail = true};
        (void)kinds[i % KINDS](&a);
        atomic_fetch_add(&shared.rounds, 1);
        world_sleep_ms(shared.w, 1);
    }
}

static void stand_by(weft_agent *agent)
{
    for (int i = 0; !atomic_load(&shared.over); i++) {
        asked a = {.agent = agent, .to = FRIEND};
        (void)(i % 8 ? small(&a) : large_argument(&a));
        world_sleep_ms(shared.w, 3);
    }
}

static void all_kinds(weft_agent *agent, bool may_fail)
{
    for (int i = 0; i < KINDS; i++) {
        asked a = {.agent = agent, .to = i % 2 ? FRIEND : BYSTANDER, .may_fail = may_fail};
        bool well = kinds[i](&a);
        if (may_fail) {
            shared.failures += !well;
            shared.good += well;
        }
    }
}

/* The nth request is refused, or each nth; then there is plenty again. Returns how many were. */
static uint64_t in_want(weft_agent *agent, uint64_t nth, bool again)
{
    no_memory_refuse(VICTIM, nth, again);
    all_kinds(agent, true);
    uint64_t refused = no_memory_end();
    all_kinds(agent, false);
    return refused;
}

/* Where time is real not every one, but others each time. */
static void suffer(weft_agent *agent)
{
    bool real = shared.w->fabric != WORLD_SIM;
    uint64_t seed = (uint64_t)(uintptr_t)agent >> 4, step = real ? 9 : 1, stride = real ? 7 : 1;
    all_kinds(agent, false);
    for (uint64_t nth = real ? 1 + seed % step : 1, spared = 0; spared < 3; nth += step)
        spared = in_want(agent, nth, false) ? 0 : spared + 1;
    for (uint64_t nth = 1; nth <= 40; nth += stride)
        (void)in_want(agent, nth, true);
    MUST(shared.failures && shared.good);
    atomic_store(&shared.over, true);
}

static void program(weft_agent *agent, void *arg)
{
    if (weft_agent_rank(agent) == VICTIM)
        suffer(agent);
    else if (weft_agent_rank(agent) == FRIEND)
        befriend(agent);
    else
        stand_by(agent);
    MUST(weft_agent_alive(agent, FRIEND) && weft_agent_alive(agent, VICTIM) && weft_agent_alive(agent, BYSTANDER));
}

static void adjust(weft_agent_options *options, void *arg)
{
    options->leaks_fail = true;
    options->threads = 2;
    no_memory_is_worker(options->rank);
}

static void run_on(world_fabric fabric)
{
    world w = {
        .fabric = fabric, .size = SIZE, .seed = 7, .program = program, .adjust = adjust, WORLD_FUNCTIONS(functions)};
    memset(&shared, 0, sizeof(shared));
    shared.w = &w;
    shared.big = tensor_arange(BIG, WEFT_DTYPE_INT32);
    shared.place = tensor_zeros(weft_tensor_shape(shared.big), WEFT_DTYPE_INT32);
    world_run(&w);
    printf("%s: %llu of %llu calls in want failed; %llu calls came in\n", world_fabric_name(fabric),
           (unsigned long long)shared.failures, (unsigned long long)(shared.failures + shared.good),
           (unsigned long long)shared.rounds);
    weft_tensor_unref(shared.big);
    weft_tensor_unref(shared.place);
}

static void on_sim(void **state)
{
    run_on(WORLD_SIM);
}

static void on_tcp(void **state)
{
    run_on(WORLD_TCP);
}

UNIT_MAIN(on_sim, on_tcp)
