/* SPDX-License-Identifier: Apache-2.0 */
/* ofi_node.c - see ofi_node.h. */
#include "ofi/ofi_node.h"
#include "lanes.h"

#include "base/clock.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

uint64_t ofi_now_ms(void)
{
    return wfi_now(&wfi_clock_real) / 1000000;
}

const wfi_fabric_ops *ofi_ops(void)
{
    const char *name = getenv("TEST_FABRIC");
    const wfi_fabric_ops *ops = wfi_fabric_find(name ? name : "tcp");
    assert_non_null(ops);
    return ops;
}

bool ofi_is_tcp(void)
{
    return ofi_ops() == &wfi_fabric_tcp;
}

bool ofi_is_rdm(void)
{
    static const wfi_fabric_ops *const all[] = {&wfi_fabric_shm, &wfi_fabric_rxm,  &wfi_fabric_efa,
                                                &wfi_fabric_cxi, &wfi_fabric_psm3, &wfi_fabric_opx};
    for (size_t i = 0; i < sizeof(all) / sizeof(*all); i++)
        if (ofi_ops() == all[i])
            return true;
    return false;
}

bool ofi_has_ports(void)
{
    return ofi_ops() != &wfi_fabric_host && !ofi_is_rdm();
}

bool ofi_announces(void)
{
    return ofi_ops() != &wfi_fabric_verbs;
}

bool ofi_tells_death(void)
{
    return !ofi_is_rdm() || ofi_ops() == &wfi_fabric_shm;
}

bool ofi_reads(const ofi_node *node)
{
    return !ofi_ops()->limits(node->fabric)->no_reads;
}

bool ofi_writes(void)
{
    return ofi_ops()->write != NULL;
}

uint64_t ofi_slow(void)
{
    const char *factor = getenv("TEST_SLOW");
    return factor ? strtoull(factor, NULL, 10) : 1;
}

wfi_region *ofi_region_open(wfi_fabric *fabric, void *data, size_t size)
{
    wfi_region *region = NULL;
    if (ofi_ops()->limits(fabric)->needs_local_regions)
        assert_int_equal(ofi_ops()->region_open(fabric, &WFI_HOST_MEMORY(data, size), WFI_LOCAL, &region), WEFT_OK);
    return region;
}

wfi_region *ofi_local(ofi_node *node, void *data, size_t size)
{
    wfi_region *region = ofi_region_open(node->fabric, data, size);
    assert_true(node->region_count < OFI_REGIONS_MAX);
    if (region)
        node->regions[node->region_count++] = region;
    return region;
}

void ofi_drop(ofi_node *node)
{
    while (node->region_count > 0)
        ofi_ops()->region_close(node->fabric, node->regions[--node->region_count]);
}

void ofi_node_open_with(ofi_node *node, const wfi_fabric_options *options)
{
    weft_error *error = NULL;
    memset(node, 0, sizeof(*node));
    weft_status status = ofi_ops()->open(options, &node->fabric, &error);
    if (status != WEFT_OK)
        weft_error_print(error, stderr);
    assert_int_equal(status, WEFT_OK);
    node->address_size = ofi_ops()->address(node->fabric, node->address);
}

void ofi_node_open(ofi_node *node)
{
    ofi_node_open_with(node, &(wfi_fabric_options){.towards = "127.0.0.1"});
}

void ofi_hang_up(ofi_link *link)
{
    if (link->lane)
        ofi_ops()->lane_close(link->lane);
    link->lane = NULL;
}

void ofi_bury(const uint8_t *address, size_t size)
{
    char name[128], path[160];
    if (ofi_ops() != &wfi_fabric_shm)
        return;
    ofi_ops()->address_text(address, size, name, sizeof(name));
    snprintf(path, sizeof(path), "/dev/shm/%s", name);
    assert_int_equal(unlink(path), 0);
}

void ofi_node_close(ofi_node *node)
{
    for (int i = 0; i < node->accepted_count; i++)
        ofi_hang_up(&node->accepted[i]);
    if (node->waiting)
        ofi_ops()->reject(node->fabric, node->waiting);
    ofi_drop(node);
    ofi_ops()->close(node->fabric);
}

void ofi_job_init(ofi_job *job)
{
    memset(job, 0, sizeof(*job));
}

static void on_request(ofi_node *node, wfi_event *event)
{
    node->requests++;
    memcpy(node->asked, event->data, event->data_size);
    node->asked_size = event->data_size;
    if (node->passive) {
        node->waiting = event->request;
        return;
    }
    if (node->refuse || node->accepted_count == OFI_LINKS_MAX) {
        ofi_ops()->reject(node->fabric, event->request);
        return;
    }
    ofi_link *link = &node->accepted[node->accepted_count];
    weft_status status = lanes_accept(node->fabric, event->request, "yes", 3, link, &link->lane);
    assert_true(status == WEFT_OK || !ofi_announces()); /* others may know already that the caller has gone */
    node->accepted_count += status == WEFT_OK;
}

static void on_event(ofi_node *node, wfi_event *event)
{
    ofi_link *link = event->lane_user;
    switch (event->kind) {
    case WFI_EVENT_REQUEST:
        on_request(node, event);
        break;
    case WFI_EVENT_CONNECTED:
        link->connected++;
        link->text = event->why;
        memcpy(link->data, event->data, event->data_size);
        link->data_size = event->data_size;
        break;
    case WFI_EVENT_CLOSED:
        link->closed++;
        link->why = event->status;
        link->text = event->why;
        break;
    case WFI_EVENT_SILENT:
        node->silent += event->count;
        break;
    case WFI_EVENT_PASSED:
        node->passed_fd = event->fd;
        node->passed_size = event->data_size;
        memcpy(node->passed, event->data, event->data_size);
        break;
    }
}

static size_t step_one(ofi_node *node)
{
    wfi_event events[4];
    wfi_completion done[8];
    size_t event_count = ofi_ops()->poll_events(node->fabric, events, 4);
    for (size_t i = 0; i < event_count; i++)
        on_event(node, &events[i]);
    size_t count = ofi_ops()->poll(node->fabric, done, 8);
    for (size_t i = 0; i < count; i++) {
        ofi_job *job = (ofi_job *)done[i].op;
        job->reports++;
        job->status = done[i].status;
        job->size = done[i].size;
        job->order = node->completions++;
    }
    return event_count + count;
}

void ofi_step(ofi_node *a, ofi_node *b)
{
    size_t count = step_one(a) + (b && !b->deaf ? step_one(b) : 0);
    if (count == 0)
        usleep(20);
}

int ofi_call(const ofi_node *node, const void *bytes, size_t size)
{
    struct sockaddr_in to = {.sin_family = AF_INET};
    memcpy(&to.sin_port, node->address + 1, 2);
    memcpy(&to.sin_addr, node->address + 3, 4);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    if (size)
        assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), (ssize_t)size);
    return fd;
}

void ofi_dial(ofi_node *from, ofi_node *to, ofi_link *link, const void *data, size_t size)
{
    memset(link, 0, sizeof(*link));
    assert_int_equal(lanes_connect(from->fabric, to->address, to->address_size, data, size, link, &link->lane),
                     WEFT_OK);
}

ofi_link *ofi_join(ofi_node *from, ofi_node *to, ofi_link *link)
{
    int index = to->accepted_count;
    ofi_dial(from, to, link, "hello", 5);
    ofi_until(from, to, link->connected && to->accepted_count > index && to->accepted[index].connected);
    return &to->accepted[index];
}
