/* SPDX-License-Identifier: Apache-2.0 */
/*
 * node.h - the process that starts the workers of one machine, and ends them.
 *
 * weft-run starts one node for each host: a child on its own machine, `weft-run --node` through ssh or srun elsewhere.
 * The two talk in frames (buffer.h). If the connection ends, because weft-run died or the network did, or if weft-run
 * is silent for too long, the node ends its workers: SIGTERM, then SIGKILL after the grace time. If the node itself is
 * killed, the kernel kills the workers.
 */
#ifndef WEFT_RUN_NODE_H
#define WEFT_RUN_NODE_H

/* The first bytes that a node writes. Output of a login shell before it is skipped. */
#define NODE_GREETING_BEGIN "\nweft-run node "
#define NODE_VERSION "3" /* of the frames */
#define NODE_GREETING NODE_GREETING_BEGIN NODE_VERSION "\n"

/*
 * Flow control: the bytes of output that a node may have on the way. Then it reads no more output of workers until
 * weft-run, which always reads, gives credit for what it has received: while little waits to be printed. So an end is
 * reported at once, even if nobody reads weft-run's output. When a worker ends, the contents of its pipes are sent
 * beyond the window.
 */
#define NODE_WINDOW (128 << 10)

/*
 * Frames from weft-run to a node. TO_NODE_SETUP has the grace time in ms, a folder ("": the present one), the secret,
 * and two lists, each after its length: variables "NAME=value" for all workers, and the program with its arguments.
 */
enum {
    TO_NODE_SETUP = 1,
    TO_NODE_START = 2,  /* rank, local rank */
    TO_NODE_SIGNAL = 3, /* number: to all workers */
    TO_NODE_END = 4,    /* number, grace_ms: this signal to all workers, and after the grace time SIGKILL */
    TO_NODE_CREDIT = 5, /* bytes of output that weft-run has received */
    TO_NODE_ALIVE = 6,  /* limit_ms: the silence after which weft-run is taken for gone; 0: no limit. It is answered */
};

/* Frames from a node to weft-run. */
enum {
    FROM_NODE_PORT = 16,   /* a TCP port that is free on this machine, and stays reserved for rank 0's store */
    FROM_NODE_OUTPUT = 17, /* rank; 0 for stdout, 1 for stderr; bytes */
    FROM_NODE_ENDED = 18,  /* rank, kind, code; it comes after all output of the worker */
    FROM_NODE_ALIVE = 19,  /* 0: the answer to TO_NODE_ALIVE */
};

/* The kinds. The code is an exit code, a signal, or an errno. ENDED_KILLED: by the node, after the grace time. */
enum { ENDED_EXIT, ENDED_SIGNAL, ENDED_NOT_STARTED, ENDED_NO_FOLDER, ENDED_KILLED };

/* Runs until the connection ends. Returns the exit code of the process. */
int node_run(int in, int out);

#endif
