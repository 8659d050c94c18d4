/* SPDX-License-Identifier: Apache-2.0 */
/* setup.h - what the node of a host gets before it starts workers: their program, variables and secret. */
#ifndef WEFT_RUN_SETUP_H
#define WEFT_RUN_SETUP_H

#include "run/buffer.h"
#include "run/secret.h"
#include "run/settings.h"

typedef struct setup {
    const settings *o;
    const secret *job_secret;
    int64_t world_size;
    int64_t local_world_size; /* on this host */
    const host *first;        /* the host of rank 0 */
    bool is_alone;            /* there is no other host */
    int64_t master_port;
} setup;

/* Adds the frame TO_NODE_SETUP (node.h) for `to` to a buffer. */
void setup_send(const setup *of, const host *to, buffer *out);

#endif
