/* SPDX-License-Identifier: Apache-2.0 */
/* record.h - what rank 0 publishes: its addresses and port, and the job's secret. */
#ifndef WFI_RECORD_H
#define WFI_RECORD_H

#include "job/bootstrap/bootstrap.h"

#include <stdatomic.h>

#define WFI_RECORD_KEY 32 /* bytes of a record's name, the NUL included */

/* The name of the next record of this process: "weft/N". `count` counts the records of one method. */
void wfi_bootstrap_record_key(_Atomic unsigned *count, char key[WFI_RECORD_KEY]);

/*
 * Rank 0: opens the store's socket and fills the answer and the record. only_loopback: all workers are on this machine.
 * Makes a secret if answer->secret has none. If it fails, the record has the reason, for the other workers. Errors as
 * in wfi_listen_at, and WEFT_ERR_INVALID: no interface of that name, or an address of another machine.
 */
weft_status wfi_bootstrap_record_make(const wfi_bootstrap_ask *ask, bool only_loopback, wfi_bootstrap_answer *answer,
                                      char record[WEFT_BOOTSTRAP_BYTES], weft_error **error);
/*
 * Another worker: connects to rank 0's addresses in their order, and fills the answer with the first that can be
 * reached. Takes the secret if answer->secret has none. WEFT_ERR_RENDEZVOUS: none could be reached in time; the error
 * names them all; or the record says that rank 0 failed, and why. WEFT_ERR_PROTOCOL: it is no record.
 */
weft_status wfi_bootstrap_record_use(const wfi_bootstrap_ask *ask, const char record[WEFT_BOOTSTRAP_BYTES],
                                     wfi_bootstrap_answer *answer, weft_error **error);

#endif
