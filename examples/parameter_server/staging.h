/* SPDX-License-Identifier: Apache-2.0 */
/*
 * staging.h - the parameters of a model and their gradients, as CPU tensors for calls, while the model is on a GPU.
 *
 * Calls carry CPU tensors. So a received model lands in page-locked memory and is copied to the GPU, and gradients are
 * copied from the GPU to page-locked memory and sent. If the model is on the CPU, nothing is copied.
 */
#ifndef EXAMPLES_STAGING_H
#define EXAMPLES_STAGING_H

#include <weft/nn.h>

typedef struct staging {
    weft_module *model;      /* borrowed */
    weft_tensors parameters; /* of the CPU: calls land in them */
    weft_tensors gradients;  /* page-locked; none if the model is on the CPU */
    weft_tensor **own;       /* page-locked: parameters, then gradients; NULL: the model is on the CPU */
} staging;

/* Moves the model to `device`; nobody may have read its lists. The errors of weft_module_to_device. */
WEFT_NODISCARD weft_status staging_open(staging *out, weft_module *model, weft_device device);
void staging_close(staging *s);

/* Copies the parameters to the model, after a call has changed them. */
WEFT_NODISCARD weft_status staging_load(const staging *s);
/* The gradients of the model's parameters after a backward pass, on the CPU. They are valid until the tape closes, or
 * the next staging_gradients. */
WEFT_NODISCARD weft_status staging_gradients(const staging *s, weft_tape *tape, weft_tensors *out);

#endif
