/* SPDX-License-Identifier: Apache-2.0 */
/* agent.c - opens an agent (options, components, executor, net, in this order) and ends it. */
#include "rpc/agent/agent.h"
#include "rpc/agent/notify.h"

#include "base/alloc.h"
#include "base/error.h"
#include "base/text/log.h"
#include "base/text/sized.h"
#include "job/launch/launch.h"
#include "topo/memory.h"
#include "topo/quota.h"
#include "topo/topo.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static _Atomic int agents; /* of this process */

#define LONG_HANDLER_MS 1000 /* a handler that runs longer than this while the agent ends is logged */

/* Memory of ended agents, for later ones. It is never freed, and the last SPARES_MIN of them stay as they are. So a
 * thread that ends an agent which another thread has just ended finds the word of an ended one. */
#define SPARES_MIN 64
static pthread_mutex_t spare_lock = PTHREAD_MUTEX_INITIALIZER;
static wfi_list spare_agents = {&spare_agents, &spare_agents}; /* the oldest first */
static size_t spare_count;

/* ---- Reference counting ------------------------------------------------------------------------------------------ */

weft_agent *wfi_agent_ref(weft_agent *agent)
{
    atomic_fetch_add_explicit(&agent->refs, 1, memory_order_relaxed);
    return agent;
}

void wfi_agent_unref(weft_agent *agent)
{
    if (atomic_fetch_sub_explicit(&agent->refs, 1, memory_order_acq_rel) != 1)
        return;
    wfi_functions_fini(agent);
    wfi_notifications_fini(agent);
    pthread_mutex_destroy(&agent->function_lock);
    WFI_FOR_COMPONENTS (component, free)
        component->free(agent);
    wfi_names_fini(agent);
    wfi_devices_fini(&agent->devices);
    wfi_cores_destroy(agent->cores);
    free(agent->peers);
    pthread_mutex_lock(&spare_lock);
    wfi_list_push_back(&spare_agents, &agent->open_link);
    spare_count++;
    pthread_mutex_unlock(&spare_lock);
    atomic_fetch_sub(&agents, 1);
}

