/* SPDX-License-Identifier: Apache-2.0 */
/* rdm_frames_test.c - frames are read as they were written, and nothing else is read as a frame. */
#include "ofi_rdm/rdm.h"

#include "unit.h"
#include <string.h>

static const wfrdm_head head = {.kind = WFRDM_DATA,
                                .flags = WFRDM_FIRST,
                                .size = 3,
                                .to = UINT64_C(0x0123456789abcdef),
                                .sequence = 7,
                                .consumed = UINT32_MAX,
                                .total = UINT64_C(1) << 40};

static void a_head_is_read_as_written(void **state)
{
    uint8_t bytes[WFRDM_HEAD_BYTES + 3] = {0};
    wfrdm_head got;
    wfrdm_head_write(&head, bytes);
    assert_true(wfrdm_head_read(bytes, sizeof(bytes), &got));
    assert_int_equal(got.kind, head.kind);
    assert_int_equal(got.flags, head.flags);
    assert_int_equal(got.size, head.size);
    assert_int_equal(got.to, head.to);
    assert_int_equal(got.sequence, head.sequence);
    assert_int_equal(got.consumed, head.consumed);
    assert_int_equal(got.total, head.total);
}

static void a_frame_of_another_size_or_kind_is_none(void **state)
{
    uint8_t bytes[WFRDM_HEAD_BYTES + 8] = {0};
    wfrdm_head got;
    wfrdm_head_write(&head, bytes);
    for (size_t size = 0; size <= sizeof(bytes); size++)
        assert_int_equal(wfrdm_head_read(bytes, size, &got), size == WFRDM_HEAD_BYTES + 3);
    for (int kind = 0; kind < 256; kind++) {
        bytes[4] = (uint8_t)kind;
        assert_int_equal(wfrdm_head_read(bytes, WFRDM_HEAD_BYTES + 3, &got),
                         kind >= WFRDM_HELLO && kind <= WFRDM_BYTES);
    }
    bytes[4] = WFRDM_DATA;
    for (int i = 0; i < 4; i++) {
        bytes[i] ^= 1;
        assert_false(wfrdm_head_read(bytes, WFRDM_HEAD_BYTES + 3, &got));
        bytes[i] ^= 1;
    }
}

static void a_hello_is_read_as_written_and_in_full_only(void **state)
{
    wfrdm_hello hello = {.instance = 99, .address_size = WFI_ADDRESS_MAX, .data_size = WFI_CONNECT_DATA_MAX}, got;
    uint8_t bytes[sizeof(hello) + 1] = {0};
    for (size_t i = 0; i < WFI_ADDRESS_MAX; i++)
        hello.address[i] = (uint8_t)i;
    memset(hello.data, 5, sizeof(hello.data));
    size_t size = wfrdm_hello_write(&hello, bytes, sizeof(bytes));
    assert_true(wfrdm_hello_read(bytes, size, &got));
    assert_int_equal(got.instance, 99);
    assert_int_equal(got.address_size, WFI_ADDRESS_MAX);
    assert_memory_equal(got.address, hello.address, WFI_ADDRESS_MAX);
    assert_int_equal(got.data_size, WFI_CONNECT_DATA_MAX);
    assert_memory_equal(got.data, hello.data, WFI_CONNECT_DATA_MAX);
    for (size_t other = 0; other <= sizeof(bytes); other++)
        assert_int_equal(wfrdm_hello_read(bytes, other, &got), other == size);
    bytes[8] = WFI_ADDRESS_MAX + 1;
    assert_false(wfrdm_hello_read(bytes, size, &got));
    bytes[8] = WFI_ADDRESS_MAX;
    bytes[9 + WFI_ADDRESS_MAX] = WFI_CONNECT_DATA_MAX + 1;
    assert_false(wfrdm_hello_read(bytes, size, &got));
}

static void a_range_is_one_to_a_piece_long(void **state)
{
    uint8_t bytes[sizeof(wfrdm_range)];
    wfrdm_range got;
    const struct {
        uint64_t size;
        bool is_right;
    } cases[] = {{0, false}, {1, true}, {WFRDM_PIECE_BYTES, true}, {WFRDM_PIECE_BYTES + 1, false}, {UINT64_MAX, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        const wfrdm_range range = {.remote = UINT64_MAX, .key = 1, .size = cases[i].size};
        size_t size = wfrdm_range_write(&range, bytes, sizeof(bytes));
        assert_int_equal(wfrdm_range_read(bytes, size, &got), cases[i].is_right);
        assert_false(wfrdm_range_read(bytes, size - 1, &got));
    }
}

UNIT_MAIN(a_head_is_read_as_written, a_frame_of_another_size_or_kind_is_none,
          a_hello_is_read_as_written_and_in_full_only, a_range_is_one_to_a_piece_long)
