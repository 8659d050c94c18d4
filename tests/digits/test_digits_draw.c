/* SPDX-License-Identifier: Apache-2.0 */
/* test_digits_draw.c - drawn digits: the same for the same seed; different otherwise; well formed. */
#include "unit.h"

#include <stddef.h>
#include <stdint.h>

#include <digits.h>

#define MANY 500

static void same_seed_same_bits(void **state)
{
    uint8_t a[DIGITS_PIXELS], b[DIGITS_PIXELS];
    int label = digits_draw(7, 123, a);
    assert_int_equal(digits_draw(7, 123, b), label);
    assert_memory_equal(a, b, sizeof(a));
}

static void seeds_and_indices_differ(void **state)
{
    uint8_t a[DIGITS_PIXELS], b[DIGITS_PIXELS], c[DIGITS_PIXELS];
    digits_draw(7, 123, a);
    digits_draw(8, 123, b);
    digits_draw(7, 124, c);
    assert_memory_not_equal(a, b, sizeof(a));
    assert_memory_not_equal(a, c, sizeof(a));
}

static void ten_in_a_row_hold_every_digit(void **state)
{
    uint8_t pixels[DIGITS_PIXELS];
    for (uint64_t first = 0; first < 100; first += 10) {
        unsigned seen = 0;
        for (uint64_t i = first; i < first + 10; i++)
            seen |= 1u << digits_draw(1, i, pixels);
        assert_int_equal(seen, 0x3ff);
    }
}

/* Some ink, mostly paper, and not cut off by the edge: the frame of one pixel is (nearly) empty. */
static void ink_is_inside(void **state)
{
    uint8_t pixels[DIGITS_PIXELS];
    long edge = 0;
    for (uint64_t i = 0; i < MANY; i++) {
        long sum = 0;
        digits_draw(5, i, pixels);
        for (int p = 0; p < DIGITS_PIXELS; p++) {
            int x = p % DIGITS_SIDE, y = p / DIGITS_SIDE;
            sum += pixels[p];
            edge += x == 0 || y == 0 || x == DIGITS_SIDE - 1 || y == DIGITS_SIDE - 1 ? pixels[p] : 0;
        }
        assert_in_range(sum, 3000, 100000);
    }
    assert_in_range(edge, 0, MANY * 108 * 4);
}

UNIT_MAIN(same_seed_same_bits, seeds_and_indices_differ, ten_in_a_row_hold_every_digit, ink_is_inside)
