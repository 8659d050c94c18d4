/* SPDX-License-Identifier: Apache-2.0 */
/*
 * worker.h - this process as one worker of a job: its rank, the other workers, its messages, its end.
 *
 * Without a launcher a program is rank 0 of a job, and starts the other workers itself. With one, or if RANK and
 * WORLD_SIZE are set, it is one worker of the job (docs/environment.md).
 */
#ifndef EXAMPLES_WORKER_H
#define EXAMPLES_WORKER_H

#include <weft/agent.h>
#include <weft/tensor.h>

#include "cli.h"

/*
 * Finds the rank of this process. Messages call rank 0 `first` ("server"), and the others `other` ("trainer"). `*size`
 * is the number of workers that rank 0 has if it starts the others itself, and receives the number of workers. SIGINT
 * and SIGTERM end rank 0 with a message and exit code 130, and the other workers without a message. Returns -1 to
 * continue, or the exit code to end with: the launcher's number of workers is below `least`, or the launcher gives no
 * rank.
 */
int worker_begin(const cli *program, const char *first, const char *other, int least, int *rank, int64_t *size);
/*
 * Starts the other workers, if no launcher has, and opens the agent. Rank 0 detects deaths of all others. Without a
 * function `on_membership` rank 0 prints each death, and the others exit when the job is over for them. The log has
 * the detail of a failure.
 */
WEFT_NODISCARD weft_status worker_open(weft_agent_options options, weft_agent **out);
/*
 * Waits for the other workers and closes the agent, or, if `status` is a failure, prints the failure and stops the
 * agent; the other workers then exit too. Takes `error`, its detail; NULL: none. `agent` NULL: it was not opened.
 * Flushes standard output. Returns the exit code.
 */
int worker_end(weft_agent *agent, weft_status status, weft_error *error);

/* Prints one line to stderr, with the names of the program and of the worker. Any thread. */
void worker_note(const char *format, ...) WEFT_PRINTF(1, 2);

/* Reads the option --device; NULL: the CPU. Returns -1 to continue, or the exit code to end with. */
int worker_choose_device(const cli *program, const char *text, weft_device *out);
/* For rank 0, before worker_open: the other workers that it starts get device maps, by which their CPU tensors come to
 * its GPU `device`, and its answers go back to their CPU. Does nothing for the CPU, or if WEFT_DEVICE_MAPS is set. */
void worker_serve_on(weft_device device);

#endif
