/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digits.h - distorted drawings of digits: a data set that needs no file and no network.
 *
 * A digit of a font is scaled, slanted, turned and moved at random, with noise. Image i of a seed depends only on the
 * seed and i. Ten consecutive images, from a multiple of ten on, contain each digit once.
 */
#ifndef EXAMPLES_DIGITS_H
#define EXAMPLES_DIGITS_H

#include <stdint.h> /* uint8_t */

#define DIGITS_SIDE 28
#define DIGITS_PIXELS (DIGITS_SIDE * DIGITS_SIDE)

/* Draws image `index` of `seed`: DIGITS_PIXELS bytes, row by row, 0 paper to 255 ink. Returns its label, 0 to 9. */
int digits_draw(uint64_t seed, uint64_t index, uint8_t *pixels);

#endif
