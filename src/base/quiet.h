/* SPDX-License-Identifier: Apache-2.0 */
/*
 * quiet.h - writes to descriptors of the user's: a write that fails gives an errno value. Without wfi_quiet_begin the
 * signals SIGPIPE (the reader of a pipe or socket has gone) and SIGXFSZ (the file would exceed a limit) end the
 * process.
 *
 * The signals are blocked in the calling thread alone. Those that are raised between begin and end are discarded, also
 * a signal that another process sends in that moment. The process's signal handlers do not change and are not called.
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

/* Between begin and end the thread does not park: a fiber would leave its mask to other fibers of the thread. */
void wfi_quiet_begin(wfi_quiet *quiet);
void wfi_quiet_end(const wfi_quiet *quiet); /* errno stays as it is */

/* Writes all of it by one fwrite, and flushes a stream. False: see errno, or the stream had failed before. */
bool wfi_quiet_write(FILE *to, const void *data, size_t size);
bool wfi_quiet_flush(FILE *to);

#endif
