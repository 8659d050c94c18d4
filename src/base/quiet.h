/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quiet.h - writes to the user's descriptors, and files in memory, that fail with an errno value, without a signal.
 *
 * Programs that are not linked with the library compile quiet.c: it needs nothing of weft.
 *
 * Without wfi_quiet_begin the signals SIGPIPE (the reader of a pipe or socket has gone) and SIGXFSZ (the file would
 * exceed a limit) would end the process. They are blocked only in the calling thread. Those raised between begin and
 * end are discarded, even one that another process sends at that moment. The process's signal handlers do not change
 * and are not called.
 */
#ifndef WFI_QUIET_H
#define WFI_QUIET_H

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

typedef struct wfi_quiet {
    sigset_t before; /* the mask of the thread */
    sigset_t ours;   /* signals that were not pending at the beginning: the writes raise them */
} wfi_quiet;

/* Between begin and end the thread must not park: other fibers of the thread would run with the changed mask. */
void wfi_quiet_begin(wfi_quiet *quiet);
void wfi_quiet_end(const wfi_quiet *quiet); /* does not change errno */

/* Why a file could not be written or made larger; for EFBIG it names the process's limit. */
const char *wfi_quiet_trouble(int error);

/* Writes all bytes with one fwrite; flushes a stream. False: see errno, or the stream had failed before. */
bool wfi_quiet_write(FILE *to, const void *data, size_t size);
bool wfi_quiet_flush(FILE *to);

#endif
