/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nn.h - the internals of a module: its parameters and buffers, and those of its children.
 *
 * The lists are made while the module is built: first its own entries, then those of its children in order, each
 * under its full name. A module that has become a child, or whose lists were lent to a caller, is sealed: nothing can
 * be added to it.
 *
 * LOCKING. None is needed, because sealed lists do not change; `training` and `refs` are atomic. One thread builds a
 * module.
 * LIFETIME. A module holds one reference to each of its tensors and children, and drops them with its own last
 * reference.
 */
#ifndef WFI_NN_H
#define WFI_NN_H

#include "base/handle.h"

#include <weft/nn.h>

#include <stdatomic.h>
#include <stdio.h>

#define WFI_NAME_MAX 256 /* bytes of a full name, the NUL included */

typedef struct wfi_named {
    weft_tensor **tensors; /* one reference each */
    char **names;
    size_t count, own; /* the first `own` are the module's, the others its children's */
} wfi_named;

struct weft_module {
    wfi_handle handle;
    _Atomic uint32_t refs;
    atomic_bool training;
    atomic_bool adopted;      /* it is another's child */
    atomic_bool sealed_lists; /* its lists were lent */
    weft_module_type type;    /* a copy */
    void *state;
    weft_device device;            /* of a module of weft_on_device_create: where it computes; others do not use it */
    weft_status status;            /* the first failure of building */
    char why[160];                 /* the same, as a sentence */
    wfi_named parameters, buffers; /* each tensor once, under its first name */
    wfi_named aliases;             /* parameters and buffers under their other names; `own` is not used */
    weft_module **children;        /* one reference each */
    char **child_names;
    size_t child_count;
};

/* For constructors that fail: gives *error (if `error` is not NULL) the reason, logs it at debug, and returns NULL. */
weft_module *wfi_module_refuse(weft_error **error, const char *type, const char *format, ...) WEFT_PRINTF(3, 4);
weft_module *wfi_module_no_memory(weft_error **error, const char *type);
/* The same for a struct of a newer weft (base/text/sized.h). */
weft_module *wfi_module_newer(weft_error **error, const char *type, const char *of);
/* weft_module_to_device, with the reason in *error if `error` is not NULL. */
weft_status wfi_module_move(weft_module *module, weft_device device, weft_error **error);
/* The finished module, or NULL (released, with the reason in *error) if building failed. */
weft_module *wfi_module_finish(weft_module *module, weft_error **error);

#endif
