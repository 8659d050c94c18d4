/* SPDX-License-Identifier: Apache-2.0 */
/* promise.h - what the failure of a call says about whether the call ran (weft/rpc.h). */
#ifndef TESTS_RPC_PROMISE_H
#define TESTS_RPC_PROMISE_H

#include <weft/status.h>

/* True: it surely did not run. `inner` is weft_error_remote_code. */
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
