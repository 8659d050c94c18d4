/* SPDX-License-Identifier: Apache-2.0 */
/*
 * output.h - a file that is written whole or not at all: under another name beside the old one, which it replaces at the end.
 *
 * A symbolic link stays, and what it leads to is replaced; the mode is the old file's, or what the umask leaves. What is no plain
 * file (a pipe, a device) or is this process's standard output or error cannot be replaced, and is written as it stands.
 */
#ifndef WFI_OUTPUT_H
#define WFI_OUTPUT_H

#include <stdbool.h>
#include <stdio.h>

typedef struct wfi_output {
    FILE *stream;
    char *target, *beside; /* what is replaced, and what is written until then; NULL: written as it stands */
} wfi_output;

/* 0 or an errno value; then nothing is open. */
int wfi_output_open(wfi_output *out, const char *path);
/*
 * Ends it; `keep`: the file takes its place, on the disk as well, else it is gone. 0 or an errno value: then it did not, and is gone
 * too; but if all went well up to the writing of its folder, it is in its place, and a loss of power may undo that.
 */
int wfi_output_close(wfi_output *out, bool keep);

#endif
