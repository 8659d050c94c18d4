/* SPDX-License-Identifier: Apache-2.0 */
/* staging.c - waits, without a thread, for the copies of a body between devices and page-locked memory. */
#include "rpc/payload/staging.h"

#include "base/alloc.h"

#include <sched.h>
#include <stdlib.h>

#define ASK_MS 100 /* CUDA does not tell the end of work after an error of the device */

/* On a thread of the CUDA driver, or another. */
static void copies_ended(wfi_copies *copies, weft_status status)
{
    wfi_staging *staging = wfi_container_of(copies, wfi_staging, copies);
    staging->status = status;
    atomic_store(&staging->has_ended, true);
    if (!staging->agent->options.values.sim) /* a thread of the driver must not wake fibers: there ask_timer does */
        wfi_progress_ready(&staging->agent->net->progress);
}

static bool is_due(wfi_progress_hook *hook)
{
    return atomic_load(&wfi_container_of(hook, wfi_staging, hook)->has_ended);
}

/* After this the driver's thread touches neither the staging nor the agent. */
static void release(wfi_task *task)
{
    wfi_staging *staging = wfi_container_of(task, wfi_staging, release);
    weft_agent *agent = staging->agent;
    wfi_copies_fini(&staging->copies);
    if (staging->then)
        staging->then(staging->owner);
    wfi_staging_unref(staging);
    wfi_agent_leave(agent);
}

static void finish(wfi_progress_hook *hook)
{
    wfi_staging *staging = wfi_container_of(hook, wfi_staging, hook);
    weft_agent *agent = staging->agent;
    staging->waiters_called = true;
    wfi_list_remove(&staging->link);
    if (staging->status && staging->from >= 0)
        wfi_agent_log(agent, WEFT_LOG_ERROR, staging->call_id,
                      "tensors of rank %d could not be copied to a device, and their call has gone on: %s",
                      staging->from, weft_status_text(staging->status));
    while (!wfi_list_empty(&staging->waiters)) {
        wfi_stage_waiter *waiter = wfi_container_of(staging->waiters.next, wfi_stage_waiter, link);
        wfi_list_remove(&waiter->link);
        waiter->run(waiter, staging->status);
    }
    (void)wfi_agent_enter(agent); /* it is open: closing waits for all copies */
    wfi_net_defer(agent->net, &staging->release, WFI_DEFER_RELEASE);
}

wfi_staging *wfi_staging_create(weft_agent *agent, wfi_storage *memory)
{
    wfi_staging *staging = wfi_calloc(1, sizeof(*staging));
    if (!staging)
        return NULL;
    atomic_init(&staging->refs, 1);
    atomic_init(&staging->has_ended, false);
    staging->agent = wfi_agent_ref(agent);
    staging->from = -1;
    staging->memory = wfi_storage_ref(memory);
    atomic_fetch_add(&agent->staged_bytes, wfi_storage_size(memory));
    wfi_list_init(&staging->link);
    wfi_list_init(&staging->waiters);
    wfi_list_init(&staging->hook.link);
    staging->hook.is_due = is_due;
    staging->hook.run = finish;
    staging->release.run = release;
    wfi_copies_begin(&staging->copies, copies_ended);
    return staging;
}

/* ---- Asking the devices ------------------------------------------------------------------------------------------ */

static void ask_later(weft_agent *agent)
{
    uint64_t soon = wfi_deadline(wfi_net_clock(agent->net), ASK_MS);
    if (agent->asks_devices || agent->stopped || wfi_list_empty(&agent->stagings))
        return;
    agent->asks_devices = wfi_net_timer_set(agent->net, &agent->ask_timer, soon) == WEFT_OK;
}

static void ask_devices(wfi_task *task)
{
    weft_agent *agent = wfi_container_of(task, weft_agent, ask_task);
    (void)wfi_copies_poll();
    wfi_net_lock(agent->net);
    agent->asks_devices = false;
    ask_later(agent);
    wfi_net_unlock(agent->net);
    wfi_agent_leave(agent);
}

