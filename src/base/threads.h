/* SPDX-License-Identifier: Apache-2.0 */
/* threads.h - starts threads with all signals blocked, and says why the system starts none. */
#ifndef WFI_THREADS_H
#define WFI_THREADS_H

#include <pthread.h>

/* A thread with all signals blocked. Returns 0 or an errno value. */
int wfi_start_quiet_thread(pthread_t *thread, void *(*run)(void *arg), void *arg, const char *name);

#define WFI_THREADS_TEXT 160
/* The text for `trouble`, an errno value of pthread_create, with the limit of the user. Returns `text`. */
const char *wfi_threads_text(int trouble, char text[WFI_THREADS_TEXT]);

#endif
