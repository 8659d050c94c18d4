/* SPDX-License-Identifier: Apache-2.0 */
/*
 * module_run.c - runs modules. A type has `forward` (one tensor to one tensor) or `call` (values to values); each of
 * weft_module_forward and weft_module_call uses the other function if the type lacks its own.
 */
#include "autograd/tape.h"
#include "nn/nn.h"

bool weft_module_trains_on(const weft_module *module, const weft_tape *tape)
{
    WFI_CHECK_HANDLE(module, tape);
    weft_mode mode = !tape ? WEFT_MODE_MODULE : tape->mode;
    return mode == WEFT_MODE_MODULE ? weft_module_is_training(module) : mode == WEFT_MODE_TRAIN;
}

weft_tensor *weft_args_tensor(weft_args values, size_t index)
{
    bool there = values.items && index < values.count && values.items[index].type == WEFT_TYPE_TENSOR;
    return there ? values.items[index].as.tensor : NULL;
}

/* Whether the module can run on the tape. If not, the tape fails, unless it has failed before. */
static bool may_run(weft_tape *tape, const weft_module *module, const char *what)
{
    if (!wfi_tape_ready(tape))
        return false;
    if (!module)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, what, "%s: the module is NULL", what);
    else if (module->status != WEFT_OK)
        wfi_tape_fail(tape, module->status, what, "%s: %s was not built: %s", what, module->type.name, module->why);
    return wfi_tape_ready(tape);
}

/* Runs the type's `call`. The tape keeps the results. */
static weft_args call(weft_tape *tape, weft_module *module, weft_args inputs)
{
    weft_values *results = NULL;
    weft_status status = weft_values_create(WEFT_NO_VALUES, &results, NULL);
    if (status == WEFT_OK)
        status = module->type.call(tape, module, inputs, results);
    if (status != WEFT_OK)
        wfi_tape_fail(tape, status, module->type.name, "%s: %s", module->type.name, weft_status_text(status));
    if (wfi_tape_ready(tape))
        return wfi_tape_take_values(tape, results);
    weft_values_unref(results);
    return WEFT_NO_VALUES;
}

/* Runs the type's `forward` on values, which must be one tensor. */
static weft_args call_forward(weft_tape *tape, weft_module *module, weft_args inputs)
{
    weft_tensor *x = weft_args_tensor(inputs, 0);
    weft_values *results = NULL;
    if (inputs.count != 1 || !x) {
        const char *first = inputs.count == 0 ? "nothing" : weft_type_name(inputs.items[0].type);
        wfi_tape_fail(tape, WEFT_ERR_INVALID, module->type.name, "%s: takes one tensor, not %zu values (first: %s)",
                      module->type.name, inputs.count, first);
        return WEFT_NO_VALUES;
    }
    weft_tensor *y = module->type.forward(tape, module, x);
    weft_status status = !y ? WEFT_ERR_INVALID : weft_values_create(WEFT_VALUES(weft_of_tensor(y)), &results, NULL);
    if (status == WEFT_OK)
        return wfi_tape_take_values(tape, results);
    wfi_tape_fail(tape, status, module->type.name, "%s: %s", module->type.name,
                  !y ? "its forward function returned NULL" : weft_status_text(status));
    return WEFT_NO_VALUES;
}

weft_args weft_module_call(weft_tape *tape, weft_module *module, weft_args inputs)
{
    WFI_CHECK_HANDLE(tape, module);
    if (!may_run(tape, module, "module_call"))
        return WEFT_NO_VALUES;
    const char *wrong = inputs.count > WEFT_MAX_VALUES  ? "are more than a list may have (WEFT_MAX_VALUES)"
                        : inputs.count && !inputs.items ? "at NULL"
                                                        : NULL;
    if (wrong) {
        wfi_tape_fail(tape, !inputs.items ? WEFT_ERR_INVALID : WEFT_ERR_TOO_LARGE, "module_call",
                      "module_call: %s: %zu inputs %s", module->type.name, inputs.count, wrong);
        return WEFT_NO_VALUES;
    }
    for (size_t i = 0; i < inputs.count; i++) {
        if (inputs.items[i].type != WEFT_TYPE_TENSOR || inputs.items[i].as.tensor)
            continue;
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "module_call", "module_call: %s: input %zu is a NULL tensor",
                      module->type.name, i);
        return WEFT_NO_VALUES;
    }
    return module->type.call ? call(tape, module, inputs) : call_forward(tape, module, inputs);
}

weft_tensor *weft_module_forward(weft_tape *tape, weft_module *module, weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, module, x);
    if (!may_run(tape, module, "module_forward"))
        return NULL;
    if (!x) {
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "module_forward", "module_forward: %s: the input is NULL",
                      module->type.name);
        return NULL;
    }
    if (module->type.forward)
        return module->type.forward(tape, module, x);
    weft_args results = call(tape, module, WEFT_VALUES(weft_of_tensor(x)));
    weft_tensor *y = weft_args_tensor(results, 0);
    if (!y)
        wfi_tape_fail(tape, WEFT_ERR_TYPE, module->type.name,
                      "%s: its first result is no tensor: run it by weft_module_call", module->type.name);
    return y;
}
