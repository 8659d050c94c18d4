/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digits.h - drawings of handwritten digits: a data set that needs no file and no network.
 *
 * A digit is a few pen strokes (several ways to write each), drawn with an unsteady hand: moved control points, an affine
 * map, an elastic distortion, a pen of some width and darkness, a little blur and noise. Image number i of a seed is a
 * function of (seed, i) alone. Labels are balanced over any ten images in a row.
 */
#ifndef EXAMPLES_DIGITS_H
#define EXAMPLES_DIGITS_H

#include <stddef.h> /* size_t */
#include <stdint.h> /* uint8_t */

#define DIGITS_SIDE 28
#define DIGITS_PIXELS (DIGITS_SIDE * DIGITS_SIDE)

/* Draws image `index` of `seed`: DIGITS_PIXELS bytes, row by row, 0 paper to 255 ink. Returns its label, 0 to 9. */
int digits_draw(uint64_t seed, uint64_t index, uint8_t *pixels);

/* Draws images first..first+count-1 on as many threads as the machine has cores; the bits do not depend on them. */
void digits_draw_many(uint64_t seed, uint64_t first, size_t count, uint8_t *pixels, uint8_t *labels);

/* The ways to write a digit: points (x, y) in 0..100, y downwards, and marks between them. */
enum {
    STROKE_LIFT = -1,   /* the pen leaves the paper: the next point starts a new line */
    STROKE_CORNER = -2, /* the line turns sharply at the point before */
    STROKE_END = -3,
};
extern const int8_t *const *const digits_ways[10]; /* each a list of ways, ended by NULL */

#endif
