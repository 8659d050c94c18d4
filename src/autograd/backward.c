/* SPDX-License-Identifier: Apache-2.0 */
/* backward.c - a pass started from a tape, and the gradients that the tape keeps of it. */
#include "autograd/engine.h"
#include "autograd/checks.h"
#include "autograd/tape.h"

#include "base/alloc.h"
#include "base/text/sized.h"
#include "tensor/copy.h"

#include <stdlib.h>

/* ---- Gradients that a tape keeps ---- */

weft_status wfi_tape_add_gradient(weft_tape *tape, uint64_t leaf, weft_gradient *sum)
{
    weft_gradient *kept = wfi_map_get(&tape->gradients, leaf);
    if (kept)
        return wfi_gradient_join(kept, sum);
    bool is_hooked = tape->hooks && wfi_hooks_has(tape->hooks, leaf); /* kept as the hooks made it */
    /* Otherwise it must not be a tensor of the caller or of another leaf. */
    weft_status status = is_hooked ? WEFT_OK : wfi_gradient_make_own(sum);
    kept = status == WEFT_OK ? wfi_calloc(1, sizeof(*kept)) : NULL;
    if (kept && wfi_map_put(&tape->gradients, leaf, kept) == WEFT_OK) {
        *kept = *sum;
        return WEFT_OK;
    }
    free(kept);
    wfi_gradient_clear(sum);
    return WEFT_ERR_MEMORY;
}

weft_tensor *weft_tape_grad(const weft_tape *tape, const weft_tensor *x)
{
    WFI_CHECK_HANDLE(tape, x);
    weft_gradient *kept = !tape || !x ? NULL : wfi_map_get(&tape->gradients, x->id);
    if (!kept || wfi_gradient_make_dense(kept, &x->shape) != WEFT_OK)
        return NULL;
    return kept->values;
}

/* Memory that the tape frees when it closes; all zero. NULL: the tape failed. */
static void *lend(weft_tape *tape, size_t count, size_t size, const char *what)
{
    void *items = wfi_calloc(count, size);
    if (items && wfi_pointers_push(&tape->lists, items))
        return items;
    free(items);
    wfi_tape_fail_memory(tape, what);
    return NULL;
}

static bool are_there(weft_tape *tape, weft_tensors parameters, const char *what)
{
    if (!parameters.items)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, what, "%s: the list of %zu parameters is NULL", what, parameters.count);
    for (size_t i = 0; i < parameters.count && wfi_tape_ready(tape); i++)
        if (!parameters.items[i])
            wfi_tape_fail(tape, WEFT_ERR_INVALID, what, "%s: parameter %zu is NULL", what, i);
    return wfi_tape_ready(tape);
}

weft_gradients weft_tape_gradients(weft_tape *tape, weft_tensors parameters)
{
    WFI_CHECK_HANDLE(tape);
    const weft_gradients none = {NULL, 0};
    if (!wfi_tape_ready(tape) || parameters.count == 0 || !are_there(tape, parameters, "tape_gradients"))
        return none;
    weft_gradient *items = lend(tape, parameters.count, sizeof(*items), "tape_gradients");
    for (size_t i = 0; i < parameters.count && wfi_tape_ready(tape); i++) {
        const weft_gradient *kept = wfi_map_get(&tape->gradients, parameters.items[i]->id);
        if (!kept)
            continue;
        items[i].values = weft_tape_take(tape, weft_tensor_ref(kept->values));
        items[i].rows = weft_tape_take(tape, weft_tensor_ref(kept->rows));
    }
    return wfi_tape_ready(tape) ? (weft_gradients){items, parameters.count} : none;
}

/* A gradient as the tape's temporary, so that it outlives later passes. */
static weft_tensor *lend_grad(weft_tape *tape, const weft_tensor *x)
{
    weft_tensor *gradient = weft_tape_grad(tape, x);
    gradient = gradient ? weft_tensor_ref(gradient) : wfi_tensor_full_like(x, x->shape, x->dtype, 0);
    if (!gradient)
        wfi_tape_fail_memory(tape, "tape_grads");
    return weft_tape_take(tape, gradient);
}

weft_tensors weft_tape_grads(weft_tape *tape, weft_tensors parameters)
{
    WFI_CHECK_HANDLE(tape);
    const weft_tensors none = {NULL, 0};
    if (!wfi_tape_ready(tape) || parameters.count == 0 || !are_there(tape, parameters, "tape_grads"))
        return none;
    weft_tensor **items = lend(tape, parameters.count, sizeof(*items), "tape_grads");
    for (size_t i = 0; i < parameters.count && wfi_tape_ready(tape); i++)
        items[i] = lend_grad(tape, parameters.items[i]);
    return wfi_tape_ready(tape) ? (weft_tensors){items, parameters.count} : none;
}

/* ---- A pass ---- */

/* A sum that hooks may still write to. */
typedef struct hooked_sum {
    uint64_t leaf;
    weft_gradient sum;
} hooked_sum;

typedef struct keeper {
    weft_tape *tape;
    wfi_pointers hooked; /* hooked_sum */
} keeper;

static weft_status keep_gradient(void *arg, uint64_t leaf, weft_gradient *sum)
{
    keeper *k = arg;
    if (!k->tape->hooks || !wfi_hooks_has(k->tape->hooks, leaf))
        return wfi_tape_add_gradient(k->tape, leaf, sum);
    hooked_sum *later = wfi_calloc(1, sizeof(*later));
    if (!later || !wfi_pointers_push(&k->hooked, later)) {
        free(later);
        wfi_gradient_clear(sum);
        return WEFT_ERR_MEMORY;
    }
    *later = (hooked_sum){leaf, *sum};
    return WEFT_OK;
}

