/* SPDX-License-Identifier: Apache-2.0 */
/* record.h - what rank 0 publishes: its addresses and port, and the job's secret. */
#ifndef WFI_RECORD_H
#define WFI_RECORD_H

#include "job/bootstrap/bootstrap.h"

/*
 * Rank 0: opens the store's socket and fills the answer and the record. only_loopback: all workers are on this machine.
 * Makes a secret if answer->secret has none. Errors as in wfi_listen_at.
 */
weft_status wfi_record_make(const wfi_bootstrap_ask *ask, bool only_loopback, wfi_bootstrap_answer *answer,
                            char record[WEFT_BOOTSTRAP_BYTES], weft_error **error);
/*
 * Another worker: connects to rank 0's addresses in their order, and fills the answer with the first that can be
 * reached. Takes the secret if answer->secret has none. WEFT_ERR_RENDEZVOUS: none could be reached in time; the error
 * names them all. WEFT_ERR_PROTOCOL: it is no record.
 */
weft_status wfi_record_use(const wfi_bootstrap_ask *ask, const char record[WEFT_BOOTSTRAP_BYTES],
                           wfi_bootstrap_answer *answer, weft_error **error);

#endif
