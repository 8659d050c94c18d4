/* SPDX-License-Identifier: Apache-2.0 */
/*
 * task.h - runs a part of the program in a child process, the task. It sends its results, notes and failure to the main
 * process.
 *
 * The main process never opens an agent. So it may fork, each task starts with fresh memory, and a task that hangs or
 * dies ends with an error message. A task dies with this process, and its workers die with it.
 */
#ifndef WEFT_PERF_TASK_H
#define WEFT_PERF_TASK_H

#include "perf/result.h"

#include <weft/status.h>

typedef struct task_end task_end; /* the sending end, in the process of the task */

void task_put(task_end *to, const result *r);
/* A sentence for people: something is not measured, and why. */
void task_note(task_end *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Sets the error message of the task. Only the first call has an effect. Returns false. */
bool task_fail(task_end *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* task_fail with the text "WHAT: text of the status", with the detail of `error` if it is not NULL. Releases
 * `error`. */
bool task_fail_status(task_end *to, const char *what, weft_status status, weft_error *error);

/* Functions of this process that receive the results and notes of a task. */
typedef struct task_hears {
    void (*result)(const result *r, void *arg);
    void (*note)(const char *text, void *arg);
    void *arg;
} task_hears;

typedef bool (*task_fn)(task_end *to, void *arg); /* in the process of the task */

/* Runs a task to its end. False: it failed, and `why` has the sentence. The task is killed if it sends nothing for
 * silence_s seconds, or if a signal ends this program (stop.h). No process that the task started is left. */
bool task_run(task_fn fn, void *arg, double silence_s, const task_hears *hears, char *why, size_t room);

#endif