/* The pass is over, and no hook writes to the sums after it. */
static void keep_hooked(keeper *k, wfi_engine *engine)
{
    for (size_t i = 0; i < k->hooked.count; i++) {
        hooked_sum *later = k->hooked.items[i];
        weft_status status = WEFT_OK;
        if (!engine->error)
            status = wfi_tape_add_gradient(k->tape, later->leaf, &later->sum);
        else
            wfi_gradient_clear(&later->sum);
        if (status != WEFT_OK)
            wfi_engine_fail(engine, status, "backward: %s", weft_status_text(status));
        free(later);
    }
    free(k->hooked.items);
}

static weft_tensor *ones_for(wfi_engine *engine, const weft_tensor *output)
{
    if (output->numel != 1) {
        wfi_engine_fail(engine, WEFT_ERR_SHAPE,
                        "backward: a gradient can be implied only for an output of one element; this one has %lld",
                        (long long)output->numel);
        return NULL;
    }
    weft_tensor *one = wfi_tensor_full_like(output, output->shape, output->dtype, 1);
    if (!one)
        wfi_engine_fail(engine, WEFT_ERR_MEMORY, "backward: out of memory");
    return one;
}

/* The initial gradient, contiguous, with a reference. */
static weft_tensor *start_gradient(wfi_engine *engine, const weft_tensor *output, weft_tensor *gradient)
{
    if (!gradient)
        return ones_for(engine, output);
    if (gradient->dtype != output->dtype || !weft_tensor_same_shape(output, gradient)) {
        wfi_engine_fail(engine, gradient->dtype != output->dtype ? WEFT_ERR_TYPE : WEFT_ERR_SHAPE,
                        "backward: the gradient is not of its output's shape and dtype");
        return NULL;
    }
    weft_tensor *contiguous = wfi_tensor_contiguous(gradient, NULL);
    if (!contiguous)
        wfi_engine_fail(engine, WEFT_ERR_MEMORY, "backward: out of memory");
    return contiguous;
}

static void start(wfi_engine *engine, weft_tape *tape, const weft_tensor *output, weft_tensor *gradient)
{
    if (!output) {
        wfi_engine_fail(engine, WEFT_ERR_INVALID, "backward: the output is NULL");
        return;
    }
    wfi_node *node = wfi_tape_node_of(tape, output);
    if (!node) {
        wfi_engine_fail(
            engine, WEFT_ERR_INVALID,
            "backward: the output depends on nothing that wants a gradient, or was not recorded on this tape");
        return;
    }
    weft_tensor *first = start_gradient(engine, output, gradient);
    if (first)
        wfi_engine_root(engine, node, node->leaf != 0 ? 0 : output->grad_result, first);
}

/* Whether a pass can begin: the tape has not failed, and these arguments do not make it fail. */
static bool may_begin(weft_tape *tape, weft_tensors outputs, weft_tensors gradients)
{
    if (tape && tape->checks)
        wfi_tape_collect_checks(tape);
    if (!wfi_tape_ready(tape))
        return false;
    if ((outputs.count != 0 && !outputs.items) || (gradients.count != 0 && !gradients.items))
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "backward", "backward: the list of %s is NULL",
                      !outputs.items ? "outputs" : "gradients");
    else if (gradients.count != 0 && gradients.count != outputs.count)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "backward", "backward: %zu gradients for %zu outputs", gradients.count,
                      outputs.count);
    else if (wfi_tape_owner(tape))
        wfi_tape_fail(tape, WEFT_ERR_STATE, "backward",
                      "backward: the tape records into a distributed context: use weft_dist_backward");
    return wfi_tape_ready(tape);
}

void weft_backward_with_sized(weft_tape *tape, weft_tensors outputs, weft_tensors gradients,
                              const weft_backward_options *options, size_t size)
{
    WFI_CHECK_HANDLE(tape);
    weft_backward_options own;
    options = WFI_SIZED(options, size, &own);
    if (!options)
        wfi_tape_fail(tape, WEFT_ERR_INVALID, "backward", "backward: " WFI_NEWER, "its options");
    if (!may_begin(tape, outputs, gradients)) {
        if (tape)
            wfi_engine_decline(tape->hooks, tape->error);
        return;
    }
    wfi_tape_commit(tape);
    keeper k = {.tape = tape};
    wfi_engine engine = {
        .retain = options->retain, .hooks = tape->hooks, .stream = tape->stream, .give = keep_gradient, .arg = &k};
    weft_stream *before = wfi_stream_set(tape->stream);
    for (size_t i = 0; i < outputs.count && !engine.error; i++)
        start(&engine, tape, outputs.items[i], gradients.count == 0 ? NULL : gradients.items[i]);
    (void)wfi_stream_set(before);
    wfi_engine_run(&engine);
    keep_hooked(&k, &engine);
    if (engine.error && wfi_tape_ready(tape))
        tape->error = weft_error_ref(engine.error);
    wfi_engine_end(&engine);
}

void weft_backward(weft_tape *tape, weft_tensor *loss)
{
    WFI_CHECK_HANDLE(tape, loss);
    weft_backward_with(tape, (weft_tensors){&loss, 1}, (weft_tensors){NULL, 0}, NULL);
}
