/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_net_naps.c - nets over a fabric without a descriptor for completions: tcp that hides its own. The linker puts
 * wfi_fabric_find below in the place of the library's.
 */
#include "net/net_bulk.h"

#define MANY 300

const wfi_fabric_ops *__real_wfi_fabric_find(const char *name);
const wfi_fabric_ops *__wrap_wfi_fabric_find(const char *name);

static int no_fd(wfi_fabric *fabric)
{
    return -1;
}

static wfi_fabric_ops ops;

const wfi_fabric_ops *__wrap_wfi_fabric_find(const char *name)
{
    const wfi_fabric_ops *found = __real_wfi_fabric_find(name);
    return found == &wfi_fabric_tcp ? &ops : found;
}

static void hide(void)
{
    ops = wfi_fabric_tcp;
    ops.wait_fd = no_fd;
}

/* One at a time, so that both sides sleep in between. */
static void body_turns(net_host *host)
{
    for (int i = 0; i < MANY; i++) {
        if (host->rank == i % 2)
            assert_int_equal(host_send_free(host, 1 - host->rank, (uint64_t)i / 2, 100), WEFT_OK);
        else
            host_until(host, &host->arrived, i / 2 + 1);
    }
    host_until(host, &host->done_ok, MANY / 2);
    host_meet(host, &host->world->finished);
}

static void messages_are_found_by_naps(void **state)
{
    net_world with = {.on_message = host_check_order}, without = {.on_message = host_check_order, .no_threads = true};
    hide();
    world_tcp(&with, 2, body_turns);
    world_tcp(&without, 2, body_turns);
}

static void transfers_are_found_by_naps(void **state)
{
    static const size_t sizes[] = {1, 4096, (3 << 20) - 7};
    hide();
    for (int kind = WFI_PULL; kind <= WFI_PUSH; kind++) {
        bulk_stage s = {.kind = (wfi_transfer_kind)kind, .sizes = sizes, .count = 3};
        net_world world = {.user = &s};
        world_tcp(&world, 2, bulk_stage_body);
    }
}

UNIT_MAIN(messages_are_found_by_naps, transfers_are_found_by_naps)
