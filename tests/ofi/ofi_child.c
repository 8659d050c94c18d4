/* SPDX-License-Identifier: Apache-2.0 */
/* ofi_child.c - see ofi_child.h. */
#include "ofi/ofi_child.h"
#include "lanes.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint8_t right(size_t at)
{
    return (uint8_t)(at * 7 + (at >> 8));
}

/* ---- Traffic ----------------------------------------------------------------------------------------------------- */

static size_t length_of(uint64_t number)
{
    return 8 + number * 977 % 7900;
}

ofi_traffic *ofi_traffic_new(bool reads)
{
    ofi_traffic *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    t->into = malloc(OFI_TRAFFIC_BYTES);
    assert_non_null(t->into);
    t->send.reports = t->receive.reports = 1;
    t->read.reports = reads;
    return t;
}

void ofi_traffic_free(ofi_traffic *t)
{
    free(t->into);
    free(t);
}

/* A job that was refused is not reported: it counts as reported, so that nobody waits for it. */
static bool posted(ofi_job *job, weft_status status)
{
    job->reports = status != WEFT_OK;
    job->status = status;
    return status == WEFT_OK;
}

static bool send_next(ofi_traffic *t, wfi_lane *lane)
{
    size_t size = length_of(t->sent);
    ofi_job_init(&t->send);
    memcpy(t->out, &t->sent, 8);
    memset(t->out + 8, (int)(t->sent++ & 255), size - 8);
    return posted(&t->send, ofi_ops()->send(lane, &t->send.op, &(wfi_iov){.data = t->out, .size = size}, 1));
}

static bool receive_next(ofi_traffic *t, wfi_lane *lane)
{
    if (t->receive.size) { /* 0: the first */
        uint64_t number;
        memcpy(&number, t->in, 8);
        assert_int_equal(number, t->received);
        assert_int_equal(t->receive.size, length_of(t->received));
        for (size_t i = 8; i < t->receive.size; i++)
            assert_int_equal(t->in[i], t->received & 255);
        t->received++;
    }
    ofi_job_init(&t->receive);
    return posted(&t->receive,
                  ofi_ops()->post_recv(lane, &t->receive.op, &(wfi_receive_buffer){t->in, sizeof(t->in), NULL}, 1));
}

static bool read_next(ofi_traffic *t, wfi_lane *lane, const ofi_notice *n)
{
    for (size_t i = 0; i < OFI_TRAFFIC_BYTES && t->reads; i += 509)
        assert_int_equal(t->into[i], right(i));
    memset(t->into, 0, OFI_TRAFFIC_BYTES);
    t->reads++;
    ofi_job_init(&t->read);
    return posted(&t->read, ofi_ops()->read(lane, &t->read.op, t->into, OFI_TRAFFIC_BYTES, NULL, n->base, n->key));
}

static bool is_done(const ofi_job *job)
{
    return job->reports && job->status == WEFT_OK;
}

bool ofi_traffic_go_on(ofi_traffic *t, wfi_lane *lane, const ofi_notice *n)
{
    bool works = !is_done(&t->send) || send_next(t, lane);
    works = works && (!is_done(&t->receive) || receive_next(t, lane));
    return works && (!is_done(&t->read) || read_next(t, lane, n));
}

bool ofi_traffic_is_over(const ofi_traffic *t)
{
    return t->send.reports && t->receive.reports && (t->read.reports || !t->reads);
}

/* ---- The child --------------------------------------------------------------------------------------------------- */

size_t ofi_child_bytes(const ofi_node *node, size_t bytes)
{
    size_t most = ofi_ops()->limits(node->fabric)->rma_max;
    return most < bytes ? most : bytes;
}

static void expose(ofi_node *node, const ofi_child *how)
{
    size_t bytes = ofi_child_bytes(node, how->bytes);
    uint8_t *memory = calloc(1, bytes);
    wfi_region *region;
    ofi_notice n = {.address_size = node->address_size};
    for (size_t i = 0; memory && how->is_busy && i < bytes; i++)
        memory[i] = right(i);
    if (!memory || ofi_ops()->region_open(node->fabric, &WFI_HOST_MEMORY(memory, bytes), how->access, &region))
        _exit(1);
    memcpy(n.address, node->address, node->address_size);
    n.base = region->base;
    n.key = region->key;
    child_tell(&n, sizeof(n));
}

static void serve(const ofi_child *how)
{
    static ofi_node node;
    ofi_node_open(&node);
    expose(&node, how);
    while (node.accepted_count == 0 || !node.accepted[0].connected)
        ofi_step(&node, NULL);
    ofi_traffic *t = ofi_traffic_new(false); /* its own memory is read */
    while (how->is_busy) {
        (void)ofi_traffic_go_on(t, node.accepted[0].lane, NULL);
        ofi_step(&node, NULL);
    }
    for (;;)
        pause();
}

child ofi_child_start(const ofi_child *how, ofi_notice *out)
{
    child peer = child_fork("peer");
    if (!peer.pid)
        serve(how);
    child_receive(&peer, out, sizeof(*out));
    return peer;
}

void ofi_child_meet(ofi_node *node, const ofi_notice *n, ofi_link *link)
{
    memset(link, 0, sizeof(*link));
    assert_int_equal(lanes_connect(node->fabric, n->address, n->address_size, NULL, 0, link, &link->lane), WEFT_OK);
    ofi_until(node, NULL, link->connected);
}
