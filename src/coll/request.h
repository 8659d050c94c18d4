/* SPDX-License-Identifier: Apache-2.0 */
/*
 * request.h - one call of a function of weft/group.h, before it is an operation.
 *
 * Not [locked]: any thread. An invalid request is refused with a line in the log, and changes nothing.
 */
#ifndef WFI_REQUEST_H
#define WFI_REQUEST_H

#include "coll/group.h"

typedef struct wfi_group_request {
    wfi_operation_kind kind;
    const char *name;         /* of the function */
    const weft_tensor *input; /* NULL: there is none, or the user gave none */
    weft_tensor *output;      /* likewise; or the same as `input`: in place */
    weft_op how;
    bool reduces;
    size_t root; /* WFI_SENDRECV: the other member */
    bool sends;  /* WFI_SENDRECV */
    int64_t timeout_ms;
} wfi_group_request;

/* Starts the request; *out completes when it has ended. */
weft_status wfi_request_start(weft_group *group, const wfi_group_request *request, weft_future **out);
weft_status wfi_request_wait(weft_group *group, const wfi_group_request *request); /* starts it, and waits */

/* For values.c, which makes its operation itself. */
wfi_operation *wfi_operation_create(weft_group *group, wfi_operation_kind kind, int64_t timeout_ms);
weft_status wfi_operation_run(wfi_operation *operation, weft_future **out); /* starts it; takes it over */
void wfi_group_lacks_memory(weft_group *group, wfi_operation_kind kind); /* it is over: the others would wait for us */
/* WEFT_OK, or why the group takes no operation. `name`: of the function, for the log. */
weft_status wfi_group_may_start(weft_group *group, const char *name);
weft_status wfi_group_may_wait(weft_group *group, const char *name); /* whether this thread may */

#endif
