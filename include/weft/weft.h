/* SPDX-License-Identifier: Apache-2.0 */
/* weft/weft.h - includes all headers of weft. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include <weft/base.h>          /* visibility, names of the opaque objects */
#include <weft/status.h>        /* status codes, errors with detail */
#include <weft/log.h>           /* log level and sink */
#include <weft/tensor.h>        /* tensors */
#include <weft/dlpack.h>        /* tensors shared with other libraries */
#include <weft/value.h>         /* arguments and results of calls */
#include <weft/future.h>        /* results that come later */
#include <weft/stream.h>        /* streams of GPUs */
#include <weft/tape.h>          /* recording, gradients */
#include <weft/operator.h>      /* user-defined operators */
#include <weft/hooks.h>         /* hooks of a backward pass */
#include <weft/ops.h>           /* operators */
#include <weft/nn.h>            /* modules, models, files */
#include <weft/optim.h>         /* optimizers */
#include <weft/bootstrap.h>     /* how workers find rank 0, if the program knows */
#include <weft/function.h>      /* functions that other workers can call */
#include <weft/agent.h>         /* membership of a job */
#include <weft/rpc.h>           /* functions and calls */
#include <weft/batch.h>         /* handlers of many calls at once */
#include <weft/context.h>       /* distributed autograd */
#include <weft/dist_optim.h>    /* an optimizer over parameters of several workers */
#include <weft/remote_module.h> /* modules on other workers */
#include <weft/rref.h>          /* remote references */
#include <weft/group.h>         /* groups of workers: allreduce, broadcast, barrier ... */
#include <weft/data_parallel.h> /* a module on several workers, gradients averaged */
#include <weft/reduce.h>        /* sums, minimums ... over a group */
#include <weft/metrics.h>       /* counters, histograms */
#include <weft/job.h>           /* workers as processes of this machine */
#include <weft/sim.h>           /* simulated jobs: libweft_sim */

#endif
