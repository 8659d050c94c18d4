/* SPDX-License-Identifier: Apache-2.0 */
/*
 * thread.h - starts weft's threads, and says why the system starts none. They block the program's signals. Only
 * faults of the thread itself (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS) are not blocked, so that the
 * handlers of the program and of sanitizers are called for them.
 */
#ifndef WFI_THREAD_H
#define WFI_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Blocks all signals except faults in the calling thread; a thread started from then on inherits the mask. */
void wfi_signals_block(sigset_t *before);
/* Starts a thread with these signals blocked. Returns 0 or an errno value. `name`: up to 15 bytes, or NULL. */
int wfi_thread_start(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *name);

#define WFI_THREAD_STRERROR 160
/* The text for `errnum`, an errno value of pthread_create, with the limit of the user. Returns `text`. */
const char *wfi_thread_strerror(int errnum, char text[WFI_THREAD_STRERROR]);

#endif
