/* SPDX-License-Identifier: Apache-2.0 */
/* rdm_stranger.h - sends frames that no honest worker sends, from the endpoint of a node. */
#ifndef RDM_STRANGER_H
#define RDM_STRANGER_H

#include "ofi/ofi_node.h"
#include "ofi_rdm/rdm.h"

/* Sends these bytes to the other node's endpoint. */
void stranger_say_bytes(ofi_node *from, const ofi_node *to, const void *bytes, size_t size);
/* Sends a frame; head->size is the size of the content. */
void stranger_say(ofi_node *from, const ofi_node *to, const wfrdm_head *head, const void *content);
/* The same in the name of a lane, with its next number. `change` may spoil the head; NULL: it does not. */
void stranger_say_on(wfi_lane *lane, wfrdm_head head, const void *content, void (*change)(wfrdm_head *head));
/* Sends a HELLO with this id and instance, which names `address`. */
void stranger_hello(ofi_node *from, const ofi_node *to, uint64_t id, uint64_t instance, const uint8_t *address,
                    size_t address_size);
uint64_t stranger_instance(const ofi_node *node);

#endif
