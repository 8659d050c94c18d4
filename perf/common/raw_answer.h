/* SPDX-License-Identifier: Apache-2.0 */
/*
 * raw_answer.h - the floor of a server that answers many: clients, a process each, with blocking TCP sockets on loopback, and a
 * server that only answers. A client sends a request and waits for the answer; in a batched slice the server reads one request
 * of every client and then answers all, else it answers each as it comes. Between slices the clients sleep.
 * Every function returns 0, or -1 with a line on stderr.
 */
#ifndef PERF_RAW_ANSWER_H
#define PERF_RAW_ANSWER_H

#include <stdbool.h>

#define RAW_ANSWER_CLIENTS_MAX 64

typedef struct raw_answer raw_answer;

/* Forks: call it before there are threads. A request has `bytes` bytes (16 to 4096), an answer 16. */
int raw_answer_open(int clients, int bytes, raw_answer **out);
void raw_answer_close(raw_answer *raw); /* NULL is a no-op */

/* `rounds` requests of each of the first `clients`; *us is the time of all. */
int raw_answer_slice(raw_answer *raw, int clients, bool batched, int rounds, double *us);

#endif
