/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft/remote_module.h - remote modules: a module (weft/nn.h) on another worker, run from here.
 *
 *     static weft_module *make_net(weft_args args, void *user) // on the server
 *     {
 *         (void)user;
 *         return weft_mnist_convnet_create((uint64_t)args.items[0].as.i64);
 *     }
 *     weft_status serve(weft_agent *agent)
 *     {
 *         return weft_agent_register_module(agent, "net", make_net, NULL);
 *     }
 *     weft_status make(weft_agent *agent, weft_remote_module **net) // on a trainer
 *     {
 *         return weft_remote_module_create(agent, weft_to_rank(0), "net", WEFT_VALUES(weft_of_i64(1)), net);
 *     }
 *     void backward(weft_tape *t, weft_remote_module *net, weft_tensor *x, weft_tensor *y) // t: of a context
 *     {
 *         weft_tensor *scores = weft_remote_forward(t, net, WEFT_VALUES(weft_of_tensor(x)), NULL);
 *         weft_dist_backward(t, weft_nll_loss(t, scores, y), NULL);
 *     }
 *
 * THREADS. Any thread; several threads may run one module at once.
 */
#ifndef WEFT_REMOTE_MODULE_H
#define WEFT_REMOTE_MODULE_H

#include <weft/context.h>
#include <weft/nn.h>
#include <weft/rref.h>

WEFT_BEGIN_C

typedef struct weft_remote_module weft_remote_module;

/* Makes a module with the arguments of weft_remote_module_create; NULL on failure. Runs on any worker thread. */
typedef weft_module *(*weft_make_module_fn)(weft_args args, void *user);
/*
 * Registers a type of modules that other workers may make here. The name is copied: 1 to 115 bytes. A worker that asks
 * for the type before it is registered gets WEFT_ERR_NOT_FOUND: use a barrier first (weft/group.h). WEFT_ERR_INVALID,
 * WEFT_ERR_EXISTS, WEFT_ERR_MEMORY.
 */
WEFT_API WEFT_NODISCARD weft_status weft_agent_register_module(weft_agent *agent, const char *type,
                                                               weft_make_module_fn make, void *user);

/* Makes a module on a worker. Returns at once; if the module cannot be made, each use of it fails with the reason.
 * WEFT_ERR_INVALID (NULL), and the errors of weft_rpc_remote. */
WEFT_API WEFT_NODISCARD weft_status weft_remote_module_create(weft_agent *agent, weft_target to, const char *type,
                                                              weft_args_in args, weft_remote_module **out);
/* Makes a remote module from a handle that another worker passed (weft_remote_module_rref). */
WEFT_API WEFT_NODISCARD weft_status weft_remote_module_from_rref(weft_rref *rref, weft_remote_module **out);
/* Makes a handle to a module of this worker, for other workers. References the module. */
WEFT_API WEFT_NODISCARD weft_status weft_module_to_rref(weft_agent *agent, weft_module *module, weft_rref **out);
WEFT_API weft_remote_module *weft_remote_module_ref(weft_remote_module *module);
WEFT_API void weft_remote_module_unref(weft_remote_module *module);      /* NULL does nothing */
WEFT_API weft_rref *weft_remote_module_rref(weft_remote_module *module); /* a handle to the module, borrowed */

/* Sets train mode (the default) or eval mode for forwards of this handle. It does not change other handles or the
 * module's own flag. */
WEFT_API void weft_remote_module_train(weft_remote_module *module, bool train);

typedef struct weft_forward_options {
    weft_mode mode;     /* WEFT_MODE_MODULE: the tape's mode if it has one, otherwise the handle's */
    bool has_seed;      /* use `seed`; otherwise each forward has its own seed */
    uint64_t seed;      /* of random operators, which draw the same numbers as on a new tape with this seed */
    int64_t timeout_ms; /* 0: the agent's default */
} weft_forward_options;

/*
 * Run the module on its worker and wait for the results. With a tape of a context the call takes part in the context:
 * the backward pass continues through the module. With any other tape the module is only evaluated. weft_remote_forward
 * returns the first result, weft_remote_forward_all all results; the results belong to the tape. If the tape fails,
 * they return NULL, or an empty list. `options` may be NULL.
 */
WEFT_API weft_tensor *weft_remote_forward(weft_tape *tape, weft_remote_module *module, weft_args_in inputs,
                                          const weft_forward_options *options);
WEFT_API weft_args weft_remote_forward_all(weft_tape *tape, weft_remote_module *module, weft_args_in inputs,
                                           const weft_forward_options *options);
/* Starts a forward; *out receives the future of the results. As weft_rpc_async. */
WEFT_API WEFT_NODISCARD weft_status weft_remote_forward_async(weft_tape *tape, weft_remote_module *module,
                                                              weft_args_in inputs, const weft_forward_options *options,
                                                              weft_future **out);

/*
 * Handles to the parameters of `module`, in the module's order, as values of type WEFT_TYPE_RREF. Waits; you release
 * the list. The list is fetched in pages of 1,000, so *out may have more values than one call takes (WEFT_MAX_VALUES);
 * weft_dist_optimizer_create accepts all of them. Errors as weft_rpc_sync. WEFT_ERR_PROTOCOL: the owner's pages
 * contradict each other.
 */
WEFT_API WEFT_NODISCARD weft_status weft_remote_parameters(weft_remote_module *module, weft_values **out);

WEFT_END_C
#endif
