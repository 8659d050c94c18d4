/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - writes a file as a whole or not at all: under another name beside the old file, which it replaces at the
 * end.
 *
 * If a process is killed meanwhile, that other file stays until a process on the same host writes to the file again.
 *
 * A symbolic link stays, and the file that it leads to is replaced. The mode is that of the old file, or what the umask
 * leaves. What is not a plain file (a pipe, a device), or is this process's standard output or error, cannot be
 * replaced; it is written directly.
 */
#ifndef WFI_OUTPUT_H
#define WFI_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct wfi_output {
    FILE *stream;          /* to be written by wfi_output_write alone */
    char *target, *beside; /* what is replaced, and what is written until then; NULL: written as it stands */
} wfi_output;

/* 0 or an errno value; then nothing is open. */
int wfi_output_open(wfi_output *out, const char *path);
/* Writes `size` bytes. 0 or an errno value; EPIPE, for a pipe whose reader has gone, raises no signal. */
int wfi_output_write(const wfi_output *out, const void *data, size_t size);
/* Sets where the next byte goes, in a file that is replaced. 0 or an errno value. */
int wfi_output_go_to(const wfi_output *out, size_t offset);
/*
 * Ends it; `keep`: the file takes its place, on the disk as well, else it is gone. 0 or an errno value: then it did not, and is gone
 * too; but if all went well up to the writing of its folder, it is in its place, and a loss of power may undo that.
 */
int wfi_output_close(wfi_output *out, bool keep);

#endif
