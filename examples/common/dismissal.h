/* SPDX-License-Identifier: Apache-2.0 */
/* dismissal.h - how a job ends early: rank 0 tells the others why, and they notice when they are out of it. */
#ifndef EXAMPLES_DISMISSAL_H
#define EXAMPLES_DISMISSAL_H

#include <weft/rpc.h>
#include <weft/spawn.h>

/*
 * On rank 0: tells the others, those in the middle of a long computation, too, and leaves. One that is dead
 * hears nothing; where it is a child of ours (`job`, may be NULL) that is only stopped, it is killed. Frees the agent.
 */
void dismissal_send(weft_agent *agent, const weft_job *job, const char *why);

/* On the others: the function that rank 0 calls, and the membership callback. Both end the process with a message. */
extern const weft_function dismissal_function;
void dismissal_on_news(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg);

#endif
