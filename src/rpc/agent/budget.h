/* SPDX-License-Identifier: Apache-2.0 */
/*
 * budget.h - what others can make this worker hold, against memory_budget_bytes.
 *
 * Three things count in agent->held_bytes: a call of another worker from its first message on, with the arguments that it
 * brings (not those that land in places of the user's own); results and parts that are on their way or kept for a caller.
 * Arguments are asked for before memory is taken, and refused when they do not fit: nothing ever waits for room. Results
 * exist already, so they are counted and not refused; but how much of them one caller may leave here is bounded. What a group's
 * operation gathered is not refused at all: a member that is over that bound is refused its next part instead.
 *
 * Beside these batches count rows that no call pays for, within what is left, and what they copy calls to as they begin, which is not
 * refused either: at most the arguments of the batches that run, once more.
 *
 * A call whose arguments fit a frame may go over the budget by an eighth: so it can still be told to release what fills it. What is
 * refused counts until its caller has acknowledged the refusal; an eighth higher, calls are refused with nothing kept of them
 * (refuse.c). So whoever acknowledges nothing is bounded by the budget as well, and every answer of a call that was let in is kept.
 *
 * All [agent lock].
 */
#ifndef WFI_BUDGET_H
#define WFI_BUDGET_H

#include "rpc/agent/agent.h"

/* What a call of another worker counts for, from its first message on. */
typedef struct wfi_charge {
    weft_agent *agent;
    int from;       /* its caller's rank */
    bool is_exempt; /* its answer is kept, whatever is kept for its caller already */
    size_t call;    /* bytes of the call itself */
    size_t whole;   /* these and its arguments' */
    size_t kept;    /* its results', which count among its caller's */
} wfi_charge;

/* Counts `bytes` for the call itself, whatever is left. */
void wfi_budget_charge(wfi_charge *charge, uint64_t bytes);
/* Counts `bytes` of arguments if they fit. WEFT_ERR_BUSY, or WEFT_ERR_TOO_LARGE if they never will; `problem` then says why. */
weft_status wfi_budget_admit(wfi_charge *charge, uint64_t bytes, char *problem, size_t room);
/* The arguments are gone; the call itself remains. */
void wfi_budget_release_arguments(wfi_charge *charge);
/* What the arguments count for is the taker's from now on, who holds their values longer than the call: so many bytes, which it
 * gives back. */
size_t wfi_budget_take_arguments(wfi_charge *charge);
void wfi_budget_give_back(weft_agent *agent, size_t bytes);

/* Counts an answer of `bytes` among what is kept for its caller. False: over the bound of one caller. Then a short error is counted,
 * and may be sent instead. */
bool wfi_budget_keep(wfi_charge *charge, uint64_t bytes);
/* Whether calls that bring nothing are too many to be kept until their refusals have arrived: server/refuse.c. */
bool wfi_budget_is_exhausted(const weft_agent *agent);
/* Whether that caller has left so much here that nothing more should be made for it. */
bool wfi_budget_is_sated(const weft_agent *agent, int rank);
/* Parts of results: counted, and bounded by their number. `bytes` may be negative. */
void wfi_budget_keep_item(weft_agent *agent, int64_t bytes);
/* The call is over: all of it. */
void wfi_budget_release(wfi_charge *charge);

#endif
