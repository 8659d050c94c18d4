/* SPDX-License-Identifier: Apache-2.0 */
/* functions.c - the program's own functions carry the record (weft/bootstrap.h). */
#include "job/bootstrap/record.h"

#include "base/error.h"

#include <sodium.h>

static bool is_there(const wfi_bootstrap_ask *ask)
{
    return ask->functions != NULL;
}

static weft_status failed(const char *function, const char *key, weft_status status, weft_error **error)
{
    if (status > 0 || !weft_status_text(status))
        status = WEFT_ERR_INVALID;
    return wfi_error_fail(error, status, "weft_bootstrap.%s failed for the key \"%s\": %s", function, key,
                          weft_status_text(status));
}

static weft_status find(const wfi_bootstrap_ask *ask, wfi_bootstrap_answer *answer, weft_error **error)
{
    static _Atomic unsigned agents;
    const weft_bootstrap *with = ask->functions;
    char record[WEFT_BOOTSTRAP_BYTES] = "", key[WFI_RECORD_KEY];
    wfi_bootstrap_record_key(&agents, key);
    if (!with->publish || !with->lookup)
        return wfi_error_fail(error, WEFT_ERR_INVALID, "weft_bootstrap needs publish and lookup: %s is NULL",
                              with->publish ? "lookup" : "publish");
    weft_status status = WEFT_OK, theirs = WEFT_OK;
    if (ask->rank == 0) {
        /* The others wait for a record in any case: if there is no store, it has the reason. */
        status = wfi_bootstrap_record_make(ask, false, answer, record, error);
        theirs = with->publish(key, record, sizeof(record), with->arg);
        if (!status && theirs)
            status = failed("publish", key, theirs, error);
    }
    if (with->barrier && (theirs = with->barrier(with->arg)) && !status)
        status = failed("barrier", key, theirs, error);
    if (ask->rank != 0 && !status) {
        theirs = with->lookup(key, record, sizeof(record), ask->timeout_ms, with->arg);
        status = theirs ? failed("lookup", key, theirs, error) : wfi_bootstrap_record_use(ask, record, answer, error);
    }
    sodium_memzero(record, sizeof(record));
    return status;
}

const wfi_bootstrap wfi_bootstrap_functions = {.name = "weft_bootstrap", .is_there = is_there, .find = find};
