/* SPDX-License-Identifier: Apache-2.0 */
/*
 * job.h - the job as a whole: starts the workers, prints their output, and decides what follows from a failure.
 */
#ifndef WEFT_RUN_JOB_H
#define WEFT_RUN_JOB_H

#include "run/secret.h"
#include "run/settings.h"

/* Runs the job to its end. Returns the exit code of weft-run. */
int job_run(const settings *o, host_list *hosts, const secret *job_secret);

#endif
