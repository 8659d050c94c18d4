/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digits.h - drawings of handwritten digits: a data set that needs no file and no network.
 *
 * A digit is a few pen strokes; there are several ways to write each digit. The strokes are distorted at random, and
 * drawn with a pen of random width and darkness. Image i of a seed depends only on the seed and i. Ten consecutive
 * images, from a multiple of ten on, contain each digit once.
 */
#ifndef EXAMPLES_DIGITS_H
#define EXAMPLES_DIGITS_H

#include <stddef.h> /* size_t */
#include <stdint.h> /* uint8_t */

#define DIGITS_SIDE 28
#define DIGITS_PIXELS (DIGITS_SIDE * DIGITS_SIDE)

/* Draws image `index` of `seed`: DIGITS_PIXELS bytes, row by row, 0 paper to 255 ink. Returns its label, 0 to 9. */
int digits_draw(uint64_t seed, uint64_t index, uint8_t *pixels);

/* Draws images first..first+count-1 on up to 16 threads. The result does not depend on the number of threads. */
void digits_draw_many(uint64_t seed, uint64_t first, size_t count, uint8_t *pixels, uint8_t *labels);

/* The ways to write a digit: points (x, y) in 0..100, y downwards, and marks between them. */
enum {
    STROKE_LIFT = -1,   /* the pen leaves the paper: the next point starts a new line */
    STROKE_CORNER = -2, /* the line turns sharply at the previous point */
    STROKE_END = -3,
};
extern const int8_t *const *const digits_ways[10]; /* for each digit a list of ways, ended by NULL */

#endif
