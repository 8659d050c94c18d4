/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.h - limits the memory that other workers can make this one hold: memory_budget_bytes.
 *
 * agent->held_bytes counts:
 *   - each call of another worker: its structs, from its first message on, and its arguments, unless these land in
 *     places of the user's;
 *   - its results and items, while they are being sent or kept for the caller;
 *   - messages for operations of groups, or for groups, that do not exist here yet (coll/early.c);
 *   - gradients of backward passes, until the pass is over here; the records of passes that others began, and the
 *     working memory of such a pass (dist).
 *
 * Arguments are charged before memory is allocated for them, and refused if they do not fit: no call waits for memory.
 * Results exist already, so they are charged and never refused, but the results kept for one caller are limited
 * (wfi_budget_keep).
 *
 * A batch charges two things that belong to no call: rows allocated beforehand (only as many as fit the budget), and
 * the copies that it makes when it begins. The copies are never refused; they are at most as large as the arguments of
 * the batches that run.
 *
 * A backward pass that receives its gradients releases memory that its handlers hold. So messages with gradients may
 * exceed the budget (wfi_budget_admit_reserved). Their total is at most the budget or, if that is more, the allowance
 * that dist computes from the tensors that this worker itself had sent under its contexts (dist/pass_calls.c).
 *
 * The working memory of passes that others began may exceed the budget likewise (wfi_budget_admit_work). Its total is
 * at most the budget, but one pass over each context is always accepted.
 *
 * A call whose arguments fit a message may exceed the budget by 1/8, so that a call that frees memory is accepted. A
 * refused call is charged until its caller has acknowledged the refusal. When more than 5/4 of the budget is held
 * besides gradients (wfi_budget_is_exhausted), calls are refused and nothing is kept of them (server/refuse.c). So a
 * caller that acknowledges nothing is limited too, and the answer of an accepted call can always be kept.
 *
 * All [agent lock].
 */
#ifndef WFI_BUDGET_H
#define WFI_BUDGET_H

#include "rpc/agent/agent.h"

/* The bytes charged for a call of another worker, from its first message on. */
typedef struct wfi_charge {
    weft_agent *agent;
    int from;        /* the caller's rank */
    size_t call;     /* bytes of the call itself */
    size_t whole;    /* bytes of the call and its arguments */
    size_t reserved; /* of the arguments, bytes accepted by wfi_budget_admit_reserved */
    size_t kept;     /* bytes of its results, which are also in the caller's kept_bytes */
} wfi_charge;

/* Charges `bytes` for the call itself, even if the budget is used up. */
void wfi_budget_charge(wfi_charge *charge, uint64_t bytes);
/* Charges `bytes` of arguments if they fit. WEFT_ERR_BUSY, or WEFT_ERR_TOO_LARGE if they never will; `problem` then
 * says why. */
weft_status wfi_budget_admit(wfi_charge *charge, uint64_t bytes, char *problem, size_t room);
/* The same for a call of a backward pass. If the budget is used up, accepts it as long as all bytes accepted by this
 * function, including `bytes`, are at most the budget or `allowance`. */
weft_status wfi_budget_admit_reserved(wfi_charge *charge, uint64_t bytes, uint64_t allowance, char *problem,
                                      size_t room);
/* Whether wfi_budget_admit_reserved would accept `bytes` without an allowance. */
bool wfi_budget_has_reserved_room(const weft_agent *agent, uint64_t bytes);
/* Takes up to `bytes` of those accepted by wfi_budget_admit_reserved out of the charge. They remain counted: the caller
 * passes the result to wfi_budget_release_reserved later. */
size_t wfi_budget_take_over(wfi_charge *charge, size_t bytes);
void wfi_budget_release_reserved(weft_agent *agent, size_t bytes);
/*
 * Charges `bytes` of working memory for a pass that another worker began. Accepts them if `always`, or if all bytes
 * accepted by this function, including `bytes`, are at most the budget. WEFT_ERR_BUSY otherwise; `problem` then says
 * why.
 */
weft_status wfi_budget_admit_work(weft_agent *agent, uint64_t bytes, bool always, char *problem, size_t room);
void wfi_budget_release_work(weft_agent *agent, size_t bytes);
/* Held bytes without those accepted by wfi_budget_admit_reserved and wfi_budget_admit_work. Groups use it, because a
 * refusal ends a group permanently. */
static inline size_t wfi_budget_unreserved(const weft_agent *agent)
{
    return agent->held_bytes - agent->reserved_bytes - agent->work_bytes;
}
/* Ends the charge for the arguments, which were freed; the call itself remains charged. */
void wfi_budget_release_arguments(wfi_charge *charge);
/* Charges an answer of `bytes` that is kept for the caller. False if that would exceed the limit of one caller; then a
 * short error, which may be sent instead, is charged. */
bool wfi_budget_keep(wfi_charge *charge, uint64_t bytes);
/* Whether so much is held that nothing may be kept of a refused call: server/refuse.c. */
bool wfi_budget_is_exhausted(const weft_agent *agent);
/* Counts `bytes` that belong to no call: items of results, whose number is bounded; early messages, if the caller of
 * this function has checked that they fit; records of a pass. May be negative. */
void wfi_budget_keep_item(weft_agent *agent, int64_t bytes);
/* The call is over: ends the whole charge. */
void wfi_budget_release(wfi_charge *charge);

#endif