static weft_agent *make_agent(void)
{
    pthread_mutex_lock(&spare_lock);
    wfi_list *spare = spare_count > SPARES_MIN ? wfi_list_pop_front(&spare_agents) : NULL;
    spare_count -= spare != NULL;
    pthread_mutex_unlock(&spare_lock);
    weft_agent *agent = spare ? wfi_container_of(spare, weft_agent, open_link) : wfi_calloc(1, sizeof(*agent));
    if (!agent)
        return NULL;
    memset(agent, 0, sizeof(*agent));
    WFI_HANDLE_INIT(agent);
    atomic_init(&agent->refs, 1);
    atomic_fetch_add(&agents, 1);
    pthread_mutex_init(&agent->function_lock, NULL);
    wfi_map_init(&agent->functions);
    wfi_map_init(&agent->calls);
    wfi_map_init(&agent->found_names);
    wfi_map_init(&agent->given_names);
    wfi_list_init(&agent->retries);
    wfi_list_init(&agent->stagings);
    wfi_list_init(&agent->room_waiters);
    wfi_list_init(&agent->membership.events);
    wfi_list_init(&agent->spare_notifications);
    agent->probe_timer.reserved = true;
    return agent;
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

static weft_status register_users(weft_agent *agent, size_t function_size, weft_error **error)
{
    const weft_agent_options *options = &agent->options.values;
    weft_status status = WEFT_OK;
    if (!options->functions && options->function_count) {
        *error = weft_error_create(WEFT_ERR_INVALID, "functions is NULL with a function_count of %zu",
                                   options->function_count);
        return WEFT_ERR_INVALID;
    }
    for (size_t i = 0; i < options->function_count && !status; i++) {
        weft_function own;
        const void *given = (const char *)options->functions + i * function_size;
        const weft_function *function = WFI_SIZED(given, function_size, &own);
        const char *name = function && function->name ? function->name : "(no name)";
        weft_error *why = NULL;
        status = function ? wfi_function_register_user(agent, function, &why)
                          : wfi_error_fail(&why, WEFT_ERR_INVALID, WFI_NEWER, "weft_function");
        if (status)
            *error = weft_error_create(status, "function %zu, \"%s\", cannot be registered: %s", i, name,
                                       why ? weft_error_message(why) : weft_status_text(status));
        weft_error_unref(why);
    }
    return status;
}

static void bind_worker(void *arg)
{
    const weft_agent *agent = arg;
    wfi_topo_bind_thread(agent->cores, agent->options.values.threads);
}

static weft_status make_executor(weft_agent *agent)
{
    const weft_agent_options *options = &agent->options.values;
    wfi_executor_options how = {.workers = options->threads,
                                .manual = options->no_threads,
                                .group = wfi_fiber_current() ? wfi_fiber_current()->group : options->rank,
                                .thread_name = "weft-work",
                                .thread_started = agent->cores ? bind_worker : NULL,
                                .started_arg = agent};
    if (options->sim)
        how.fibers = wfi_simulation->fibers(options->sim);
    return wfi_executor_create(&how, &agent->executor);
}

/* Handlers may run from here on, before opening has returned. */
static void on_joined(void *arg)
{
    weft_agent *agent = arg;
    int rank = wfi_net_rank(agent->net);
    wfi_options_set_identity(&agent->options, rank, wfi_net_member(agent->net, rank)->name);
    if (agent->options.values.sim)
        return;
    /* The job's processes on this machine share its cores; the launcher or, without one, the member table gives their
     * number. The agents of a process also share its memory. */
    wfi_net_lock(agent->net);
    int here = wfi_net_members_here(agent->net);
    wfi_net_unlock(agent->net);
    int ours = atomic_load(&agents); /* includes agents of other jobs: then the share is only an estimate */
    if (ours > here)
        ours = here;
    wfi_quota_set_processes((here + ours - 1) / ours);
    wfi_options_share(&agent->options, ours);
}

static const wfi_upcalls upcalls = {.joined = on_joined,
                                    .message = wfi_on_message,
                                    .peer_gone = wfi_on_peer_gone,
                                    .peer_unreachable = wfi_on_peer_unreachable,
                                    .peer_joined = wfi_on_peer_joined,
                                    .peer_leaving = wfi_on_peer_leaving,
                                    .peer_ending = wfi_on_peer_ending,
                                    .self_gone = wfi_on_self_gone,
                                    .passed = wfi_on_passed,
                                    .synced = wfi_on_synced,
                                    .probe = wfi_on_probe,
                                    .served = wfi_on_served,
                                    .terminated = wfi_on_terminated,
                                    .awaited = wfi_on_awaited};

static weft_status open_net(weft_agent *agent, weft_error **error)
{
    wfi_net_options how = {.agent = &agent->options.values,
                           .upcalls = &upcalls,
                           .arg = agent,
                           .executor = agent->executor,
                           .cores = agent->cores,
                           .sim = agent->options.values.sim,
                           .store_fd = agent->options.store_fd,
                           .port_count = agent->options.port_count,
                           .processes = agent->options.processes,
                           .is_spawned = agent->options.is_spawned};
    agent->options.store_fd = -1; /* now owned by net */
    weft_status status = wfi_net_open(&how, &agent->net, error);
    wfi_options_wipe(&agent->options);
    if (!status)
        wfi_forks_watch(agent);
    return status;
}

static void close_components(weft_agent *agent)
{
    WFI_FOR_COMPONENTS (component, close)
        component->close(agent);
}

/* *out: the options; *bootstrap: the functions to which they point. */
static weft_status take_options(const weft_agent_options *given, size_t size, size_t bootstrap_size,
                                weft_agent_options *out, weft_bootstrap *bootstrap, weft_error **error)
{
    const weft_agent_options *options = WFI_SIZED(given, size, out);
    if (!options)
        return wfi_error_fail(error, WEFT_ERR_INVALID, WFI_NEWER, "weft_agent_options");
    *out = *options;
    if (!out->bootstrap)
        return WEFT_OK;
    out->bootstrap = WFI_SIZED(out->bootstrap, bootstrap_size, bootstrap);
    return out->bootstrap ? WEFT_OK : wfi_error_fail(error, WEFT_ERR_INVALID, WFI_NEWER, "weft_bootstrap");
}

static weft_status open_parts(weft_agent *agent, const weft_agent_options *options, size_t function_size,
                              weft_error **error)
{
    weft_status status = wfi_options_resolve(options, &agent->options, error);
    if (!status)
        status = wfi_devices_init(&agent->options.values, &agent->devices, error);
    if (status)
        return status;
    size_t world_size = (size_t)agent->options.values.world_size;
    agent->call_timeout_ms = agent->options.values.call_timeout_ms;
    agent->terminated = wfi_future_create(NULL, NULL);
    wfi_net_random_bytes(agent->options.values.sim, &agent->hash_key, sizeof(agent->hash_key));
    agent->peers = wfi_calloc(world_size, sizeof(*agent->peers));
    for (size_t rank = 0; agent->peers && rank < world_size; rank++)
        wfi_map_init_keyed(&agent->peers[rank].serving, &agent->hash_key);
    if (!agent->peers || !agent->terminated)
        return WEFT_ERR_MEMORY;
    agent->cores = wfi_binding_of(&agent->options.values);
    wfi_numa_set_preferred(wfi_cores_numa_node(agent->cores));
    WFI_FOR_COMPONENTS (component, open)
        status = status ? status : component->open(agent, error);
    if (!status)
        status = register_users(agent, function_size, error);
    if (!status)
        status = make_executor(agent);
    if (!status)
        status = open_net(agent, error);
    return status;
}

static void stop_from_outside(weft_agent *agent);

weft_status weft_agent_open_sized(const weft_agent_options *given, size_t size, size_t function_size,
                                  size_t bootstrap_size, weft_agent **out, weft_error **detail)
{
    weft_error *error = NULL;
    weft_agent_options options = {0};
    weft_bootstrap bootstrap;
    if (!out) {
        if (detail)
            *detail = weft_error_create(WEFT_ERR_INVALID, "weft_agent_open: out is NULL");
        return wfi_refuse_null("weft_agent_open", "out");
    }
    weft_agent *agent = make_agent();
    weft_status status =
        agent ? take_options(given, size, bootstrap_size, &options, &bootstrap, &error) : WEFT_ERR_MEMORY;
    if (!status)
        status = open_parts(agent, &options, function_size, &error);
    bool has_joined = !status;
    WFI_FOR_COMPONENTS (component, begin)
        status = status ? status : component->begin(agent, &error);
    if (has_joined && status) {
        stop_from_outside(agent); /* net is open */
        agent = NULL;
    }
    if (options.job)
        wfi_job_opened(options.job, status != WEFT_OK);
    if (!status) {
        *out = agent;
        return WEFT_OK;
    }
    if (!error)
        error = weft_error_create(status, "the agent could not be opened: %s", weft_status_text(status));
    int rank = options.has_rank ? options.rank : -1;
    if (!detail) { /* a caller that does not take the error finds it in the log */
        wfi_log_in(&(wfi_log_context){.rank = rank}, WEFT_LOG_ERROR, "weft_agent_open: %s", weft_error_message(error));
        wfi_status_logged(status);
    }
    wfi_error_give(detail, error);
    if (!agent)
        return status;
    if (agent->options.store_fd > 0)
        close(agent->options.store_fd);
    wfi_options_wipe(&agent->options);
    wfi_executor_destroy(agent->executor);
    close_components(agent);
    weft_future_unref(agent->terminated);
    wfi_agent_unref(agent);
    return status;
}

/* ---- Ending ------------------------------------------------------------------------------------------------------ */

/* Logs that handlers run which delay the end, if they go on for LONG_HANDLER_MS. In the simulation, and without
 * threads, none runs now. */
static void log_running(weft_agent *agent)
{
    const wfi_clock *clock = &wfi_clock_real;
    if (agent->options.values.sim || agent->options.values.no_threads)
        return;
    for (uint64_t until_ns = wfi_deadline(clock, LONG_HANDLER_MS); !wfi_executor_idle(agent->executor);) {
        if (wfi_now(clock) < until_ns) {
            usleep(1000);
            continue;
        }
        wfi_agent_log(agent, WEFT_LOG_WARN, 0,
                      "handlers or continuations still run: the agent ends when they have returned. One that never "
                      "returns ends only with the process (_exit)");
        return;
    }
}

/* Nothing new starts, everything outstanding fails. Then stops net and the executor, closes net, and frees the
 * tables. */
static void stop_from_outside(weft_agent *agent)
{
    WFI_FOR_COMPONENTS (component, hide)
        component->hide(agent);
    wfi_net_lock(agent->net);
    agent->stopped = true;
    if (agent->served)
        wfi_complete_future(agent->served, NULL, NULL); /* weft_agent_serve on another thread */
    WFI_FOR_COMPONENTS (component, end)
        component->end(agent);
    WFI_FOR_COMPONENTS (component, fail)
        component->fail(agent, WEFT_ERR_CLOSED, "this worker closed its agent");
    wfi_net_timer_clear(agent->net, &agent->probe_timer);
    wfi_net_timer_clear(agent->net, &agent->await_timer);
    wfi_net_timer_clear(agent->net, &agent->overload_timer);
    wfi_net_timer_clear(agent->net, &agent->ask_timer);
    wfi_net_unlock(agent->net);
    wfi_net_stop(agent->net);
    WFI_FOR_COMPONENTS (component, drain)
        component->drain(agent);
    log_running(agent);
    wfi_executor *executor = wfi_executor_ref(agent->executor); /* late users may still make futures */
    wfi_executor_destroy(executor);
    atomic_store(&agent->closed, true);
    while (atomic_load(&agent->late_users))
        sched_yield();
    wfi_executor_unref(executor);
    wfi_forks_forget(agent);
    wfi_net_close(agent->net);
    close_components(agent);
    wfi_membership_fini(agent);
    weft_future_unref(agent->terminated);
    WFI_HANDLE_END(agent);
    wfi_agent_unref(agent);
}

/* In a child of fork(2) the connections are the parent's: closing them there would end the parent's membership. */
static bool is_refused(const weft_agent *agent, const char *function)
{
    if (agent->forked)
        wfi_agent_log(agent, WEFT_LOG_ERROR, 0,
                      "%s does nothing in a child of fork(): agent and connections are the parent's; leave the child "
                      "by exec or _exit",
                      function);
    return agent->forked;
}

/* Of all threads that close or stop the agent at one time, one ends it. False: another one does; if this thread `stops`
 * the agent, that other one no longer waits. */
static bool become_ender(weft_agent *agent, bool stops)
{
    wfi_net_lock(agent->net);
    bool is_ender = !agent->has_ender;
    agent->has_ender = true;
    if (!is_ender && stops) {
        agent->stops = true;
        wfi_on_terminated(agent);
    }
    wfi_net_unlock(agent->net);
    return is_ender;
}

void weft_agent_stop(weft_agent *agent)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent || is_refused(agent, "weft_agent_stop") || !wfi_agent_enter(agent))
        return;
    bool is_inside = wfi_agent_is_inside(agent);
    bool is_ender = !is_inside && become_ender(agent, true);
    if (is_inside)
        wfi_agent_log(agent, WEFT_LOG_ERROR, 0,
                      "weft_agent_stop does nothing in a handler of the agent's own: it would wait for itself");
    wfi_agent_leave(agent);
    if (!is_ender)
        return;
    WFI_FOR_COMPONENTS (component, flush)
        component->flush(agent);
    stop_from_outside(agent);
}

