/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nosignal.h - writes to the user's descriptors, and files in memory, that fail with an errno value, without a
 * signal.
 *
 * Programs that are not linked with the library compile nosignal.c: it needs nothing of weft.
 *
 * Without wfi_nosignal_begin the signals SIGPIPE (the reader of a pipe or socket has gone) and SIGXFSZ (the file
 * would exceed a limit) would end the process. They are blocked only in the calling thread. Those raised between
 * begin and end are discarded, even one that another process sends at that moment. The process's signal handlers do
 * not change and are not called.
 */
#ifndef WFI_NOSIGNAL_H
#define WFI_NOSIGNAL_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct wfi_nosignal {
    sigset_t before; /* the mask of the thread */
    sigset_t ours;   /* signals that were not pending at the beginning: the writes raise them */
} wfi_nosignal;

/* Between begin and end the thread must not park: other fibers of the thread would run with the changed mask. */
void wfi_nosignal_begin(wfi_nosignal *saved);
void wfi_nosignal_end(const wfi_nosignal *saved); /* does not change errno */

/* Why a file could not be written or made larger; for EFBIG it names the process's limit. */
const char *wfi_nosignal_strerror(int error);

/* Writes all bytes with one fwrite; flushes a stream. False: see errno, or the stream had failed before. */
bool wfi_nosignal_write(FILE *to, const void *data, size_t size);
bool wfi_nosignal_flush(FILE *to);

#endif
