/* SPDX-License-Identifier: Apache-2.0 */
/* failure.h - how a worker failed: in words, and as an exit code. */
#ifndef WEFT_RUN_FAILURE_H
#define WEFT_RUN_FAILURE_H

#include "run/link.h"

#include <stddef.h>

enum { LINK_LOST = 16 }; /* beside the kinds of node.h */

typedef struct failure {
    int rank;
    int kind; /* ENDED_... of node.h, or LINK_LOST: the connection to its host has ended */
    int code;
} failure;

/* "rank 2 on node1 exited with code 7". `link` is that of its host. */
void failure_describe(const failure *of, const link_state *link, const char *program, char *out, size_t room);
/* "exited with code 1", for a status of waitpid. */
void failure_describe_status(int status, char *out, size_t room);
/* The exit code of weft-run: from 1 to 255, whatever another host reports. */
int failure_code(const failure *of);

#endif
