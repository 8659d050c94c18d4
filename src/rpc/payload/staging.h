/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - the copies of one body between devices and page-locked memory, for which no thread waits.
 *
 * The tensors of a body that is sent are copied to page-locked memory before the message is made; those of a body that
 * has arrived are copied from there to their devices. When the copies have ended, a progress hook notices it, and calls
 * the waiters. A device that fails may never tell the end, so the agent also asks it from time to time.
 *
 * LOCK. The agent's, unless a function says otherwise. LIFETIME. Counted; the copies count as one user until they have
 * ended. Closing the agent waits for all of them (wfi_staging_await_all).
 */
#ifndef WFI_STAGING_H
#define WFI_STAGING_H

#include "mem/copies.h"
#include "rpc/agent/agent.h"
#include "value/encode.h"

/* Embedded in the waiting object. */
typedef struct wfi_stage_waiter {
    wfi_list link; /* in wfi_staging.waiters */
    void (*run)(struct wfi_stage_waiter *waiter, weft_status status);
} wfi_stage_waiter;

typedef struct wfi_staging {
    atomic_int refs;
    weft_agent *agent;
    wfi_copies copies;
    wfi_storage *memory; /* page-locked; not used again before the copies have ended */
    int from; /* the rank that sent the tensors, if they arrived: then a failure is logged. -1: a waiter reports it */
    uint64_t call_id;   /* for the log */
    weft_status status; /* of the copies; set before `has_ended` */
    atomic_bool has_ended;
    bool waiters_called;
    void (*then)(void *owner); /* called after the waiters, without the lock; NULL: nothing */
    void *owner;
    wfi_list link; /* agent->stagings */
    wfi_list waiters;
    wfi_progress_hook hook;
    wfi_task release;
} wfi_staging;

/* The caller adds copies to `copies`, and then calls wfi_staging_start, even after a failure. NULL: no memory. Any
 * thread, the agent entered. */
wfi_staging *wfi_staging_create(weft_agent *agent, wfi_storage *memory);
/* If the agent has stopped, it waits for the copies, and their status is WEFT_ERR_CLOSED. Not locked, the agent
 * entered. */
void wfi_staging_start(wfi_staging *staging);
/* Before a body is sent: begins to copy its tensors that are on devices. If it has none, *out is unchanged. When the
 * copies have ended, call wfi_encode_copied, and then wfi_outbound_publish. Release *out also after a failure. Not
 * locked, the agent entered. */
weft_status wfi_stage(const wfi_encoded *body, weft_agent *agent, wfi_staging **out);
wfi_staging *wfi_staging_ref(wfi_staging *staging);
void wfi_staging_unref(wfi_staging *staging); /* not locked; NULL is a no-op */

/* False: the copies have ended, with staging->status. Otherwise the waiter will be called. */
bool wfi_staging_await(wfi_staging *staging, wfi_stage_waiter *waiter);
/* The same for `then`, which is called without the lock, with the agent entered. Only once. */
bool wfi_staging_then(wfi_staging *staging, void (*then)(void *owner), void *owner);
static inline void wfi_stage_waiter_leave(wfi_stage_waiter *waiter) /* no-op if it does not wait */
{
    wfi_list_remove(&waiter->link);
}
/* Waits for all copies of the agent. Net has stopped. Not locked. */
void wfi_staging_await_all(weft_agent *agent);

#endif