weft_status weft_agent_close(weft_agent *agent, int64_t timeout_ms)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent)
        return WEFT_OK;
    if (is_refused(agent, "weft_agent_close") || !wfi_agent_enter(agent))
        return WEFT_ERR_STATE;
    weft_status status = WEFT_OK;
    if (wfi_agent_is_inside(agent))
        status = wfi_refuse(WEFT_ERR_DEADLOCK,
                            "weft_agent_close does nothing in a handler of the agent's own: it would wait "
                            "for itself");
    else if (!become_ender(agent, false))
        status = wfi_refuse(WEFT_ERR_STATE, "weft_agent_close: another thread closes or stops this agent");
    bool has_ended = !status && wfi_agent_await_end(agent, timeout_ms);
    wfi_agent_leave(agent);
    if (status)
        return status;
    if (!has_ended) {
        WFI_FOR_COMPONENTS (component, flush)
            component->flush(agent);
        status = WEFT_ERR_TIMEOUT;
    } else if (agent->stops) {
        status = WEFT_ERR_CLOSED;
    } else {
        status = weft_agent_status(agent);
        size_t leaks = 0;
        WFI_FOR_COMPONENTS (component, leaks)
            leaks += component->leaks(agent);
        if (status == WEFT_ERR_JOB_ENDED) /* the job was ended early: leaked objects are no error */
            status = WEFT_OK;
        else if (!status && leaks && agent->options.values.leaks_fail)
            status = WEFT_ERR_BUSY;
    }
    stop_from_outside(agent);
    return status;
}

weft_status weft_agent_end_job(weft_agent *agent, const char *why)
{
    WFI_CHECK_HANDLE(agent);
    if (!agent)
        return wfi_refuse_null("weft_agent_end_job", "the agent");
    if (agent->forked)
        return WEFT_ERR_STATE;
    if (wfi_agent_rank(agent) != 0) {
        wfi_agent_log(agent, WEFT_LOG_ERROR, 0, "weft_agent_end_job: this is rank %d: only rank 0 can end the job",
                      wfi_agent_rank(agent));
        return WEFT_ERR_STATE;
    }
    wfi_net_lock(agent->net);
    weft_status status = wfi_agent_usable(agent);
    if (!status)
        wfi_net_end_job(agent->net, why ? why : "");
    wfi_net_unlock(agent->net);
    return status == WEFT_ERR_JOB_ENDED ? WEFT_OK : status;
}
