/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nn.h - what a module is inside.
 *
 * The lists are made as the module is built: own entries first, then those of the children in order, each under its full
 * name. A module that has become a child, or whose lists were lent, is sealed: nothing can be added any more, so the lists
 * need no lock and stay true. `training` and `refs` are atomic.
 */
#ifndef WFI_NN_H
#define WFI_NN_H

#include <weft/nn.h>

#include <stdatomic.h>

#define WFI_NAME_MAX 256 /* bytes of a full name, the NUL included */

typedef struct wfi_named {
    weft_tensor **tensors; /* one reference each */
    char **names;
    size_t count, own; /* the first `own` are the module's, the others its children's */
} wfi_named;

struct weft_module {
    _Atomic uint32_t refs;
    atomic_bool training;
    atomic_bool adopted;      /* it is another's child */
    atomic_bool sealed_lists; /* its lists were lent */
    const weft_module_type *type;
    void *state;
    weft_status status; /* the first failure of building */
    wfi_named parameters, buffers;
    weft_module **children; /* one reference each */
    char **child_names;
    size_t child_count;
};

/* Logs at debug why a constructor returns NULL; returns NULL. */
weft_module *wfi_module_refuse(const char *type, const char *why);
/* The finished module, or NULL (released) if building failed. */
weft_module *wfi_module_finish(weft_module *module);

#endif