static void ask_timer_fired(wfi_timer *timer)
{
    weft_agent *agent = wfi_container_of(timer, weft_agent, ask_timer);
    if (agent->stopped || !wfi_agent_enter(agent))
        return;
    agent->ask_task.run = ask_devices;
    wfi_net_defer(agent->net, &agent->ask_task, WFI_DEFER_RELEASE);
}

void wfi_staging_start(wfi_staging *staging)
{
    weft_agent *agent = staging->agent;
    wfi_net_lock(agent->net);
    bool is_late = agent->stopped; /* a handler that runs while the agent stops: nobody would notice the end */
    if (!is_late) {
        wfi_staging_ref(staging);
        wfi_list_push_back(&agent->stagings, &staging->link);
        wfi_progress_hook_add(&agent->net->progress, &staging->hook);
        agent->ask_timer.fire = ask_timer_fired;
        ask_later(agent);
    }
    wfi_net_unlock(agent->net);
    wfi_copies_end(&staging->copies);
    if (!is_late)
        return;
    while (!atomic_load(&staging->has_ended)) {
        (void)wfi_copies_poll();
        sched_yield();
    }
    wfi_copies_fini(&staging->copies);
    staging->status = WEFT_ERR_CLOSED;
    staging->waiters_called = true;
}

void wfi_staging_await_all(weft_agent *agent)
{
    wfi_net_lock(agent->net);
    while (!wfi_list_empty(&agent->stagings)) {
        wfi_staging *staging = wfi_container_of(agent->stagings.next, wfi_staging, link);
        if (is_due(&staging->hook)) {
            wfi_progress_hook_remove(&agent->net->progress, &staging->hook);
            finish(&staging->hook);
        }
        wfi_net_unlock(agent->net); /* runs what was deferred */
        (void)wfi_copies_poll();
        sched_yield();
        wfi_net_lock(agent->net);
    }
    while (!wfi_net_is_released(agent->net)) { /* another thread runs `release` */
        wfi_net_unlock(agent->net);
        sched_yield();
        wfi_net_lock(agent->net);
    }
    wfi_net_unlock(agent->net);
}

/* ---- Users ------------------------------------------------------------------------------------------------------- */

wfi_staging *wfi_staging_ref(wfi_staging *staging)
{
    atomic_fetch_add(&staging->refs, 1);
    return staging;
}

void wfi_staging_unref(wfi_staging *staging)
{
    if (!staging || atomic_fetch_sub(&staging->refs, 1) != 1)
        return;
    weft_agent *agent = staging->agent;
    atomic_fetch_sub(&agent->staged_bytes, wfi_storage_size(staging->memory));
    wfi_storage_unref(staging->memory);
    free(staging);
    if (wfi_agent_enter_locked(agent)) {
        WFI_FOR_LIST (wfi_parker, waiting, &agent->room_waiters, link)
            wfi_unpark(waiting);
        wfi_agent_leave_locked(agent);
    }
    wfi_agent_unref(agent);
}

bool wfi_staging_await(wfi_staging *staging, wfi_stage_waiter *waiter)
{
    wfi_assert_held(wfi_net_mutex(staging->agent->net));
    if (staging->waiters_called)
        return false;
    wfi_list_push_back(&staging->waiters, &waiter->link);
    return true;
}

bool wfi_staging_then(wfi_staging *staging, void (*then)(void *owner), void *owner)
{
    wfi_assert_held(wfi_net_mutex(staging->agent->net));
    if (staging->waiters_called)
        return false;
    staging->then = then;
    staging->owner = owner;
    return true;
}

weft_status wfi_stage(const wfi_encoded *body, weft_agent *agent, wfi_staging **out)
{
    if (!wfi_encoded_leaves_device(body))
        return WEFT_OK;
    *out = wfi_staging_create(agent, body->devices->staged);
    if (!*out)
        return WEFT_ERR_MEMORY;
    weft_status status = wfi_encode_copy(body, &(*out)->copies);
    wfi_staging_start(*out);
    return status;
}
