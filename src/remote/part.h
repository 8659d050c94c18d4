/* SPDX-License-Identifier: Apache-2.0 */
/*
 * part.h - the part of a distributed optimizer at one owner. part_state.c frees it, and reads and sets its state;
 * part.c creates and steps it.
 */
#ifndef WFI_REMOTE_PART_H
#define WFI_REMOTE_PART_H

#include "base/mutex.h"
#include "optim/optim.h"

#include <weft/rpc.h>
#include <weft/rref.h>

typedef struct wfi_remote_part {
    weft_optimizer *optimizer;
    wfi_mutex lock; /* guards all below: one thread at a time uses an optimizer */
    /* number of steps and of states that were set, so that a reader of several pages notices a change between them */
    uint64_t changes;
    wfi_new_state *incoming;  /* a state that is being received, or NULL */
    uint64_t incoming_number; /* the caller's number of it */
    bool is_whole;            /* all of `incoming` has arrived and was checked */
} wfi_remote_part;

extern const weft_object_type wfi_remote_part_type;
void wfi_remote_part_drop(void *part);

/* The first argument of the call. WEFT_ERR_TYPE, and the errors of weft_rref_local_typed. */
weft_status wfi_remote_part_of(weft_call *call, wfi_remote_part **out);

/* Handlers of part_state.c. */
weft_status wfi_remote_part_run_state(weft_call *call, void *user);
weft_status wfi_remote_part_run_receive(weft_call *call, void *user);
weft_status wfi_remote_part_run_exchange(weft_call *call, void *user);

/* In the first byte of a page of state that an owner gets. */
enum { WFI_PAGE_FIRST = 1, WFI_PAGE_LAST = 2 };

/* An item of state in a message: the parameter u32, the name. Read: the name lives in `name`. */
void wfi_remote_part_write_item(wfi_writer *out, size_t parameter, const char *name);
void wfi_remote_part_read_item(wfi_reader *in, size_t *parameter, char name[WEFT_OPTIMIZER_NAME + 1]);

#endif
