/* SPDX-License-Identifier: Apache-2.0 */
/* promise.h - what the failure of a call says about whether the call ran (weft/rpc.h). */
#ifndef TESTS_RPC_PROMISE_H
#define TESTS_RPC_PROMISE_H

#include <weft/status.h>

/* The handler's status if it failed, WEFT_ERR_UNKNOWN if the call may have run, WEFT_OK if it did not. */
static inline weft_status inner_of(const weft_error *error)
{
    if (weft_error_code(error) == WEFT_ERR_REMOTE)
        return weft_error_handler_code(error);
    return error && weft_error_ran(error) == WEFT_RAN_MAYBE ? WEFT_ERR_UNKNOWN : WEFT_OK;
}

/* True: it surely did not run. `inner` is inner_of its error. */
static inline bool promises_not_run(weft_status status, weft_status inner)
{
    switch (status) {
    case WEFT_OK:
    case WEFT_ERR_REMOTE:
    case WEFT_ERR_UNKNOWN:
        return false;
    case WEFT_ERR_BUSY:
    case WEFT_ERR_AGAIN:
        return true;
    default:
        return inner == WEFT_OK;
    }
}

#endif
