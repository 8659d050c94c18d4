/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.h - what others can make this worker hold, against memory_budget_bytes.
 *
 * agent->held_bytes counts:
 *   - each call of another worker: its structs, from its first message on, and its arguments, unless these land in
 *     places of the user's;
 *   - its results and items, while they are on their way or kept for the caller;
 *   - what came for a group's operation, or for a group, that is not there yet (coll/early.c);
 *   - gradients of backward passes, until the pass is over here; the records of passes that others began, and what such
 *     a pass works with while it runs (dist).
 *
 * Arguments are admitted before memory is taken for them, and refused if they do not fit: nothing waits for room.
 * Results exist already, so they are counted and never refused. But one caller may leave only so much of them here
 * (wfi_budget_keep).
 *
 * A batch counts two things that no call is charged for: rows made beforehand (only as many as fit the budget), and the
 * copies that it makes when it begins. These are never refused; they are at most as large as the arguments of the
 * batches that run.
 *
 * A backward pass that gets its gradients releases what its handlers hold. So messages with gradients may exceed the
 * budget (wfi_budget_admit_reserved). Together they take at most the budget once more or, if that is more, the allowance
 * that dist computes from what this worker itself had sent under its contexts (dist/pass_calls.c).
 *
 * What passes that others began work with may exceed the budget likewise (wfi_budget_admit_work). Together it takes at
 * most the budget once more, and one pass over each context is always let in.
 *
 * A call whose arguments fit a message may exceed the budget by 1/8, so that a call that frees memory gets in. A call
 * that was refused counts until its caller has acknowledged the refusal. When more than 5/4 of the budget is held besides
 * gradients (wfi_budget_is_exhausted), calls are refused and nothing is kept of them (server/refuse.c). So a caller that
 * acknowledges nothing is bounded too, and the answer of a call that was let in can always be kept.
 *
 * All [agent lock].
 */
#ifndef WFI_BUDGET_H
#define WFI_BUDGET_H

#include "rpc/agent/agent.h"

/* What a call of another worker counts for, from its first message on. */
typedef struct wfi_charge {
    weft_agent *agent;
    int from;        /* its caller's rank */
    size_t call;     /* bytes of the call itself */
    size_t whole;    /* these and its arguments' */
    size_t reserved; /* of its arguments, what came by wfi_budget_admit_reserved */
    size_t kept;     /* its results', which count among its caller's */
} wfi_charge;

/* Counts `bytes` for the call itself, whatever is left. */
void wfi_budget_charge(wfi_charge *charge, uint64_t bytes);
/* Counts `bytes` of arguments if they fit. WEFT_ERR_BUSY, or WEFT_ERR_TOO_LARGE if they never will; `problem` then says
 * why. */
weft_status wfi_budget_admit(wfi_charge *charge, uint64_t bytes, char *problem, size_t room);
/* The same for a call of a backward pass. If the budget is full, it is let in while all that came by this function,
 * with `bytes`, is at most the budget, or `allowance`. */
weft_status wfi_budget_admit_reserved(wfi_charge *charge, uint64_t bytes, uint64_t allowance, char *problem,
                                      size_t room);
/* Whether it lets `bytes` in without any allowance. */
bool wfi_budget_has_reserved_room(const weft_agent *agent, uint64_t bytes);
/* Up to `bytes` of what came by wfi_budget_admit_reserved leave the charge. They still count: the caller passes the
 * result to wfi_budget_release_reserved later. */
size_t wfi_budget_take_over(wfi_charge *charge, size_t bytes);
void wfi_budget_release_reserved(weft_agent *agent, size_t bytes);
/*
 * Counts `bytes` that a pass which another worker began is about to allocate for itself. Lets them in if `always`, or if
 * all bytes that came by this function, with `bytes`, are at most the budget. WEFT_ERR_BUSY otherwise; `problem` then
 * says why.
 */
weft_status wfi_budget_admit_work(weft_agent *agent, uint64_t bytes, bool always, char *problem, size_t room);
void wfi_budget_release_work(weft_agent *agent, size_t bytes);
/* Returns what is held without the bytes that wfi_budget_admit_reserved and wfi_budget_admit_work let in. Groups use it,
 * since a refusal ends a group for good. */
static inline size_t wfi_budget_unreserved(const weft_agent *agent)
{
    return agent->held_bytes - agent->reserved_bytes - agent->work_bytes;
}
/* The arguments are gone; the call itself remains. */
void wfi_budget_release_arguments(wfi_charge *charge);
/* Counts an answer of `bytes` among what is kept for its caller. False: that would be over the bound of one caller;
 * then a short error is counted instead, and may be sent. */
bool wfi_budget_keep(wfi_charge *charge, uint64_t bytes);
/* Whether calls that bring nothing are too many to be kept until their refusals have arrived: server/refuse.c. */
bool wfi_budget_is_exhausted(const weft_agent *agent);
/* Counts `bytes` that no call is charged for: items of results, whose number is bounded; what came early, of which the
 * caller has seen that it fits; what is kept of a pass. May be negative. */
void wfi_budget_keep_item(weft_agent *agent, int64_t bytes);
/* The call is over: all of it. */
void wfi_budget_release(wfi_charge *charge);

#endif
