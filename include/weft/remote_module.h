/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/remote_module.h - remote modules: a module (weft/nn.h) on another worker, run from here.
 *
 * A registered function makes the module on its worker and gives it as an object of type weft_module_object. The handle
 * that weft_rpc_remote returns (weft/rref.h) is the remote module: it runs the module, names its parameters to an
 * optimizer (weft/dist_optim.h), and may be passed to other workers.
 *
 *     weft_status make_net(weft_call *call, void *user) // on the server: {.name = "net", .run = make_net}
 *     {
 *         (void)user;
 *         weft_module *net = NULL;
 *         weft_status status = weft_mnist_convnet_create(1, &net, NULL);
 *         weft_call_give_object(call, &weft_module_object, net); // fails the call if net is NULL
 *         return status;
 *     }
 *     weft_status make(weft_agent *agent, weft_rref **net) // on a trainer
 *     {
 *         return weft_rpc_remote(agent, weft_to_rank(0), "net", WEFT_NO_VALUES, NULL, net);
 *     }
 *     void backward(weft_tape *t, weft_rref *net, weft_tensor *x, weft_tensor *y) // t: of a context
 *     {
 *         weft_tensor *scores = weft_remote_forward(t, net, x, NULL);
 *         weft_dist_backward(t, weft_nll_loss(t, scores, y), NULL);
 *     }
 *
 * DEVICES. A module computes on the device that has all its parameters (weft_module_to_device). If they are on several
 * devices, it computes on the CPU, with the help of weft_on_device_create; without parameters, where its first input
 * is. Inputs that arrive on another device are copied, and results are copied to the device where the first input
 * arrived. From there they come back by the caller's device maps (weft/agent.h), without maps to the device of the
 * caller's input. A copy to the CPU waits for the GPU. With a map to the module's device nothing is copied. Copies are
 * recorded.
 *
 * THREADS. Any thread; several threads may run one module at once.
 */
#ifndef WEFT_REMOTE_MODULE_H
#define WEFT_REMOTE_MODULE_H

#include <weft/context.h>
#include <weft/nn.h>
#include <weft/rref.h>

WEFT_BEGIN_C

/*
 * The type of modules as objects of handles.
 *   A handler gives a module with weft_call_give_object, which takes over its reference. If the module is NULL, the
 *   call fails, and so does each use of the handle.
 *   A program makes a handle to a module of this worker with weft_rref_create_typed, which takes over its reference.
 *   On its worker weft_rref_local_typed finds the module.
 */
WEFT_API extern const weft_object_type weft_module_object;

typedef struct weft_forward_options {
    weft_mode mode;     /* WEFT_MODE_MODULE: the tape's mode if it has one, otherwise train mode */
    bool has_seed;      /* use `seed`; otherwise each forward has its own seed */
    uint64_t seed;      /* of random operators, which draw the same numbers as on a new tape with this seed */
    int64_t timeout_ms; /* 0: the agent's default */
} weft_forward_options;

/*
 * Runs the module on its worker with x, and waits for the result. With a tape of a context the call takes part in the
 * context: the backward pass continues through the module. With any other tape the module is only evaluated. The
 * result is the first result of the module. It belongs to the tape, and is NULL if the tape fails. `options` may be
 * NULL.
 */
WEFT_API weft_tensor *weft_remote_forward_sized(weft_tape *tape, weft_rref *module, weft_tensor *x,
                                                const weft_forward_options *options, size_t size);
static inline weft_tensor *weft_remote_forward(weft_tape *tape, weft_rref *module, weft_tensor *x,
                                               const weft_forward_options *options)
{
    return weft_remote_forward_sized(tape, module, x, options, sizeof(*options));
}
/* Runs the module with values, as weft_module_call does, for modules whose inputs or results are not one tensor. If the
 * tape fails, the list is empty. Otherwise as weft_remote_forward. */
WEFT_API weft_args weft_remote_call_sized(weft_tape *tape, weft_rref *module, weft_args_in inputs,
                                          const weft_forward_options *options, size_t size);
static inline weft_args weft_remote_call(weft_tape *tape, weft_rref *module, weft_args_in inputs,
                                         const weft_forward_options *options)
{
    return weft_remote_call_sized(tape, module, inputs, options, sizeof(*options));
}
/* Starts weft_remote_call; *out receives the future of the results. As weft_rpc_async. */
WEFT_API WEFT_NODISCARD weft_status weft_remote_call_async_sized(weft_tape *tape, weft_rref *module,
                                                                 weft_args_in inputs,
                                                                 const weft_forward_options *options, size_t size,
                                                                 weft_future **out);
static inline WEFT_NODISCARD weft_status weft_remote_call_async(weft_tape *tape, weft_rref *module, weft_args_in inputs,
                                                                const weft_forward_options *options, weft_future **out)
{
    return weft_remote_call_async_sized(tape, module, inputs, options, sizeof(*options), out);
}

/*
 * Handles to the parameters of `module`, in the module's order, as values of type WEFT_TYPE_RREF. Use them to fetch
 * or to optimize some parameters. (To optimize all, pass the handle to the module.) Waits; you release the list. The
 * list is fetched in pages of 1,000, so *out may have more values than one call takes (WEFT_MAX_VALUES);
 * weft_dist_optimizer_create accepts all of them. Errors as weft_rpc_sync. WEFT_ERR_PROTOCOL: the owner's pages
 * contradict each other.
 */
WEFT_API WEFT_NODISCARD weft_status weft_remote_parameters(weft_rref *module, weft_values **out, weft_error **error);

WEFT_END_C
#endif
