/* SPDX-License-Identifier: Apache-2.0 */
/*
 * threads.h - starts weft's threads, and says why the system starts none. They block the program's signals. Only faults
 * of the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS) are not blocked, so that the handlers of the
 * program and of sanitizers are called for them.
 */
#ifndef WFI_THREADS_H
#define WFI_THREADS_H

#include <pthread.h>
#include <signal.h>

/* Blocks all signals except faults in the calling thread; a thread started from then on inherits the mask. */
void wfi_signals_block(sigset_t *before);
/* Starts a thread with these signals blocked. Returns 0 or an errno value. `name`: up to 15 bytes, or
 * NULL. */
int wfi_start_quiet_thread(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *name);

#define WFI_THREADS_TEXT 160
/* The text for `trouble`, an errno value of pthread_create, with the limit of the user. Returns `text`. */
const char *wfi_threads_text(int trouble, char text[WFI_THREADS_TEXT]);

#endif
