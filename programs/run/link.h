/* SPDX-License-Identifier: Apache-2.0 */
/* link.h - weft-run's connection to the node (node.h) of one host. */
#ifndef WEFT_RUN_LINK_H
#define WEFT_RUN_LINK_H

#include "run/buffer.h"
#include "run/settings.h"

#include <sys/types.h>

typedef struct link_state {
    const host *to;
    pid_t pid;   /* the node, ssh or srun; 0: reaped */
    int in, out; /* to the node, and from it; -1: closed */
    bool is_greeted;
    bool is_ready; /* the node has reported a port */
    int port;      /* that the node has reserved; 0: it found none */
    int status;    /* of waitpid, once reaped */
    buffer outbox, inbox;
} link_state;

/* Starts the node. Call it for HOST_HERE first: that node is a fork, and inherits nothing then. False: errno. */
bool link_open(link_state *made, const host *to, const settings *o);
/* Reads what has come, without waiting. False: the connection has ended. frame_first then finds the frames. */
bool link_read(link_state *from);
bool link_write(link_state *to);
/* Tells the node to end: it ends its workers first. */
void link_close(link_state *done);
/* Waits at most wait_ms for the process, then kills it. */
void link_reap(link_state *done, int64_t wait_ms);
void link_fini(link_state *done);

#endif
