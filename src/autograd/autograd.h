/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autograd.h - operators recorded on tapes, and the backward pass over them. For the operators (ops/) and the folders
 * above.
 *
 * op.h has the code that all operators share. tape.h is the internals of a tape, graph.h the graph that tapes record
 * into, node.h its nodes. engine.h runs a backward pass and adds up gradients (gradient.h); hooks.h calls the user's
 * functions in it. To add an operator, begin with a short one, such as ops/gather.c; operator.c has the user's own
 * operators.
 *
 * LOCKING. One thread at a time uses a tape. Threads share graphs, which lock themselves, and nodes, which do not
 * change.
 *
 * LIFETIME. A tape owns the results of its operators, temporaries and gradients until it is closed, except tensors
 * that were taken (weft_tape_take). Once the tape commits its nodes, the graph owns them, and they end with it. The
 * tensors that a node made also hold it; after the end of the graph the node keeps nothing else alive.
 */
#ifndef WFI_AUTOGRAD_H
#define WFI_AUTOGRAD_H

#include "autograd/graph.h"
#include "autograd/op.h"
#include "autograd/tape.h"

#endif
