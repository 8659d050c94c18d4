/* SPDX-License-Identifier: Apache-2.0 */
/* rdm_strangers_test.c - forged frames: from processes without a lane, and from a peer that breaks the rules. */
#include "lanes.h"
#include "rdm/rdm_stranger.h"
#include "prng.h"

#include <stdlib.h>

typedef struct scene { /* two honest nodes with a lane, and a stranger without one */
    ofi_node a, b, stranger;
    ofi_link link;
    ofi_link *other;
} scene;

static int scene_open(void **state)
{
    scene *s = calloc(1, sizeof(*s));
    ofi_node_open(&s->a);
    ofi_node_open(&s->b);
    ofi_node_open(&s->stranger);
    s->other = ofi_join(&s->a, &s->b, &s->link);
    *state = s;
    return 0;
}

static int scene_close(void **state)
{
    scene *s = *state;
    ofi_hang_up(&s->link);
    ofi_node_close(&s->a);
    ofi_node_close(&s->b);
    ofi_node_close(&s->stranger);
    free(s);
    return 0;
}

static void step_all(scene *s)
{
    ofi_step(&s->stranger, &s->a);
    ofi_step(&s->b, NULL);
}

/* The lane of the honest two still carries messages both ways. */
static void the_lane_works(scene *s)
{
    ofi_job jobs[4];
    char in[2][8] = {{0}};
    for (int i = 0; i < 4; i++)
        ofi_job_init(&jobs[i]);
    wfi_lane *const lanes[2] = {s->link.lane, s->other->lane};
    for (int i = 0; i < 2; i++)
        assert_int_equal(ofi_ops()->post_recv(lanes[i], &jobs[i].op, &(wfi_receive_buffer){in[i], 8, NULL}, 1),
                         WEFT_OK);
    for (int i = 0; i < 2; i++)
        assert_int_equal(ofi_ops()->send(lanes[i], &jobs[2 + i].op, &(wfi_iov){"right", 6, NULL}, 1), WEFT_OK);
    ofi_until(&s->a, &s->b, jobs[0].reports && jobs[1].reports && jobs[2].reports && jobs[3].reports);
    for (int i = 0; i < 2; i++)
        assert_string_equal(in[i], "right");
    assert_int_equal(s->link.closed + s->other->closed, 0);
}

static void bytes_that_are_no_frames_are_discarded(void **state)
{
    scene *s = *state;
    uint8_t bytes[4000];
    uint64_t random = 3;
    for (int i = 0; i < 300; i++) {
        size_t size = 1 + (size_t)prng_below(&random, sizeof(bytes));
        for (size_t j = 0; j < size; j++)
            bytes[j] = (uint8_t)prng_next(&random);
        if (i % 2) { /* a head that is right, except for one byte */
            const wfrdm_head head = {.kind = (uint8_t)(1 + i % 9), .size = (uint16_t)(size % 900), .to = (uint64_t)i};
            wfrdm_head_write(&head, bytes);
            bytes[prng_below(&random, WFRDM_HEAD_BYTES)] ^= (uint8_t)(1 + prng_below(&random, 255));
            size = WFRDM_HEAD_BYTES + size % 900;
        }
        stranger_say_bytes(&s->stranger, &s->b, bytes, size);
        step_all(s);
    }
    the_lane_works(s);
    assert_int_equal(s->b.requests, 1);
}

static void nobody_can_guess_a_lane(void **state)
{
    scene *s = *state;
    uint64_t id = s->other->lane->id;
    uint32_t next = s->other->lane->frames_in;
    for (unsigned bit = 1; bit < 64; bit++)
        for (uint8_t kind = WFRDM_ANSWER; kind <= WFRDM_BYTES; kind++) {
            const wfrdm_head head = {.kind = kind, .to = (id ^ UINT64_C(1) << bit) | 1, .sequence = next};
            stranger_say(&s->stranger, &s->b, &head, NULL);
            step_all(s);
        }
    the_lane_works(s);
}

/* The process that this HELLO is for has ended, and this one has its address. */
static void a_hello_for_a_former_process_is_refused(void **state)
{
    scene *s = *state;
    ofi_link link;
    ofi_node former = s->b;
    former.address[8] ^= 1;
    memset(&link, 0, sizeof(link));
    assert_int_equal(lanes_connect(s->a.fabric, former.address, former.address_size, "hello", 5, &link, &link.lane),
                     WEFT_OK);
    ofi_until(&s->a, &s->b, link.closed);
    assert_int_equal(link.why, WEFT_ERR_UNREACHABLE);
    assert_int_equal(s->b.requests, 1);
    ofi_hang_up(&link);
    the_lane_works(s);
}

