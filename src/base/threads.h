/* SPDX-License-Identifier: Apache-2.0 */
/* threads.h - why the system starts no thread. */
#ifndef WFI_THREADS_H
#define WFI_THREADS_H

#define WFI_THREADS_TEXT 160
/* The text for `trouble`, an errno value of pthread_create, with the limit of the user. Returns `text`. */
const char *wfi_threads_text(int trouble, char text[WFI_THREADS_TEXT]);

#endif
