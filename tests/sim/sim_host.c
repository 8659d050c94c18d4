/* SPDX-License-Identifier: Apache-2.0 */
/* sim_host.c - what the tests of the simulation share. */
#include "sim_host.h"
#include "lanes.h"
#include "make.h"

static void body_main(weft_sim *sim, int rank, void *arg)
{
    void (**body)(weft_sim *) = arg;
    (*body)(sim);
}

uint64_t host_world(const weft_sim_options *options, void (*body)(weft_sim *sim))
{
    weft_sim *sim = sim_open(options);
    assert_non_null(sim);
    assert_int_equal(weft_sim_spawn(sim, DIRECTOR, body_main, &body), WEFT_OK);
    assert_int_equal(weft_sim_run(sim, 1000 * 1000), WEFT_OK);
    uint64_t hash = weft_sim_trace_hash(sim);
    weft_sim_close(sim);
    return hash;
}

static void ready(void *arg)
{
    sim_host *host = arg;
    assert_null(wfi_fiber_current());
    host->calls++;
    if (host->waiter)
        wfi_unpark(host->waiter);
}

void host_open(sim_host *host, weft_sim *sim, int rank)
{
    host_open_kind(host, sim, rank, "sim");
}

void host_open_kind(sim_host *host, weft_sim *sim, int rank, const char *fabric)
{
    *host = (sim_host){.sim = sim, .ops = wfi_fabric_find(fabric)};
    assert_non_null(host->ops);
    assert_string_equal(host->ops->name, fabric);
    wfi_fabric_options options = {.rank = rank, .sim = sim, .ready = ready, .ready_arg = host};
    assert_int_equal(host->ops->open(&options, &host->fabric, NULL), WEFT_OK);
}

void host_close(sim_host *host)
{
    host->ops->close(host->fabric);
    host->fabric = NULL;
}

size_t host_address(const sim_host *host, uint8_t *out)
{
    return host->ops->address(host->fabric, out);
}

/* Gives way until ready is called or time is up. */
static bool wait_ready(sim_host *host, uint64_t deadline_ns)
{
    wfi_parker parker;
    wfi_parker_init(&parker);
    host->waiter = &parker;
    bool woken = wfi_park(&parker, deadline_ns);
    host->waiter = NULL;
    return woken;
}

wfi_event host_event(sim_host *host, wfi_event_kind kind)
{
    wfi_event event;
    uint64_t deadline_ns = weft_sim_now(host->sim) + 10 * SECOND_NS;
    while (host->ops->poll_events(host->fabric, &event, 1) == 0)
        if (!wait_ready(host, deadline_ns))
            fail_msg("no event %d", (int)kind);
    assert_int_equal(event.kind, kind);
    return event;
}

wfi_completion host_completion(sim_host *host)
{
    wfi_completion done;
    uint64_t deadline_ns = weft_sim_now(host->sim) + 10 * SECOND_NS;
    while (host->ops->poll(host->fabric, &done, 1) == 0)
        if (!wait_ready(host, deadline_ns))
            fail_msg("no completion");
    return done;
}

void host_expect(sim_host *host, const wfi_fabric_op *op, weft_status status)
{
    wfi_completion done = host_completion(host);
    assert_ptr_equal(done.op, op);
    assert_int_equal(done.status, status);
}

void host_silence(sim_host *host, uint64_t ns)
{
    wfi_event event;
    wfi_completion done;
    weft_sim_sleep(host->sim, ns);
    assert_int_equal(host->ops->poll_events(host->fabric, &event, 1), 0);
    assert_int_equal(host->ops->poll(host->fabric, &done, 1), 0);
}

wfi_lane *host_connect(sim_host *from, const sim_host *to, const char *data)
{
    uint8_t address[WFI_ADDRESS_MAX];
    wfi_lane *lane = NULL;
    assert_int_equal(lanes_connect(from->fabric, address, host_address(to, address), data, strlen(data), from, &lane),
                     WEFT_OK);
    return lane;
}

void host_join(sim_host *a, sim_host *b, wfi_lane **lane_a, wfi_lane **lane_b)
{
    *lane_a = host_connect(a, b, "hello");
    wfi_event event = host_event(b, WFI_EVENT_REQUEST);
    assert_int_equal(lanes_accept(b->fabric, event.request, "welcome", 7, b, lane_b), WEFT_OK);
    host_event(a, WFI_EVENT_CONNECTED);
    host_event(b, WFI_EVENT_CONNECTED);
}

weft_status host_send(sim_host *host, wfi_lane *lane, wfi_fabric_op *op, const char *text)
{
    return host->ops->send(lane, op, &(wfi_iov){.data = text, .size = strlen(text)}, 1);
}