static void a_repeated_hello_is_one_request(void **state)
{
    scene *s = *state;
    const ofi_node *from = &s->stranger;
    s->b.passive = true;
    for (int i = 0; i < 3; i++)
        stranger_hello(&s->stranger, &s->b, 4242, stranger_instance(&s->b), from->address, from->address_size);
    stranger_hello(&s->stranger, &s->b, s->other->lane->id, stranger_instance(&s->b), from->address,
                   from->address_size);
    for (uint64_t limit = ofi_now_ms() + 10000 * ofi_slow(); s->b.requests < 2 && ofi_now_ms() < limit;)
        step_all(s);
    for (uint64_t until = ofi_now_ms() + 200; ofi_now_ms() < until;)
        step_all(s);
    assert_int_equal(s->b.requests, 2); /* one is the honest lane's */
    the_lane_works(s);
}

static void a_hello_that_names_no_address_is_discarded(void **state)
{
    scene *s = *state;
    uint8_t address[WFI_ADDRESS_MAX];
    for (size_t size = 0; size <= WFI_ADDRESS_MAX; size++) {
        memset(address, 0, sizeof(address));
        memcpy(address, s->b.address, size < 16 ? size : 16);
        stranger_hello(&s->stranger, &s->b, 2 * size + 2, stranger_instance(&s->b), address, size);
        step_all(s);
    }
    for (uint64_t until = ofi_now_ms() + 100; ofi_now_ms() < until;)
        step_all(s);
    the_lane_works(s);
    assert_true(s->b.requests == 1 || ofi_ops() == &wfi_fabric_shm);
    assert_int_equal(s->b.accepted_count, s->b.requests);
}

static void many_hellos_are_refused_before_they_use_up_memory(void **state)
{
    scene *s = *state;
    const wfrdm *victim = wfrdm_of(s->b.fabric);
    s->b.deaf = true;
    for (uint64_t i = 1; i <= 4 * WFRDM_REQUESTS_MAX; i++) {
        stranger_hello(&s->stranger, &s->b, 2 * i, stranger_instance(&s->b), s->stranger.address,
                       s->stranger.address_size);
        wfi_completion done[4];
        assert_int_equal(ofi_ops()->poll(s->b.fabric, done, 4), 0); /* reads the frames, and no events */
        ofi_step(&s->stranger, NULL);
        assert_true(victim->request_count <= WFRDM_REQUESTS_MAX);
    }
    assert_int_equal(victim->request_count, WFRDM_REQUESTS_MAX);
    s->b.deaf = false;
    the_lane_works(s);
}

/* ---- A peer that breaks the rules ------------------------------------------------------------------------------- */

static void number_again(wfrdm_head *head)
{
    head->sequence--;
}

static void number_lost(wfrdm_head *head)
{
    head->sequence++;
}

static void too_much_credit(wfrdm_head *head)
{
    head->consumed += 1000000;
}

typedef struct wrong {
    const char *what;
    wfrdm_head head;
    uint64_t range[3]; /* content of a READ: remote, key, size */
    void (*change)(wfrdm_head *head);
    unsigned times;
} wrong;

