/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ofi_child.h - a process with a fabric of its own at the other end of a lane, for tests that kill or stop it; and
 * traffic on that lane, whose bytes are checked.
 */
#ifndef TESTS_OFI_CHILD_H
#define TESTS_OFI_CHILD_H

#include "children.h"
#include "ofi/ofi_node.h"

typedef struct ofi_child {
    size_t bytes;    /* of its memory; at most one operation's */
    unsigned access; /* to that memory: WFI_REMOTE_READ, WFI_REMOTE_WRITE */
    bool is_busy; /* it sends and receives (ofi_traffic) until it is killed; otherwise it pauses once it is connected */
} ofi_child;

typedef struct ofi_notice { /* what the child tells */
    uint8_t address[WFI_ADDRESS_MAX];
    size_t address_size;
    uint64_t base, key; /* of its memory */
} ofi_notice;

/* At most the bytes of one operation of the fabric. */
size_t ofi_child_bytes(const ofi_node *node, size_t bytes);
child ofi_child_start(const ofi_child *how, ofi_notice *out);
/* Connects the open node to the child. */
void ofi_child_meet(ofi_node *node, const ofi_notice *n, ofi_link *link);

/* ---- Traffic ----------------------------------------------------------------------------------------------------- */

#define OFI_TRAFFIC_BYTES ((size_t)1 << 20) /* of the memory that is read: the `bytes` of the child */

typedef struct
    ofi_traffic { /* one end of the lane: messages of all lengths out and in, and reads of the other's memory */
    ofi_job send, receive, read;
    uint8_t out[8000], in[8000];
    uint8_t *into;
    uint64_t sent, received, reads;
} ofi_traffic;

ofi_traffic *ofi_traffic_new(bool reads);
void ofi_traffic_free(ofi_traffic *t);
/* Checks the bytes of what has ended, and posts it anew. False: the lane is broken. */
bool ofi_traffic_go_on(ofi_traffic *t, wfi_lane *lane, const ofi_notice *n);
/* Whether everything that was posted was reported. */
bool ofi_traffic_is_over(const ofi_traffic *t);

#endif
