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
    bool is_ready;    /* the node has reported a port */
    int port;         /* that the node has reserved; 0: it found none */
    bool is_other;    /* the node is of another version, which has other frames */
    int process;      /* after link_end: a descriptor that is readable when the process has exited; -1: none */
    int64_t until_ms; /* after link_end: when the process is killed; 0: it is not yet to exit */
    int status;       /* of waitpid, once reaped */
    int unanswered;   /* signs of life (TO_NODE_ALIVE) since something came */
    size_t unpaid;    /* bytes of output without credit for the node (node.h) */
    buffer outbox, inbox;
} link_state;

/* Starts the node. Call it for HOST_HERE first: that node is a fork, and inherits nothing then. False: errno. */
bool link_open(link_state *made, const host *to, const settings *o);
/* Reads what has come, without waiting. False: the connection has ended. frame_first then finds the frames. */
bool link_read(link_state *from);
bool link_write(link_state *to);
/* Closes the connection: the node ends its workers, and the process exits. At until_ms link_reap kills it. */
void link_end(link_state *done, int64_t until_ms);
/* Ends an ssh or srun that is still connecting. No node runs there yet, which would have to end workers. */
void link_stop_connecting(link_state *of);
/* After link_end: reaps the process if it has exited or its time is up. True: it is reaped. */
bool link_reap(link_state *done);
void link_fini(link_state *done);
/* "ssh": what connects weft-run to the node. */
const char *link_command(const link_state *of);

#endif