static const wrong wrongs[] = {
    {.what = "a repeated number", .head = {.kind = WFRDM_CREDIT}, .change = number_again, .times = 1},
    {.what = "a lost frame", .head = {.kind = WFRDM_CREDIT}, .change = number_lost, .times = 1},
    {.what = "too much credit", .head = {.kind = WFRDM_CREDIT}, .change = too_much_credit, .times = 1},
    {.what = "another ANSWER", .head = {.kind = WFRDM_ANSWER}, .times = 1},
    {.what = "another READY", .head = {.kind = WFRDM_READY}, .times = 1},
    {.what = "a CREDIT with content", .head = {.kind = WFRDM_CREDIT, .size = 8}, .times = 1},
    {.what = "a part without a message", .head = {.kind = WFRDM_DATA, .size = 8}, .times = 1},
    {.what = "a message without end",
     .head = {.kind = WFRDM_DATA, .flags = WFRDM_FIRST, .size = 8, .total = UINT64_MAX},
     .times = 1},
    {.what = "more than announced",
     .head = {.kind = WFRDM_DATA, .flags = WFRDM_FIRST, .size = 8, .total = 4},
     .times = 1},
    {.what = "a part of no bytes", .head = {.kind = WFRDM_DATA, .flags = WFRDM_FIRST, .total = 4}, .times = 1},
    {.what = "more than was granted",
     .head = {.kind = WFRDM_DATA, .flags = WFRDM_FIRST, .size = 1, .total = 1},
     .times = 200},
    {.what = "bytes that nobody asked for", .head = {.kind = WFRDM_BYTES, .size = 8}, .times = 1},
    {.what = "a READ that is too short", .head = {.kind = WFRDM_READ, .size = 8}, .times = 1},
    {.what = "a READ of nothing", .head = {.kind = WFRDM_READ, .size = 24}, .range = {0, 1, 0}, .times = 1},
    {.what = "a READ of no region", .head = {.kind = WFRDM_READ, .size = 24}, .range = {0, 1, 8}, .times = 1},
    {.what = "a READ that is too long",
     .head = {.kind = WFRDM_READ, .size = 24},
     .range = {0, 1, UINT64_MAX},
     .times = 1},
};

/* The wrong peer loses its lane, and no other lane is affected. */
static void a_peer_that_breaks_the_rules_loses_its_lane(void **state)
{
    scene *s = *state;
    for (size_t i = 0; i < sizeof(wrongs) / sizeof(*wrongs); i++) {
        const wrong *w = &wrongs[i];
        ofi_link bad;
        ofi_job receive;
        uint8_t in[16];
        bool posts = w->times == 1;
        ofi_link *victim = ofi_join(&s->stranger, &s->b, &bad);
        ofi_job_init(&receive);
        if (posts)
            assert_int_equal(
                ofi_ops()->post_recv(victim->lane, &receive.op, &(wfi_receive_buffer){in, sizeof(in), NULL}, 1),
                WEFT_OK);
        for (unsigned k = 0; k < w->times; k++) {
            stranger_say_on(bad.lane, w->head, w->range, w->change);
            step_all(s);
        }
        ofi_until(&s->stranger, &s->b, victim->closed && bad.closed);
        assert_int_equal(victim->why, WEFT_ERR_FABRIC);
        ofi_until(&s->stranger, &s->b, !posts || receive.reports);
        assert_true(!posts || receive.status != WEFT_OK);
        ofi_hang_up(&bad);
        ofi_hang_up(victim);
        the_lane_works(s);
    }
}

/* Two parts that are each right, and longer together than the message was said to be. */
static void a_message_does_not_grow(void **state)
{
    scene *s = *state;
    ofi_link bad;
    ofi_job receive;
    uint8_t in[64], canary[64], content[32] = {9};
    memset(in, 7, sizeof(in));
    memset(canary, 7, sizeof(canary));
    ofi_link *victim = ofi_join(&s->stranger, &s->b, &bad);
    ofi_job_init(&receive);
    assert_int_equal(ofi_ops()->post_recv(victim->lane, &receive.op, &(wfi_receive_buffer){in, 40, NULL}, 1), WEFT_OK);
    const wfrdm_head first = {.kind = WFRDM_DATA, .flags = WFRDM_FIRST, .size = 32, .total = 40};
    const wfrdm_head more = {.kind = WFRDM_DATA, .size = 32};
    stranger_say_on(bad.lane, first, content, NULL);
    stranger_say_on(bad.lane, more, content, NULL);
    ofi_until(&s->stranger, &s->b, victim->closed && receive.reports);
    assert_int_not_equal(receive.status, WEFT_OK);
    assert_memory_equal(in + 32, canary, 32);
    ofi_hang_up(&bad);
    the_lane_works(s);
}

#define on_scene(test) cmocka_unit_test_setup_teardown(test, scene_open, scene_close)

int main(void)
{
    const struct CMUnitTest tests[] = {
        on_scene(bytes_that_are_no_frames_are_discarded),
        on_scene(nobody_can_guess_a_lane),
        on_scene(a_hello_for_a_former_process_is_refused),
        on_scene(a_repeated_hello_is_one_request),
        on_scene(a_hello_that_names_no_address_is_discarded),
        on_scene(many_hellos_are_refused_before_they_use_up_memory),
        on_scene(a_peer_that_breaks_the_rules_loses_its_lane),
        on_scene(a_message_does_not_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
