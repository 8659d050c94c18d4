/* SPDX-License-Identifier: Apache-2.0 */
/*
 * autograd.h - operators recorded on tapes, and the backward pass over what was recorded. For the operators (ops/) and for those who rest
 * on them.
 *
 * op.h is the frame that every operator is written in; tape.h is what a tape is inside; node.h is one recorded operator. engine.c runs
 * the backward pass, gradient.c keeps the gradients of the leaves. To add an operator, begin with a short one,
 * such as ops/gather.c.
 *
 * LOCKING. There is none: one thread at a time uses a tape, and a backward pass runs on the thread that asks for it. Other threads meet
 * a node only through a tensor that outlives its tape; they touch its atomic count and its tape's id, and nothing else.
 *
 * LIFETIME. A tape owns what its operators make: temporaries, nodes, gradients. All of that goes when the tape is closed, but for
 * tensors that were taken (weft_tape_take). A node is also held by the tensor that it made; it keeps nothing else alive by then.
 */
#ifndef WFI_AUTOGRAD_H
#define WFI_AUTOGRAD_H

#include "autograd/node.h"
#include "autograd/op.h"
#include "autograd/tape.h"

#endif
