/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ofi_node.h - a fabric with an owner that does nothing but keep count, for tests in one thread.
 *
 * TEST_FABRIC names the fabric; the default is tcp. TEST_SLOW is a factor for all time limits, for emulated machines.
 *
 * A node accepts every request unless told otherwise. Whoever waits steps all the nodes that it names.
 */
#ifndef OFI_NODE_H
#define OFI_NODE_H

#include "fabric.h"

#include "unit.h"
#include <string.h>

typedef struct ofi_link { /* lane_user */
    wfi_lane *lane;
    int connected, closed;
    weft_status why;
    const char *text; /* of the last event */
    uint8_t data[WFI_CONNECT_DATA_MAX];
    size_t data_size;
} ofi_link;

typedef struct ofi_job {
    wfi_fabric_op op; /* first member: a completion names it */
    int reports;
    weft_status status;
    size_t size;
    int order; /* among the completions of its node */
} ofi_job;

#define OFI_LINKS_MAX 64
#define OFI_REGIONS_MAX 16

typedef struct ofi_node {
    wfi_fabric *fabric;
    uint8_t address[WFI_ADDRESS_MAX];
    size_t address_size;
    bool refuse;  /* requests */
    bool passive; /* leaves requests unanswered in `waiting` */
    bool deaf;    /* is not stepped by others: makes no progress */
    wfi_connect_request *waiting;
    ofi_link accepted[OFI_LINKS_MAX];
    int accepted_count, requests;
    size_t silent;
    int passed_fd; /* the last descriptor that came, for the test to close */
    uint8_t passed[WFI_CONNECT_DATA_MAX];
    size_t passed_size;
    uint8_t asked[WFI_CONNECT_DATA_MAX]; /* the last request's data */
    size_t asked_size;
    int completions;
    wfi_region *regions[OFI_REGIONS_MAX];
    int region_count;
} ofi_node;

const wfi_fabric_ops *ofi_ops(void);
bool ofi_is_tcp(void);      /* its targets have to poll; knows no devices */
bool ofi_is_rdm(void);      /* providers/ofi_rdm */
bool ofi_has_ports(void);   /* and interfaces, and addresses as tcp has them */
bool ofi_announces(void);   /* announces each break at both ends, without a close */
bool ofi_tells_death(void); /* announces that the process at the other end has ended */
bool ofi_reads(const ofi_node *node);
bool ofi_writes(void);
uint64_t ofi_slow(void);
/* A region for local use; NULL if the fabric needs none. The node closes its regions (ofi_drop, or when it is
 * closed). */
wfi_region *ofi_region_open(wfi_fabric *fabric, void *data, size_t size);
wfi_region *ofi_local(ofi_node *node, void *data, size_t size);
void ofi_drop(ofi_node *node);

void ofi_node_open(ofi_node *node);
void ofi_node_open_with(ofi_node *node, const wfi_fabric_options *options);
void ofi_node_close(ofi_node *node); /* and its accepted lanes */
void ofi_job_init(ofi_job *job);
void ofi_step(ofi_node *a, ofi_node *b); /* b may be NULL; sleeps a little if nothing happened */
void ofi_dial(ofi_node *from, ofi_node *to, ofi_link *link, const void *data, size_t size);
ofi_link *ofi_join(ofi_node *from, ofi_node *to, ofi_link *link); /* dial, and wait; gives the other end */
void ofi_hang_up(ofi_link *link);
/* Removes what a killed process with this address leaves behind: on shm, a file. */
void ofi_bury(const uint8_t *address, size_t size);
/* A socket that is connected to the node's port and has said `bytes`, as anybody can. */
int ofi_call(const ofi_node *node, const void *bytes, size_t size);
uint64_t ofi_now_ms(void);

/* Steps until `condition` holds; fails the test after ten seconds, times TEST_SLOW. */
#define ofi_until(a, b, condition)                                                                                     \
    do {                                                                                                               \
        uint64_t ofi_limit = ofi_now_ms() + 10000 * ofi_slow();                                                        \
        while (!(condition)) {                                                                                         \
            ofi_step(a, b);                                                                                            \
            if (ofi_now_ms() > ofi_limit)                                                                              \
                fail_msg("gave up waiting for %s", #condition);                                                        \
        }                                                                                                              \
    } while (0)

#endif
