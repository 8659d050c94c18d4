/* SPDX-License-Identifier: Apache-2.0 */
/*
 * supervisor.h - the process beside a worker, on the worker's machine, that starts the worker and ends it.
 *
 * weft-run forks it on its own machine; on another host ssh or srun starts it, as `weft-run --worker`. The worker
 * inherits its standard output and error. Its standard input is the connection to weft-run:
 *
 * - First comes the setup: a line of text (SUPERVISOR_SETUP), then the secret, then texts, each with a NUL behind it:
 *   the folder ("": the present one), variables "NAME=value", and the program with its arguments. The secret is so in
 *   no command line and in no environment.
 *   The supervisor answers with one byte on standard output, SUPERVISOR_HAS_SETUP. The worker's output follows.
 * - Then each byte is the number of a signal for the worker's process group. INT, TERM, HUP and QUIT also begin the
 *   grace time, after which SIGKILL follows.
 * - If the input ends, weft-run or the connection is gone: the worker gets SIGTERM, and SIGKILL after the grace time.
 *
 * When the worker has ended, what it started has a second to end, such as the tee of "exec > >(tee log)". Then it is
 * killed, wherever it belongs, and a line says so. The kernel kills the worker if its supervisor is killed.
 */
#ifndef WEFT_RUN_SUPERVISOR_H
#define WEFT_RUN_SUPERVISOR_H

/* The beginning of the supervisor's first line, which ends with SUPERVISOR_VERSION and a port in decimal. The TCP port
 * is free on this machine; if the worker has rank 0, the port stays reserved for the store. weft-run skips output
 * before this line, for example that of a login shell. */
#define SUPERVISOR_GREETING "\nweft-run worker "
#define SUPERVISOR_VERSION 2

#define SUPERVISOR_HAS_SETUP "\n"

/* Grace time in ms, bytes of the secret, number of variables, bytes behind this line. */
#define SUPERVISOR_SETUP "%lld %zu %zu %zu\n"
#define SUPERVISOR_SETUP_MOST (16u << 20)

/* Returns the exit code of the process: that of the worker; 128 + the signal that killed it; 126 or 127 if it could not
 * be started, after a line on standard error. */
int supervisor_run(void);
/* Prints why a program could not be started, as errno `errnum` says. Returns the exit code: 127 or 126. */
int supervisor_report_start_failure(const char *program, int errnum);

#endif
