/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autograd.h - operators recorded on tapes, and the backward pass over what was recorded. For the operators (ops/) and for those who rest
 * on them.
 *
 * op.h is the frame that every operator is written in; tape.h is what a tape is inside; graph.h is what tapes record into, of
 * nodes (node.h). engine.h runs a backward pass and adds up gradients (gradient.h); hooks.h are the user's functions in it. To add an
 * operator, begin with a short one, such as ops/gather.c; operator.c has those of the user's own.
 *
 * LOCKING. One thread at a time uses a tape. Threads share graphs, which lock themselves, and nodes, which do not change.
 *
 * LIFETIME. A tape owns what its operators make, temporaries and gradients, until it is closed, but for tensors that were taken
 * (weft_tape_take). Nodes are the graph's once the tape commits them, and end with it. A node is also held by the tensors that it
 * made; it keeps nothing else alive by then.
 */
#ifndef WFI_AUTOGRAD_H
#define WFI_AUTOGRAD_H

#include "autograd/graph.h"
#include "autograd/op.h"
#include "autograd/tape.h"

#endif
