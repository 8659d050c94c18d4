/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_device.c - a module that computes on another device than the tape on which it runs.
 *
 * The child runs on an inner tape of the device. For the outer tape that is one operator, whose state has the inner
 * tape (device_forward, record_run). The operator's backward function runs a pass of the inner tape (run_back). Each
 * pass runs on a child of the inner tape and has its own gradients, so that passes which retain the records do not mix.
 */
#include "autograd/tape.h"
#include "base/alloc.h"
#include "base/mutex.h"
#include "base/text/refuse.h"
#include "nn/nn.h"

#include <weft/operator.h>

#include <stdlib.h>

#define NAME "OnDevice"

/* One run of the child. `lock` guards the inner tape while passes open and close tapes below it. */
typedef struct device_run {
    weft_module *child; /* one reference */
    weft_tape *tape;
    weft_tensor *x, *y;  /* on the device; the tape has them */
    weft_device outside; /* of the input */
    wfi_mutex lock;
} device_run;

static void end_run(void *state)
{
    device_run *run = state;
    weft_tape_close(run->tape);
    weft_module_unref(run->child);
    wfi_mutex_fini(&run->lock);
    free(run);
}

static weft_tape *open_pass(device_run *run)
{
    wfi_mutex_lock(&run->lock);
    weft_tape *pass = weft_tape_open(&(weft_tape_options){.parent = run->tape});
    wfi_mutex_unlock(&run->lock);
    return pass;
}

static void close_pass(device_run *run, weft_tape *pass)
{
    wfi_mutex_lock(&run->lock);
    weft_tape_close(pass);
    wfi_mutex_unlock(&run->lock);
}

/* The gradients of the input and the parameters. */
static weft_status give_gradients(const device_run *run, weft_tape *pass, const bool *wanted, weft_tensor **dx)
{
    weft_tensors parameters = weft_module_parameters(run->child);
    weft_tensor *of_x = wanted[0] ? weft_tape_grad(pass, run->x) : NULL;
    if (of_x && !(dx[0] = wfi_tensor_to_device_pinned(of_x, run->outside)))
        return WEFT_ERR_MEMORY;
    for (size_t i = 0; i < parameters.count; i++)
        if (wanted[i + 1])
            dx[i + 1] = weft_tensor_ref(weft_tape_grad(pass, parameters.items[i]));
    return weft_tape_status(pass);
}

/* The backward function of the operator. */
static weft_status run_back(void *state, weft_tensors saved, weft_tensors dy, const bool *wanted, weft_tensor **dx)
{
    (void)saved;
    device_run *run = state;
    weft_tape *pass = open_pass(run);
    weft_tensor *given = wfi_tensor_to_device(dy.items[0], weft_tensor_device(run->y), NULL);
    if (pass && given)
        weft_backward_with(pass, (weft_tensors){&run->y, 1}, (weft_tensors){&given, 1},
                           &(weft_backward_options){.retain = true});
    weft_status status = !pass || !given ? WEFT_ERR_MEMORY : weft_tape_status(pass);
    if (status == WEFT_OK)
        status = give_gradients(run, pass, wanted, dx);
    close_pass(run, pass);
    weft_tensor_unref(given);
    return status;
}

static const weft_operator device_operator = {.name = NAME, .backward = run_back, .drop = end_run};

/* Records the run, which it takes over: the inputs are x and all parameters. */
static weft_tensor *record_run(weft_tape *tape, device_run *run, weft_tensor *x, weft_tensor *y)
{
    weft_tensors parameters = weft_module_parameters(run->child);
    weft_tensor **inputs = wfi_calloc(parameters.count + 1, sizeof(weft_tensor *)), *out = NULL;
    if (!inputs) {
        end_run(run);
        wfi_tape_fail_memory(tape, NAME);
        return NULL;
    }
    inputs[0] = x;
    for (size_t i = 0; i < parameters.count; i++)
        inputs[i + 1] = parameters.items[i];
    weft_tape_record(tape, &device_operator, (weft_tensors){inputs, parameters.count + 1}, (weft_tensors){0}, run,
                     (weft_tensors){&y, 1}, &out);
    free(inputs);
    return out;
}

/* Opens the inner tape. NULL: no memory. */
static device_run *begin_run(weft_tape *tape, weft_module *child, weft_device device)
{
    device_run *run = wfi_calloc(1, sizeof(*run));
    if (!run)
        return NULL;
    run->child = weft_module_ref(child);
    wfi_mutex_init(&run->lock);
    run->tape =
        weft_tape_open(&(weft_tape_options){.record = weft_tape_records(tape), .mode = tape->mode, .device = device});
    if (run->tape)
        run->tape->random = tape->random; /* the numbers that the child would draw on the outer tape */
    return run;
}

/* Whether the input is on the tape's device; otherwise the tape fails. */
static bool is_here(weft_tape *tape, const weft_tensor *x)
{
    char there[WFI_DEVICE_TEXT], here[WFI_DEVICE_TEXT];
    if (!x)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, NAME, "%s: the input is NULL", NAME);
    else if (!wfi_device_equal(weft_tensor_device(x), tape->device))
        wfi_tape_fail(tape, WEFT_ERR_UNSUPPORTED, NAME, "%s: the input is on %s, and the tape computes on %s", NAME,
                      wfi_device_text(weft_tensor_device(x), there), wfi_device_text(tape->device, here));
    return wfi_tape_ready(tape);
}

static weft_tensor *device_forward(weft_tape *tape, weft_module *self, weft_tensor *x)
{
    if (wfi_device_equal(self->device, tape->device))
        return weft_module_forward(tape, self->children[0], x);
    if (!is_here(tape, x))
        return NULL;
    device_run *run = begin_run(tape, self->children[0], self->device);
    if (!run) {
        wfi_tape_fail_memory(tape, NAME);
        return NULL;
    }
    run->outside = weft_tensor_device(x);
    run->x = weft_tape_take(run->tape, wfi_tensor_to_device(x, self->device, NULL));
    weft_tensor_set_requires_grad(run->x, weft_tensor_requires_grad(x) || x->grad_node);
    run->y = weft_module_forward(run->tape, run->child, run->x);
    if (run->tape)
        tape->random = run->tape->random;
    weft_tensor *y = wfi_tensor_to_device_pinned(run->y, tape->device), *out = NULL;
    if (weft_tape_status(run->tape) != WEFT_OK || !y) {
        if (run->tape && run->tape->error)
            wfi_tape_fail(tape, weft_tape_status(run->tape), NAME, "%s", weft_error_message(run->tape->error));
        else
            wfi_tape_fail_memory(tape, NAME);
        end_run(run);
    } else {
        out = record_run(tape, run, x, y);
    }
    weft_tensor_unref(y);
    return out;
}

static const weft_module_type device_type = {.name = NAME, .forward = device_forward};

weft_module *wfi_nn_on_device_create(weft_module *child, weft_device device, weft_error **error)
{
    if (!child)
        return wfi_module_refuse(error, NAME, "the child is NULL");
    weft_error *why = NULL;
    weft_status status = wfi_module_move(child, device, &why);
    if (status != WEFT_OK) {
        weft_module_unref(child);
        (void)wfi_refuse_to(error, status, NAME ": the child cannot be moved: %s", weft_error_message(why));
        weft_error_unref(why);
        return NULL;
    }
    weft_module *module = wfi_module_create(&device_type, NULL, error);
    if (!module) {
        weft_module_unref(child);
        return NULL;
    }
    module->device = device;
    weft_module_add_child(module, "module", child);
    return wfi_module_finish(module, error);
}
