/* SPDX-License-Identifier: Apache-2.0 */
/* dismissal.h - how a job ends early: rank 0 tells the others why, and they notice when they are out of it. */
#ifndef EXAMPLES_DISMISSAL_H
#define EXAMPLES_DISMISSAL_H

#include <weft/rpc.h>
#include <weft/job.h>

/*
 * For rank 0: tells the other workers why the job ends, also those that are in a long computation, then leaves
 * and frees the agent. A worker that is dead hears nothing. A child of this process (`job`, may be NULL) that
 * is only stopped is killed.
 */
void dismissal_send(weft_agent *agent, const weft_job *job, const char *why);

/* On the others: the function that rank 0 calls, and the membership callback. Both end the process with a
 * message. */
extern const weft_function dismissal_function;
void dismissal_on_news(weft_agent *agent, weft_member_event event, int rank, const char *why, void *arg);

#endif
