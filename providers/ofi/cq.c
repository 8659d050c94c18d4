/* SPDX-License-Identifier: Apache-2.0 */
/* cq.c - completions: reads them in batches, and completes their operations. */
#include "objects.h"

#include "base/text/log.h"

#define BATCH 32

static weft_status status_of_error(wfofi_op *op, int err)
{
    if (err == FI_ETRUNC)
        return WEFT_ERR_TOO_LARGE;
    wfi_mutex_lock(&op->lane->lock);
    bool closing = op->lane->state == WFOFI_CLOSING;
    wfi_mutex_unlock(&op->lane->lock);
    return closing ? WEFT_ERR_CANCELLED : WEFT_ERR_UNREACHABLE;
}

/*
 * After a message that did not fit. libfabric 1.17 ends the connection itself. 2.1 discards the rest of the message
 * and continues, although the two ends no longer agree on the data sent.
 */
static void break_lane(wfi_lane *lane)
{
    wfi_mutex_lock(&lane->lock); /* lane_close changes the state before it closes the endpoint */
    if (lane->state < WFOFI_BROKEN)
        (void)fi_shutdown(lane->ep, 0);
    wfi_mutex_unlock(&lane->lock);
}

static void report(wfofi_fabric *fabric, wfofi_op *op, weft_status status, size_t size)
{
    if (op->kind == WFOFI_PIECE)
        wfofi_bounce_step(fabric, op, status);
    else
        wfofi_complete(fabric, op, status, size);
}

/* Of an error entry, only the operation and the error are valid. libfabric 1.17 also returns error entries without an
 * operation, of its own transfers; these are skipped. */
static bool read_error(wfofi_fabric *fabric)
{
    struct fi_cq_err_entry entry = {0};
    if (fi_cq_readerr(fabric->cq, &entry, 0) != 1)
        return false;
    wfofi_op *op = entry.op_context;
    if (!op)
        return true;
    if (entry.err == FI_ETRUNC)
        break_lane(op->lane);
    report(fabric, op, status_of_error(op, entry.err), 0);
    return true;
}

/* Reads one batch; true if there may be more. */
static bool read_batch(wfofi_fabric *fabric)
{
    struct fi_cq_msg_entry entries[BATCH];
    ssize_t count = fi_cq_read(fabric->cq, entries, BATCH);
    if (count == -FI_EAVAIL)
        return read_error(fabric);
    for (ssize_t i = 0; i < count; i++) {
        if (entries[i].op_context)
            report(fabric, entries[i].op_context, WEFT_OK, entries[i].len);
    }
    if (count < 0 && count != -FI_EAGAIN)
        wfofi_log(fabric, WEFT_LOG_ERROR, "reading completions: %s", fi_strerror((int)-count));
    return count > 0;
}

void wfofi_cq_drain(wfofi_fabric *fabric)
{
    wfi_assert_held(&fabric->cq_lock);
    while (read_batch(fabric))
        ;
}

void wfofi_cq_progress(wfofi_fabric *fabric)
{
    wfi_assert_held(&fabric->cq_lock);
    read_batch(fabric);
    wfofi_bounces_retry(fabric);
}
