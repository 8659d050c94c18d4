/* SPDX-License-Identifier: Apache-2.0 */
/* ending.h - how a worker ends: one message, whichever thread has it first, and an exit code. */
#ifndef EXAMPLES_ENDING_H
#define EXAMPLES_ENDING_H

#include <weft/job.h>
#include <weft/status.h>

/* Who speaks: the program, and what its rank 0 and its others are called, as "server" and "trainer", at most 31
 * bytes each. Before other threads are there. */
void ending_name(const char *program, const char *first, const char *other, int rank);
/* The same for a program, once: until ending_catch_signals, SIGINT and SIGTERM end its rank 0 with a line and
 * 130. Others they end at once, but a child of weft_job_open ignores SIGINT, of which its parent tells. */
void ending_begin(const char *program, const char *first, const char *other, int rank);
const char *ending_first(void); /* what rank 0 is called */
const char *ending_other(void);

/* Says why this worker fails, unless that has been said; returns the exit code, 1. Any thread. */
int ending_fail(const char *format, ...) WEFT_PRINTF(1, 2);
/* The same of an error, or of the status where there is none (NULL); drops your reference. */
int ending_error(weft_status status, weft_error *error);
/* A line of news, which ends nothing. */
void ending_note(const char *format, ...) WEFT_PRINTF(1, 2);
/* Fails, and ends the process at once: for news that finds the main thread in the middle of something long. */
void ending_exit(const char *format, ...) WEFT_PRINTF(1, 2) __attribute__((noreturn));

/* From now on SIGINT and SIGTERM only set a flag. */
void ending_catch_signals(void);
bool ending_interrupted(void);
/* The last act of a program that prints: what standard output has not taken is a failure, unless `code` is one
 * already. */
int ending_flush(int code);

/*
 * For the time in which a spawned job comes together; switch it on before and off afterwards, when weft itself
 * tells of deaths. If a child ends in that time the others would wait for it in vain. So this process ends with
 * a message, which names the child if the job is given, and the other children end with it.
 */
void ending_with_children(bool on, const weft_job *job);

/*
 * For a spawned worker whose agent is open: the death of its parent does not kill it any more. Weft tells it
 * that the store is lost, and it can print that.
 */
void ending_outlive_parent(void);

#endif
