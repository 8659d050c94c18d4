/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - writes a file completely or not at all: to a new file in the same folder, which replaces the old one at
 * the end.
 *
 * If a process is killed meanwhile, the new file stays until a process on the same host writes to the same path again.
 *
 * A symbolic link is kept, and the file to which it points is replaced. The mode is that of the old file, or depends on
 * the umask. A path that is not a regular file (a pipe, a device), or is this process's standard output or error,
 * cannot be replaced; it is written directly.
 */
#ifndef WFI_OUTPUT_H
#define WFI_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct wfi_output {
    FILE *stream;          /* written only by wfi_output_write */
    char *target, *beside; /* the file that is replaced, and the new file; NULL: the path is written directly */
} wfi_output;

/* Returns 0 or an errno value; then nothing is open. */
int wfi_output_open(wfi_output *out, const char *path);
/* Writes `size` bytes. 0 or an errno value; EPIPE, for a pipe whose reader has gone, raises no signal. */
int wfi_output_write(const wfi_output *out, const void *data, size_t size);
/* Sets the offset of the next byte, in a file that is replaced. 0 or an errno value. */
int wfi_output_go_to(const wfi_output *out, size_t offset);
/*
 * Ends the output. `keep`: the new file replaces the old one, and both file and folder are synced to the disk;
 * otherwise the new file is removed. Returns 0 or an errno value; then the new file was removed. One exception: if only
 * syncing the folder failed, the old file was replaced, but a loss of power may undo that.
 */
int wfi_output_close(wfi_output *out, bool keep);

#endif
