/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stop.h - SIGINT, SIGTERM and SIGHUP end the program in order. They only wake the main process, which then ends its
 * children and writes what it has. A second signal of the same kind ends the program at once.
 */
#ifndef WEFT_PERF_STOP_H
#define WEFT_PERF_STOP_H

/* Call it once, before anything is started. Signals that are ignored stay ignored. False: out of descriptors. */
_Bool stop_catch(void);
int stop_signal(void); /* the signal that came; 0: none */
int stop_fd(void);     /* readable after the signal, for poll */
/* In a child: SIGINT, which a terminal sends to all processes, is left to the main process; the other signals end this
 * process. */
void stop_leave_to_parent(void);
/* Kills and reaps all children of this process, also those whose parent, a task, has ended. */
void stop_end_children(void);

#endif
